"""The guide of security: its table names tests that exist, and every door there is."""

from __future__ import annotations

import re
from pathlib import Path

from gazette_aio.protocol.service import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_named_tests_exist() -> None:
    named: set[tuple[str, str]] = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE))
    assert len(named) > 20
    for path, test in sorted(named):
        text = (ROOT / path).read_text("utf-8")
        assert not test or re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), (path, test)


def test_all_methods_are_doors() -> None:
    doors = re.findall(r"^\| gRPC `(\w+)`", PAGE, re.MULTILINE)
    journal = {method.name for path, method in METHODS.items() if "protocol.Journal" in path}
    assert set(doors) == journal


def test_each_door_has_a_test() -> None:
    table = PAGE.partition("## Doors")[2].partition("## Hardening")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        if not row.startswith("| ---"):
            assert "`tests/" in row, row
