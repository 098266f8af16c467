"""The table of Go names names what exists."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "migration.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`.*`) \| (both|v0\.89|newest) \| (.*) \|$", TEXT, re.MULTILINE)
ABSENT = "not needed: "
NAMES = sorted(
    {
        name
        for _, _, here in ROWS
        if not here.startswith(ABSENT)
        for name in re.findall(r"`([a-z]+(?:\.\w+)+)`", here)
    }
)


def test_every_row_is_understood() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]

    assert len(ROWS) == len(rows) > 300
    wrong = [
        here
        for _, _, here in ROWS
        if not here.startswith(
            (ABSENT, "`client.", "`message.", "`protocol.", "`consumer.", "`testing.")
        )
    ]
    assert wrong == []


def test_no_name_is_listed_twice_in_a_package() -> None:
    for section in TEXT.split("\n## ")[1:]:
        names = [
            name
            for go, _, _ in re.findall(r"^\| (`.*`) \| (\S+) \| (.*) \|$", section, re.MULTILINE)
            for name in re.findall(r"`([\w.]+)`", go)
        ]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_names_exist(name: str) -> None:
    parts = ["gazette_aio", *name.split(".")]
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        _ = reduce(getattr, parts[count:], found)
        return
    pytest.fail("there's no such module")
