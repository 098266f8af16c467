"""Output of results: tables and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return `rows` in aligned columns under `header`; numbers are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [
        bool(cells) and all(row[i].lstrip("-").isdecimal() for row in cells)
        for i in range(len(header))
    ]
    widths = [max([len(title), *(len(row[i]) for row in cells)]) for i, title in enumerate(header)]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(parts).rstrip()

    return "\n".join(line(row) for row in [header, *cells])
