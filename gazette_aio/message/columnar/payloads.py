"""Bytes of messages, held while the sequencer decides on them.

Rows are addressed as by a `ColumnarSequencer`: as a table of the rows carried over from earlier
batches, followed by the rows of the present batch. Bytes stay in the buffers that they were read
into while at least half of such a buffer belongs to rows that are still wanted; otherwise these
rows move to a buffer of their own. Each move at least halves the memory that a buffer pins, and
small buffers of similar size are merged, so that a row is copied a few times at most, however many
batches its transaction spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gazette_aio.message.columnar.pyarrow_api import pa, pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyarrow import BinaryArray, Buffer

    from gazette_aio.message.framing.regions import Region
    from gazette_aio.message.sequencing.columns import Indices

    Places = NDArray[np.int32] | Indices

MAX_TAKE_BYTES = 1 << 30
"""Largest size of the messages that are processed at once, and of a single one."""

MAX_OFFSET = (1 << 31) - 1  # Of Arrow's binary type, which has 32-bit offsets.
_SMALL_BYTES = 1 << 20


class Lines(NamedTuple):
    r"""Consecutive messages, each followed by `\n`."""

    data: Buffer
    offsets: NDArray[np.int32]
    """Begin of each message in `data`, and the end of `data`: one more than rows."""

    @property
    def rows(self) -> int:
        """Number of messages."""
        return len(self.offsets) - 1


class _Chunk(NamedTuple):
    """Rows within one buffer, in ascending order."""

    data: Buffer
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    line_feeds: bool

    @property
    def rows(self) -> int:
        return len(self.starts)

    def select(self, rows: Indices) -> _Chunk:
        return self._replace(starts=self.starts[rows], stops=self.stops[rows])

    def live_bytes(self) -> int:
        size = int(self.stops.sum() - self.starts.sum())
        return size + self.rows if self.line_feeds else size

    def run_of_lines(self, rows: Indices) -> Lines | None:
        """Return rows as a part of the buffer, if they're consecutive there."""
        first, last = int(rows[0]), int(rows[-1])
        if not self.line_feeds or last - first != len(rows) - 1 or (np.diff(rows) != 1).any():
            return None
        begins, ends = self.starts[first : last + 1], self.stops[first : last + 1] + 1
        if (begins[1:] != ends[:-1]).any():
            return None
        begin, end = int(begins[0]), int(ends[-1])
        offsets = np.zeros(len(rows) + 1, np.int32)
        offsets[1:] = ends - begin
        return Lines(self.data.slice(begin, end - begin), offsets)

    def take(self, rows: Indices | None, *, line_feeds: bool = False) -> Any:
        """Return payloads of rows, or of all, with the line feeds of the buffer if asked for."""
        return take_spans(self.data, self.starts, self.stops + int(line_feeds), rows)


def take_spans(data: Buffer, starts: Places, stops: Places, rows: Indices | None = None) -> Any:
    """Return spans of a buffer as an array of bytes: those at `rows`, or all.

    Spans ascend, and don't overlap.
    """
    # Spans, and the bytes between them, are the elements of one array over the buffer.
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    buffers = [None, pa.py_buffer(bounds), data]
    elements = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    return elements.take(pa.array(np.arange(0, len(bounds), 2) if rows is None else rows * 2))


def cut_runs(
    ends: Places, max_bytes: int, max_rows: int = MAX_TAKE_BYTES
) -> Iterator[tuple[int, int]]:
    """Yield runs of at most `max_bytes` and `max_rows`, or of one larger row.

    Args:
        ends: End of each row, if the first one begins at 0.
        max_bytes: Limit of the bytes of a run.
        max_rows: Limit of its rows.
    """
    begin = base = 0
    while begin < len(ends):
        fit = int(np.searchsorted(ends, base + max_bytes, "right"))
        end = min(max(fit, begin + 1), begin + max_rows)
        yield begin, end
        begin, base = end, int(ends[end - 1])


class Payloads:
    """Payloads of the rows of a table: rows carried over, followed by rows of the batch."""

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._bounds = np.zeros(1, np.int64)  # Row at which each chunk begins, and their number.

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return int(self._bounds[-1])

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffers that are held."""
        return sum(chunk.data.size for chunk in self._chunks)

    def __repr__(self) -> str:
        return (
            f"<Payloads {self.rows} rows, {len(self._chunks)} buffers of {self.held_bytes} bytes>"
        )

    def add(self, region: Region) -> None:
        """Append the rows of `region`.

        Raises:
            OverflowError: They span more than 2 GiB.
        """
        if not region.rows:
            return
        data, starts, stops = region.data, region.starts, region.stops
        if len(data) > MAX_OFFSET:
            begin, end = int(starts[0]), int(stops[-1]) + region.line_feeds
            if end - begin > MAX_OFFSET:
                raise OverflowError(f"region of {end - begin} bytes")
            data, starts, stops = data[begin:end], starts - begin, stops - begin
        self._append(_Chunk(pa.py_buffer(data), starts, stops, region.line_feeds))

    def keep(self, rows: Indices) -> None:
        """Drop all rows but those at `rows`, which ascend, and become the table."""
        kept: list[_Chunk] = []
        cuts = np.searchsorted(rows, self._bounds)
        for index, chunk in enumerate(self._chunks):
            begin, end = int(cuts[index]), int(cuts[index + 1])
            if begin == end:
                continue
            if end - begin != chunk.rows:
                chunk = chunk.select(rows[begin:end] - self._bounds[index])  # noqa: PLW2901
            if 2 * chunk.live_bytes() < chunk.data.size:
                chunk = _compact([chunk])  # noqa: PLW2901
            kept.append(chunk)
            while len(kept) > 1 and _should_merge(kept[-2], kept[-1]):
                kept[-2:] = [_compact(kept[-2:])]
        self._chunks = []
        self._bounds = np.zeros(1, np.int64)
        for chunk in kept:
            self._append(chunk)

    def take(self, rows: Indices) -> BinaryArray:
        """Return the payloads of rows, in the order of `rows`.

        Raises:
            OverflowError: They're larger than 2 GiB: split them by `pieces()`.
        """
        taken: BinaryArray = self._take(rows, line_feeds=False)
        return taken

    def take_list(self, rows: Indices) -> list[bytes]:
        """Return the payloads of rows as bytes objects, in the order of `rows`."""
        payloads: list[bytes] = self._take(rows, line_feeds=False).to_pylist()
        return payloads

    def take_lines(self, rows: Indices) -> Lines:
        r"""Return the payloads of rows as lines, in the order of `rows`.

        A payload keeps its own line feeds.

        Raises:
            OverflowError: They're larger than 2 GiB: split them by `pieces()`.
        """
        if len(self._chunks) == 1 and len(rows):
            lines = self._chunks[0].run_of_lines(rows)
            if lines is not None:
                return lines
        return _as_lines(self._take(rows, line_feeds=True))

    def pieces(self, rows: Indices, max_bytes: int = MAX_TAKE_BYTES) -> Iterator[Indices]:
        """Yield runs of `rows` of at most `max_bytes`, or of one larger row."""
        if not len(rows):
            return
        if len(rows) <= self.rows and self.held_bytes + self.rows <= max_bytes:
            # Hot: a few of many held rows may be wanted. None is wanted twice.
            yield rows
            return
        sizes = np.concatenate([chunk.stops - chunk.starts for chunk in self._chunks])[rows] + 1
        for begin, end in cut_runs(np.cumsum(sizes), max_bytes):
            yield rows[begin:end]

    def _append(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._bounds = np.append(self._bounds, self._bounds[-1] + chunk.rows)

    def _take(self, rows: Indices, *, line_feeds: bool) -> Any:
        if not len(rows):
            return pa.array([], pa.binary())
        if len(self._chunks) == 1:
            self._check_size(self._chunks, [rows])
            return _take(self._chunks[0], rows, line_feeds=line_feeds)
        # Take the wanted rows of each chunk, and then put them in their order.
        order = None
        if (rows[1:] >= rows[:-1]).all():
            cuts = np.searchsorted(rows, self._bounds)
        else:
            home = np.searchsorted(self._bounds, rows, "right") - 1
            order = np.argsort(home, kind="stable")
            cuts = np.searchsorted(home[order], np.arange(len(self._bounds)))
        grouped = rows if order is None else rows[order]
        chunks: list[_Chunk] = []
        wanted: list[Indices] = []
        for index, chunk in enumerate(self._chunks):
            begin, end = int(cuts[index]), int(cuts[index + 1])
            if begin < end:
                chunks.append(chunk)
                wanted.append(grouped[begin:end] - self._bounds[index])
        self._check_size(chunks, wanted)
        parts = [
            _take(chunk, local, line_feeds=line_feeds)
            for chunk, local in zip(chunks, wanted, strict=True)
        ]
        taken = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if order is None:
            return taken
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        return taken.take(pa.array(inverse))

    @staticmethod
    def _check_size(chunks: list[_Chunk], wanted: list[Indices]) -> None:
        size = sum(
            int((chunk.stops[rows] - chunk.starts[rows]).sum()) + len(rows)
            for chunk, rows in zip(chunks, wanted, strict=True)
        )
        if size > MAX_OFFSET:
            raise OverflowError(f"{size} bytes of messages are too many for one array")


def _take(chunk: _Chunk, rows: Indices | None, *, line_feeds: bool) -> Any:
    if not line_feeds or chunk.line_feeds:
        return chunk.take(rows, line_feeds=line_feeds)
    # The separator, and nothing behind it.
    return pc.binary_join_element_wise(chunk.take(rows), b"", b"\n")


def _as_lines(array: Any) -> Lines:
    _, bounds, data = array.buffers()
    if bounds is None or data is None:
        return Lines(pa.py_buffer(b""), np.zeros(1, np.int32))
    offsets = np.frombuffer(bounds, np.int32)[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - np.int32(first)
    return Lines(data.slice(first, last - first), offsets)


def _should_merge(one: _Chunk, two: _Chunk) -> bool:
    # Invariant: chunks below _SMALL_BYTES shrink by half or more from one to the next, so that
    # there are few, and that a row takes part in few merges.
    return max(one.data.size, two.data.size) < _SMALL_BYTES and one.data.size < 2 * two.data.size


def _compact(chunks: list[_Chunk]) -> _Chunk:
    """Return the rows of chunks in a buffer of their own."""
    line_feeds = all(chunk.line_feeds for chunk in chunks)
    parts = [chunk.take(None, line_feeds=line_feeds) for chunk in chunks]
    lines = _as_lines(parts[0] if len(parts) == 1 else pa.concat_arrays(parts))
    bounds = lines.offsets.astype(np.int64)
    return _Chunk(lines.data, bounds[:-1], bounds[1:] - int(line_feeds), line_feeds)
