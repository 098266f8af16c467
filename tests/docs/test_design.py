"""The map and the walkthroughs of DESIGN.md name rooms, modules and functions which exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gazette_aio"
TEXT = (ROOT / "DESIGN.md").read_text("utf-8")

ROOMS = dict(re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", TEXT, re.MULTILINE))
PLACES = sorted(set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", TEXT)))


def test_every_room_is_on_the_map():
    there = {
        str(path.parent.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE
    }

    assert there == ROOMS.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_exist(room):
    modules = re.findall(r"`(\w+)`", ROOMS[room])

    assert [name for name in modules if not (PACKAGE / room / f"{name}.py").exists()] == []


def test_walkthroughs_name_functions():
    assert len(PLACES) > 20


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_functions_of_walkthroughs_exist(path, name):
    assert name in names_in(path)


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the functions, classes and methods of a module."""
    found = set()
    for node in ast.parse((PACKAGE / path).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)
