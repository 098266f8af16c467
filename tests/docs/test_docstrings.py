"""Docstrings keep the conventions of CONTRIBUTING.md: what cancellation does, and in which order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gazette_aio"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_public_coroutines_say_what_cancellation_does():
    coroutines = [
        (place, function)
        for place, function in public_functions()
        if isinstance(function, ast.AsyncFunctionDef)
    ]

    assert len(coroutines) > 500
    assert [place for place, each in coroutines if "Cancellation:" not in docstring(each)] == []


def test_errors_come_before_cancellation():
    texts = [(place, docstring(function)) for place, function in public_functions()]
    both = [(place, text) for place, text in texts if "Raises:" in text and "Cancellation:" in text]

    assert len(both) > 200
    assert [
        place for place, text in both if text.find("Raises:") > text.find("Cancellation:")
    ] == []


def test_errors_are_described_by_sentences_without_if():
    conditions = [
        place
        for place, function in public_functions()
        if re.search(r"^    [A-Z]\w*: If ", docstring(function), re.MULTILINE)
    ]

    assert conditions == []


def test_first_lines_of_modules_name_a_thing():
    first_lines = {path: docstring(ast.parse(path.read_text("utf-8"))) for path in modules()}

    assert [path for path, text in first_lines.items() if text.startswith("What ")] == []


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if "_generated" not in path.parts]


def public_functions() -> Iterator[tuple[str, Function]]:
    """Yield public functions, and public methods of public classes, with their places."""
    for path in modules():
        body = ast.parse(path.read_text("utf-8")).body
        classes = [each for each in body if isinstance(each, ast.ClassDef) and is_public(each)]
        for member in [*body, *(member for each in classes for member in each.body)]:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(member):
                yield f"{path.relative_to(ROOT)}:{member.lineno} {member.name}", member


def is_public(node: ast.ClassDef | Function) -> bool:
    return not node.name.startswith("_")


def docstring(node: ast.Module | Function) -> str:
    return ast.get_docstring(node) or ""
