"""Output of results and of remarks: lines, tables, JSON, documents, and progress.

Invariant: all text of the command line leaves here, and in `logs`. Only the raw content of journals
reaches a terminal as it is.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gazette_aio.protocol.shown import shown_json, shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence


def print_line(text: str = "", *, err: bool = False) -> None:
    """Print one line on stdout, or on stderr; what isn't printable is escaped."""
    click.echo(shown_text(text), err=err)


def print_text(text: str, *, err: bool = False) -> None:
    """Print the lines of a text, which ends its last line itself."""
    click.echo(shown_text(text, keep="\n\t"), nl=False, err=err)


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print `value` as one line of JSON, with blanks after separators unless it's `compact`."""
    separators = (",", ":") if compact else None
    click.echo(shown_json(json.dumps(value, ensure_ascii=False, separators=separators)))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: in color on a terminal, else as plain text."""
    if not sys.stdout.isatty():
        print_text(f"{table(header, rows)}\n")
        return
    # Rich takes a while to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for title in header:
        drawn.add_column(Text(shown_text(title)), overflow="fold")
    for row in rows:
        # Invariant: cells aren't markup, since names and labels come from anybody.
        drawn.add_row(*(Text(shown_text(str(cell))) for cell in row))
    Console().print(drawn)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return `rows` in aligned columns under `header`; numbers are right-aligned."""
    header = [shown_text(title) for title in header]
    cells = [[shown_text(str(cell)) for cell in row] for row in rows]
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


class Progress:
    """Progress of a long operation.

    Args:
        update: Draws an advance, a note and the amount at the end; None draws nothing.
    """

    def __init__(self, update: Callable[..., object] | None = None) -> None:
        self._update = update

    def advance(self, amount: int, note: str = "", *, total: int | None = None) -> None:
        """Count `amount` more, and show a note and a new amount at the end, if they're given."""
        if self._update is not None:
            fields = {"note": note} if note else {}
            self._update(advance=amount, total=total, **fields)


@contextlib.contextmanager
def progress(
    label: str, total: int | None = None, *, in_bytes: bool = False
) -> Generator[Progress]:
    """Show progress with its rate on stderr, if stderr is a terminal.

    Args:
        label: Name of the operation.
        total: Amount at the end, or None if it's unknown.
        in_bytes: Whether amounts are bytes. Without a total, they may be printed meanwhile: no
            progress is shown if stdout is a terminal, too.
    """
    if not sys.stderr.isatty() or (in_bytes and total is None and sys.stdout.isatty()):
        yield Progress()
        return
    # Rich takes a while to import.
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns: list[rich.ProgressColumn] = [rich.TextColumn("{task.description}", markup=False)]
    if total is None:
        columns += [rich.SpinnerColumn()]
    else:
        columns += [rich.BarColumn(), rich.TaskProgressColumn()]
    columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()] if in_bytes else []
    columns += [] if in_bytes else [rich.MofNCompleteColumn(), rich.TimeElapsedColumn()]
    columns += [rich.TextColumn("{task.fields[note]}", markup=False)]
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total, note="")
        yield Progress(functools.partial(bars.update, task))
