"""Guards of JSON documents against mistakes of pyarrow.

pyarrow takes text as a stream of documents: it skips blank lines, takes two documents of one line
as two rows, accepts text that isn't UTF-8, and crashes on a block of nulls only. So it's given
only lines that begin with `{` and end with `}`, without a zero byte, at which it stops. A line
break between `}` and `{` is at the top level of documents, as elsewhere a comma would be missing,
or a control character be within a string. So no document spans two lines, each line has at least
one, and each has exactly one if there are as many rows as lines.

It also accepts NaN and Infinity, which isn't dangerous: columns refuse them, and elsewhere they're
left alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gazette_aio.message.columnar.payloads import Lines
from gazette_aio.message.columnar.pyarrow_api import pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from gazette_aio.message.sequencing.columns import Indices

_OPEN, _CLOSE, _RETURN = b"{"[0], b"}"[0], b"\r"[0]
_SPACE = b" \t\r\n"
_NOTHING: dict[int, bytes] = {}


def guard(lines: Lines, errors: dict[int, Exception]) -> tuple[Lines, Indices | None]:
    """Return lines that pyarrow parses correctly, and their positions, or None if it's all.

    Args:
        lines: Lines.
        errors: Takes the errors of other lines, by position.
    """
    data: Any = lines.data
    text = np.frombuffer(data, np.uint8)
    replaced: dict[int, bytes] = {}
    for row in _irregular_rows(lines, text):
        line = _line(lines, row)
        document = line.strip(_SPACE)
        if document == b"null":
            replaced[row] = b"{}\n"
        elif document[:1] == b"{" and document[-1:] == b"}":
            replaced[row] = document + b"\n"
        else:
            errors[row] = _why_not_an_object(document)
    if text.min() == 0:
        for row in _rows_at(lines, np.flatnonzero(text == 0)):
            errors.setdefault(row, ValueError("there's a zero byte"))
    for row in _rows_not_utf8(lines):
        errors.setdefault(row, ValueError("text isn't UTF-8"))
    if not errors and not replaced:
        return lines, None
    return rebuild(lines, errors, replaced)


def rebuild(
    lines: Lines, dropped: Iterable[int], replaced: Mapping[int, bytes] = _NOTHING
) -> tuple[Lines, Indices | None]:
    """Return lines without dropped ones, others replaced; and their positions, unless it's all."""
    dropped = set(dropped)
    view, offsets = memoryview(lines.data), lines.offsets
    sizes = np.diff(offsets)
    pieces: list[Any] = []
    begin = 0
    for row in sorted(dropped | replaced.keys()):
        pieces.append(view[int(offsets[begin]) : int(offsets[row])])
        if row not in dropped:
            pieces.append(replaced[row])
            sizes[row] = len(replaced[row])
        begin = row + 1
    pieces.append(view[int(offsets[begin]) :])
    positions = None
    if dropped:
        positions = np.delete(np.arange(lines.rows), list(dropped))
        sizes = sizes[positions]
    rebuilt = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=rebuilt[1:])
    return Lines(pa.py_buffer(b"".join(pieces)), rebuilt), positions


def line_list(lines: Lines) -> list[bytes]:
    """Return lines as bytes objects."""
    data: bytes = lines.data.to_pybytes()
    offsets = lines.offsets.tolist()
    return [data[begin:end] for begin, end in pairwise(offsets)]


def _line(lines: Lines, row: int) -> bytes:
    begin, end = int(lines.offsets[row]), int(lines.offsets[row + 1])
    line: bytes = lines.data.slice(begin, end - begin).to_pybytes()
    return line


def _irregular_rows(lines: Lines, text: NDArray[np.uint8]) -> list[int]:
    r"""Return lines that don't begin with `{`, or don't end with `}`, and maybe `\r`."""
    firsts, lasts = lines.offsets[:-1], lines.offsets[1:] - np.int32(2)
    # An empty line has its line feed at both places, or that before it.
    opened = text[firsts] == _OPEN
    regular = opened & (text[lasts] == _CLOSE)
    if not regular.all():
        before = text[np.maximum(lasts - np.int32(1), np.int32(0))]
        regular |= opened & (text[lasts] == _RETURN) & (before == _CLOSE)
    return [] if regular.all() else np.flatnonzero(~regular).tolist()


def _rows_at(lines: Lines, places: NDArray[np.int64]) -> list[int]:
    """Return the lines that hold places of the text."""
    if not len(places):
        return []
    rows: list[int] = np.unique(np.searchsorted(lines.offsets, places, "right") - 1).tolist()
    return rows


def _rows_not_utf8(lines: Lines) -> list[int]:
    bounds = pa.py_buffer(np.array([0, lines.data.size], np.int32))
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, lines.data])
    try:
        whole.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return []
    bad: list[int] = []
    for row, line in enumerate(line_list(lines)):
        try:
            line.decode()
        except UnicodeDecodeError:
            bad.append(row)
    return bad


def _why_not_an_object(document: bytes) -> Exception:
    if not document:
        return ValueError("blank line")
    try:
        value = msgspec.json.decode(document)
    except UnicodeDecodeError:
        return ValueError("text isn't UTF-8")
    except (msgspec.DecodeError, RecursionError) as error:
        return error
    return ValueError(f"document is not an object but {type(value).__name__}")
