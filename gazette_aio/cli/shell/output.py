"""Output of results and of remarks: lines, tables, JSON, documents, and progress.

Invariant: all text of the command line leaves here, and in `logs`. Only the raw content of journals
reaches a terminal as it is.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

import click

from gazette_aio.protocol.shown import shown_json, shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from click.decorators import FC

_LEAST_WIDTH: Final = 10
"""Width below which no cell is cut."""


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


def json_option(text: str = "Print the result as JSON.") -> Callable[[FC], FC]:
    """Let a command take `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: a value as JSON, or else a line of text."""
    if as_json:
        print_json(value)
    else:
        print_line(text)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, keep: str = "") -> None:
    """Print a table: whole, but on a terminal at most as wide as that, with a bold header.

    Args:
        header: Titles of the columns.
        rows: Their cells.
        keep: Column that matters as much as the first one, and is left out at the very last.
    """
    if not sys.stdout.isatty():
        print_text(f"{table(header, rows)}\n")
        return
    width = shutil.get_terminal_size().columns
    title, *lines = table(header, rows, width, keep=keep).splitlines()
    click.echo(click.style(title, bold=True))
    for line in lines:
        click.echo(line)


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int | None = None,
    *,
    keep: str = "",
) -> str:
    """Return `rows` in aligned columns under `header`; numbers are right-aligned.

    Args:
        header: Titles of the columns.
        rows: Their cells. What isn't printable is escaped.
        width: Longest line. Cells are cut to fit, and the last columns are left out if that isn't
            enough.
        keep: As of `print_table()`.
    """
    cells = [[shown_text(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(_cells_of, column)) for column in zip(*cells, strict=True)]
    numeric = [
        len(column) > 1 and all(cell.lstrip("-").isdecimal() for cell in column[1:])
        for column in zip(*cells, strict=True)
    ]
    fitted = dict(enumerate(widths))
    if width is not None:
        kept = {0, header.index(keep) if keep in header else 0}
        fitted = _fitted(fitted, [_cells_of(title) for title in cells[0]], width, kept)

    def line(row: Sequence[str]) -> str:
        parts: list[str] = []
        for column, most in fitted.items():
            shown = _cut(row[column], most)
            blanks = " " * (most - _cells_of(shown))
            parts.append(blanks + shown if numeric[column] else shown + blanks)
        return "  ".join(parts).rstrip()

    return "\n".join(map(line, cells))


def _fitted(
    widths: Mapping[int, int], titles: Sequence[int], most: int, kept: set[int]
) -> dict[int, int]:
    """Return the widths of columns that fit into `most` with two blanks between them.

    The first column names the row, and keeps up to half of the line.
    """
    rest = most - 2 * (len(widths) - 1)
    fitted = {
        column: min(width, max(titles[column], _LEAST_WIDTH) if column else max(most // 2, 1))
        for column, width in widths.items()
    }
    if sum(fitted.values()) > rest and len(widths) > 1:
        dropped = max(widths.keys() - kept, default=max(widths))
        fewer = {column: width for column, width in widths.items() if column != dropped}
        return _fitted(fewer, titles, most, kept)
    for _ in range(rest - sum(fitted.values())):
        # Each spare cell goes to the narrowest column that is cut.
        if cut := [(each, column) for column, each in fitted.items() if each < widths[column]]:
            fitted[min(cut)[1]] += 1
    return fitted


def _cut(text: str, width: int) -> str:
    """Return a text of at most `width` cells of a terminal, whose middle may be an ellipsis."""
    if _cells_of(text) <= width:
        return text
    of_end = (width - 1) // 2
    begin, end = text[: width - 1 - of_end], text[len(text) - of_end :]
    while _cells_of(begin) > width - 1 - of_end:
        begin = begin[:-1]
    while _cells_of(end) > of_end:
        end = end[1:]
    return f"{begin}…{end}"


def _cells_of(text: str) -> int:
    """Return how many cells of a terminal a text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    combining = sum(unicodedata.combining(each) > 0 for each in text)
    return len(text) - combining + sum(unicodedata.east_asian_width(each) in "WF" for each in text)


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
