"""The names of `gazette_aio` itself."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gazette_aio

SOURCE = Path(gazette_aio.__file__).read_text("utf-8")


def names_for_type_checkers() -> dict[str, str]:
    """By name: the module which the type-checking block imports it from."""
    (block,) = [
        node
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_sorted_and_complete():
    assert gazette_aio.__all__ == sorted(set(gazette_aio.__all__))
    assert set(gazette_aio.__all__) == {*names_for_type_checkers(), "__version__"}
    assert set(gazette_aio.__all__) <= set(dir(gazette_aio))


@pytest.mark.parametrize(("name", "module"), names_for_type_checkers().items())
def test_each_name_is_that_of_its_package(name, module):
    assert getattr(gazette_aio, name) is getattr(importlib.import_module(module), name)
    assert name in dir(importlib.import_module(module))


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="'gazette_aio' has no attribute 'nothing'"):
        _ = gazette_aio.nothing


def test_importing_the_package_alone_imports_nothing_else():
    code = (
        "import sys, gazette_aio;"
        "print([name for name in sys.modules if name.split('.')[0] in ('grpc', 'google', 'asyncio')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
