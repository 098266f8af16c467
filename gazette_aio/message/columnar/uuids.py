"""Reader of the UUIDs of a region's messages, as columns.

Most messages have their UUID at the usual place of the adapter: these UUIDs are gathered, checked
and parsed at once. JSON messages with the UUID elsewhere are parsed one by one, but only the path
to the UUID. Others, such as unusual forms of UUIDs, go through the EnvelopeBuilder. All ways have
the same results: a UUID at its usual place counts, whatever follows it, and otherwise the last of
several members of one name.
"""

from __future__ import annotations

from binascii import unhexlify
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gazette_aio.message.adapters.base import FrameUUIDAdapter, PlacedAdapter, UUIDPlace
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.envelopes.stamps import BadFrame, EnvelopeBuilder
from gazette_aio.message.framing import Frames
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.message.uuid import TEXT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.framing.regions import Region
    from gazette_aio.message.sequencing.columns import Indices

_BLOCK_ROWS = 1 << 13  # So that what's gathered of them stays in the CPU's cache.
_FEW_ROWS = 8  # So few are read sooner one by one.
_SCALAR_ROWS = 1024
MAX_BAD_ROWS = 256
"""Bad rows that are read without a pause: it takes some milliseconds."""

_DASH = 45
# Of numpy's own type, as its versions differ in what becomes of Python's numbers.
_ZERO, _VERSION, _VARIANT = np.uint64(0), np.uint64(1), np.uint64(2)
_4, _12, _16, _32, _36 = (np.uint64(bits) for bits in (4, 12, 16, 32, 36))
_48, _52, _58, _62 = (np.uint64(bits) for bits in (48, 52, 58, 62))
_COUNTER = _NIBBLE = np.uint64(0xF)
_TIME_HIGH, _TIME_MIDDLE = np.uint64(0xFFF), np.uint64(0xFFFF)
_FLAGS, _PRODUCER = np.uint64(0x3FF), np.uint64(0xFFFFFFFFFFFF)

_Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint64]

# Value of each byte of the text of a UUID: zero for a digit, one for a dash, else two.
_KINDS = bytes(0 if chr(c) in "0123456789abcdefABCDEF" else 1 if c == 45 else 2 for c in range(256))
_TEXT_KINDS = np.zeros(TEXT_LENGTH, np.uint8)
_TEXT_KINDS[8:24:5] = 1

# Texts of UUIDs as runs of digits, with and without the dashes between them.
_RUNS, _LENGTHS = ["0", "1", "2", "3", "4"], ["V8", "V4", "V4", "V4", "V12"]
_TEXTS = np.dtype({"names": _RUNS, "formats": _LENGTHS, "offsets": [0, 9, 14, 19, 24]})
_DIGITS = np.dtype({"names": _RUNS, "formats": _LENGTHS, "offsets": [0, 8, 12, 16, 20]})


class _TextReader(NamedTuple):
    """Gets the text of the UUID of a JSON message: `member(decode(frame))`."""

    decode: Callable[[bytes], Any]
    member: Callable[[Any], object]


class _Numbers(NamedTuple):
    """Parts of UUIDs."""

    producer: NDArray[np.uint64]
    clock: NDArray[np.uint64]
    flags: NDArray[np.uint16]

    @classmethod
    def sized(cls, rows: int) -> _Numbers:
        return cls(np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.uint16))

    def put(self, rows: Indices, numbers: _Numbers) -> None:
        self.producer[rows], self.clock[rows], self.flags[rows] = numbers


class UuidReader:
    """Reads the UUIDs of messages of one journal.

    Args:
        adapter: Adapter of its messages.
        strict: Refuse UUIDs that are neither zero nor of version 1 and the RFC 4122 variant.
        paths: Fast paths: `place` for UUIDs at their usual place, and `text` for JSON messages with
            the UUID elsewhere. Without both, messages are read one by one.
    """

    def __init__(
        self,
        adapter: Adapter[Any],
        *,
        strict: bool = False,
        paths: Collection[str] = ("place", "text"),
    ) -> None:
        self._builder = EnvelopeBuilder("", adapter, strict=strict)
        self._strict = strict
        self._block_rows = _BLOCK_ROWS
        self._place: UUIDPlace | None = None
        if isinstance(adapter, PlacedAdapter) and isinstance(adapter, FrameUUIDAdapter):
            self._place = adapter.uuid_place
        self._gathers = "place" in paths and self._place is not None
        self._text_of: _TextReader | None = None
        # Only messages that don't have their UUID at its usual place are known to be left to it.
        if "text" in paths and self._gathers is bool(self._place):
            self._text_of = _text_reader(adapter)

    def read(self, region: Region) -> tuple[UuidColumns, list[BadFrame]]:
        """Return the UUIDs of a region, up to the first that can't be read.

        Returns:
            UUIDs of the first rows, and errors of the rows directly after them. More bad rows may
            follow.
        """
        parts: list[_Numbers] = []
        done = 0
        bad: list[BadFrame] = []
        while done < region.rows and not bad:
            block = region.slice(done, done + self._block_rows)
            numbers, first_bad = self._read_block(block)
            parts.append(numbers)
            done += len(numbers.clock)
            if first_bad is None:
                self._block_rows = min(self._block_rows * 2, _BLOCK_ROWS)
            else:
                # Others may follow: rows are read again behind each, so let there be few of them.
                self._block_rows = _FEW_ROWS
                bad = [BadFrame(done, first_bad.error), *self._read_bad(region, done + 1)]
        read = region.slice(0, done)
        if len(parts) == 1:
            producer, clock, flags = parts[0]
        elif parts:
            producer, clock, flags = map(np.concatenate, zip(*parts, strict=True))
        else:
            producer, clock, flags = _Numbers.sized(0)
        return UuidColumns(producer, clock, flags, read.begins(), read.ends), bad

    def _read_bad(self, region: Region, begin: int) -> list[BadFrame]:
        """Return the errors of rows from `begin` up to the first good row."""
        data, build = region.data, self._builder.build
        found: list[BadFrame] = []
        for row in range(begin, min(begin + MAX_BAD_ROWS, region.rows)):
            payload = bytes(data[region.starts[row] : region.stops[row]])
            _, bad = build(Frames(0, [payload], [0]))
            if bad is None:
                break
            found.append(BadFrame(row, bad.error))
        return found

    def _read_block(self, block: Region) -> tuple[_Numbers, BadFrame | None]:
        rows = block.rows
        refused = np.empty(0, np.int64)
        if not self._gathers or rows <= _FEW_ROWS:
            numbers, left = _Numbers.sized(rows), np.arange(rows)
        else:
            words, good = self._gather(block)
            valid = _count_valid(words) if self._strict else len(words) // 2
            if good is None and valid == rows:
                return _take_apart(words), None
            if good is None:
                good = np.arange(rows)
            if valid < len(good):
                # Rows behind the first that is refused don't matter.
                refused = good[valid : valid + 1]
                rows = int(refused[0]) + 1
                good = good[:valid]
            numbers = _Numbers.sized(rows)
            numbers.put(good, _take_apart(words[: 2 * valid]))
            others = np.ones(rows, np.bool_)
            others[good] = False
            left = np.flatnonzero(others)
        if self._text_of is not None and len(left) > _FEW_ROWS:
            left = self._read_texts(self._text_of, block, left, numbers)
        bad = self._read_singly(block, np.union1d(left, refused), numbers)
        if bad is not None:
            numbers = _Numbers._make(column[: bad.position] for column in numbers)
        return numbers, bad

    def _gather(self, block: Region) -> tuple[_Words, Indices | None]:
        """Return the words of UUIDs at their usual place, and which rows have one: all if None."""
        assert self._place is not None
        prefix, suffix, is_text = self._place
        begin, end = len(prefix), self._place.uuid_end
        size = end + len(suffix)
        # Only rows near the end of the buffer don't fit, and are too short to have a UUID.
        fit = int(np.searchsorted(block.starts, len(block.data) - size, "right"))
        if fit == 0:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        starts = block.starts[:fit]
        overlapping = np.ndarray(
            (len(block.data) - size + 1,), f"V{size}", block.data, strides=(1,)
        )
        windows = overlapping[starts].view(np.uint8).reshape(fit, size)
        long = block.stops[:fit] - starts >= size
        prefixed = windows[:, :begin] == np.frombuffer(prefix, np.uint8)
        suffixed = windows[:, end:] == np.frombuffer(suffix, np.uint8)
        good = None if fit == block.rows else np.arange(fit)
        if not (long.all() and prefixed.all() and suffixed.all()):
            good = np.flatnonzero(long & prefixed.all(axis=1) & suffixed.all(axis=1))
            windows = windows[good]
        stamps = windows[:, begin:end]
        if not is_text:
            return _words(stamps.tobytes()), good
        words, parsed = _parse(stamps)
        if parsed is not None:
            good = parsed if good is None else good[parsed]
        return words, good

    def _read_texts(
        self, text_of: _TextReader, block: Region, rows: Indices, numbers: _Numbers
    ) -> Indices:
        """Read UUIDs of JSON messages that are canonical text; return the rows of all others."""
        data, (decode, member) = block.data, text_of
        texts: list[str] = []
        read: list[int] = []
        starts, stops = block.starts[rows].tolist(), block.stops[rows].tolist()
        for row, start, stop in zip(rows.tolist(), starts, stops, strict=True):
            try:
                text = member(decode(bytes(data[start:stop])))
            except AttributeError:
                continue  # Null, where an object would be.
            except Exception:  # noqa: BLE001 - found again, and handed on, as rows are read singly.
                break
            if type(text) is str and len(text) == TEXT_LENGTH:
                texts.append(text)
                read.append(row)
        joined = "".join(texts).encode("utf-8", "surrogatepass")
        if len(joined) != TEXT_LENGTH * len(texts):
            return rows  # Not ASCII.
        words, parsed = _parse(np.frombuffer(joined, np.uint8).reshape(-1, TEXT_LENGTH))
        good = np.array(read, np.int64)
        if parsed is not None:
            good = good[parsed]
        if self._strict:
            valid = _count_valid(words)
            words, good = words[: 2 * valid], good[:valid]
        numbers.put(good, _take_apart(words))
        return np.setdiff1d(rows, good, assume_unique=True)

    def _read_singly(self, block: Region, rows: Indices, numbers: _Numbers) -> BadFrame | None:
        data = block.data
        for begin in range(0, len(rows), _SCALAR_ROWS):
            some = rows[begin : begin + _SCALAR_ROWS]
            places = zip(block.starts[some].tolist(), block.stops[some].tolist(), strict=True)
            payloads = [bytes(data[start:stop]) for start, stop in places]
            envelopes, bad = self._builder.build(Frames(0, payloads, some.tolist()))
            columns = UuidColumns.of(envelopes)
            read = _Numbers(columns.producer, columns.clock, columns.flags)
            numbers.put(some[: columns.rows], read)
            if bad is not None:
                return BadFrame(int(some[bad.position]), bad.error)
        return None


def _text_reader(adapter: Adapter[Any]) -> _TextReader | None:
    if not isinstance(adapter, JSONAdapter):
        return None
    # Another type of adapter may read UUIDs in its own way.
    if type(adapter).frame_uuid is not JSONAdapter[Any].frame_uuid:
        return None
    return _TextReader(*adapter.uuid_reader())


def _parse(texts: _Bytes) -> tuple[_Words, Indices | None]:
    """Parse rows of 36 bytes; return the words of those that are UUIDs, and which: all if None."""
    parsed = None
    if not bool((texts[:, 8:24:5] == _DASH).all()) or (raw := _unhex(texts)) is None:
        kinds = np.frombuffer(texts.tobytes().translate(_KINDS), np.uint8)
        is_uuid = (kinds.reshape(-1, TEXT_LENGTH) == _TEXT_KINDS).all(axis=1)
        parsed = np.flatnonzero(is_uuid)
        raw = _unhex(texts[parsed])
        assert raw is not None
    return _words(raw), parsed


def _unhex(texts: _Bytes) -> bytes | None:
    """Return the bytes of UUIDs whose dashes are in place, or None if not all are UUIDs."""
    runs = texts.view(_TEXTS)[:, 0]
    digits = np.empty(len(texts), _DIGITS)
    for name in _RUNS:
        digits[name] = runs[name]
    try:
        return unhexlify(digits.view(np.uint8).data)
    except ValueError:
        return None


def _words(raw: bytes) -> _Words:
    """Return the two halves of each UUID as numbers."""
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def _take_apart(words: _Words) -> _Numbers:
    high, low = words[0::2], words[1::2]
    clock = (high & _TIME_HIGH) << _52
    clock |= ((high >> _16) & _TIME_MIDDLE) << _36
    clock |= (high >> _32) << _4
    clock |= (low >> _58) & _COUNTER
    flags = ((low >> _48) & _FLAGS).astype(np.uint16)
    return _Numbers(low & _PRODUCER, clock, flags)


def _count_valid(words: _Words) -> int:
    """Return how many UUIDs precede the first that is neither of version 1 nor zero."""
    high, low = words[0::2], words[1::2]
    valid = ((high >> _12) & _NIBBLE == _VERSION) & (low >> _62 == _VARIANT)
    valid |= (high | low) == _ZERO
    return len(valid) if bool(valid.all()) else int(np.argmin(valid))
