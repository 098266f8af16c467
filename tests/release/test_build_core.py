"""The program that compiles the core of messages, with a cargo that only copies its source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gazette_aio.message.core import FORM

NATIVE = Path(__file__).parents[2] / "native"
CARGO = f"""#!{sys.executable}
import json, pathlib, sys
pathlib.Path("calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
text = pathlib.Path("src/lib.rs").read_text()
if text.startswith("error") or ("--offline" in sys.argv and not pathlib.Path("crates").exists()):
    sys.exit(text + "\\nCaused by:\\n  no network" if text.startswith("error") else "error: no crates")
pathlib.Path("crates").touch()
built = pathlib.Path("target/lib_native.so")
built.write_text(text)
print(json.dumps({{"reason": "compiler-artifact", "target": {{"name": "other"}}}}))
print(json.dumps({{"target": {{"name": "_native"}}, "filenames": [str(built.absolute())]}}))
print(json.dumps({{"reason": "build-finished"}}))
"""


class Tree:
    """Copy of the sources, and a PATH with or without a cargo."""

    def __init__(self, root: Path) -> None:
        self.native = root / "native"
        self.native.joinpath("src").mkdir(parents=True)
        for name in ("build_core.py", "Cargo.toml"):
            shutil.copy(NATIVE / name, self.native)
        self.source = self.native / "src" / "lib.rs"
        self.source.write_text("first")
        self.module = root / "gazette_aio" / "message" / "core" / "_native.abi3.so"
        self.module.parent.mkdir(parents=True)
        self.cargo = root / "bin" / "cargo"
        self.cargo.parent.mkdir()
        self.cargo.write_text(CARGO)
        self.cargo.chmod(0o755)

    def start(self, wish: str) -> subprocess.Popen[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CARGO", "GAZETTE"))
        }
        environment |= {"PATH": str(self.cargo.parent), "GAZETTE_AIO_BUILD_CORE": wish}
        return subprocess.Popen(
            [sys.executable, self.native / "build_core.py"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, wish: str = "") -> tuple[int, str]:
        """Return the exit code, and what was printed."""
        process = self.start(wish)
        printed = "".join(process.communicate())
        return process.returncode, printed

    def calls(self) -> list[bool]:
        """Return for each call of cargo whether it might use the network, and forget them."""
        path = self.native / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return ["--offline" not in call for call in found]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_core_is_compiled_again_only_if_its_sources_change(tree: Tree):
    assert tree.build() == (0, "")
    assert tree.module.read_text() == "first"
    assert tree.calls() == [False, True], "downloads only what it lacks"

    tree.source.touch()
    tree.module.unlink()
    assert tree.build() == (0, "")
    assert tree.module.read_text() == "first"
    assert tree.calls() == []

    tree.source.write_text("second")
    assert tree.build("require") == (0, "")
    assert tree.module.read_text() == "second"
    assert tree.calls() == [False]


def test_without_cargo_one_line_tells_why(tree: Tree):
    tree.cargo.unlink()

    code, printed = tree.build()

    assert code == 0
    assert printed.count("\n") == 1
    assert "cargo isn't found" in printed
    assert "Rust 1.85 or newer" in printed
    assert not tree.module.exists()


def test_without_cargo_a_core_of_these_sources_stays(tree: Tree):
    tree.build()
    tree.cargo.unlink()

    assert tree.build("require") == (0, "")
    assert tree.module.exists()


def test_failed_compilation_leaves_no_core_of_other_sources(tree: Tree):
    tree.build()
    tree.source.write_text("error: failed to get `a`")

    code, printed = tree.build()

    assert code == 0
    assert printed.count("\n") == 1
    assert "failed to get `a`: no network" in printed
    assert not tree.module.exists()


def test_required_core_fails_with_all_that_cargo_says(tree: Tree):
    tree.source.write_text("error: failed to get `a`")

    code, printed = tree.build("require")

    assert code == 1
    assert "Caused by:\n  no network" in printed


def test_skipped_core_stays_as_it_is(tree: Tree):
    tree.build()
    tree.calls()
    tree.source.write_text("second")

    assert tree.build("skip") == (0, "")
    assert tree.module.read_text() == "first"
    assert tree.calls() == []


def test_unknown_wish_is_refused(tree: Tree):
    code, printed = tree.build("never")

    assert code == 1
    assert printed == "GAZETTE_AIO_BUILD_CORE=never: expected try, require or skip\n"


def test_concurrent_builds_compile_once(tree: Tree):
    processes = [tree.start("require") for _ in range(3)]
    results = ["".join(process.communicate()) for process in processes]

    assert results == ["", "", ""]
    assert tree.calls() == [False, True]
    assert tree.module.read_text() == "first"
    assert list(tree.module.parent.iterdir()) == [tree.module]


@pytest.mark.skipif(
    os.environ.get("GAZETTE_AIO_BUILD_CORE") != "require" or "GAZETTE_AIO_CORE" in os.environ,
    reason="no core is required",
)
def test_required_core_is_used():
    assert FORM == "native"


def test_oldest_rust_is_that_of_the_crate():
    assert 'rust-version = "1.85"' in (NATIVE / "Cargo.toml").read_text("utf-8")
