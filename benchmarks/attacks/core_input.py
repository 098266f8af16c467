"""Content and documents that the core of messages takes apart: both forms must agree."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio.message import core
from gazette_aio.message.core import plain

if TYPE_CHECKING:
    from collections.abc import Callable

_UUID = b"00000010-0000-1000-8001-010203040506"
SEEDS = (
    b'{"_meta":{"uuid":"%s"},"a":"x","n":-1,"f":1.5e3,"b":true}\n' % _UUID,
    b'{"_meta":{"uuid":"%s"}}\n' % _UUID.replace(b"8001", b"8402"),
    b'{"a":"\\ud834\\udd1e\\u0000","_m\\u0065ta" : {"uuid": "%s"}, "l":[[],null,1]}\n' % _UUID,
    b'{"n":9223372036854775808,"f":-0.0E-400,"t":"2024-02-29T23:59:59.999Z","m":{"":{}}}\n',
    b'{"a":"\\ud800","n":1e5,"d":"123456789.012345678901","s":{"a":null,"a":"\xc3\xa9"}}\n',
    b'{"x":[{"y":[{"z":[[[[null]]]]}]}],"a":"\\"\\\\\\/\\b\\f\\n\\r\\t"}\n',
    b"\x66\x33\x93\x36\x12\x00\x00\x00\x0a\x10" + bytes(range(16)),
    b"garbage\x66\x33\x93\x36\x00\x00\x00\x00\x66\x33\x93",
)
_JSON: dict[str, Any] = {
    "prefix": b'{"_meta":{"uuid":"',
    "suffix": b'"',
    "path": [b"_meta", b"uuid"],
}
_FIELDS: list[Any] = [
    ("a", "text", [4], []),
    ("n", "signed", [8], []),
    ("f", "float", [8], []),
    ("b", "bool", [], []),
    ("t", "time", [6], []),
    ("d", "decimal", [16, 38, 12], []),
    ("s", "struct", [], [("a", "text", [8], [])]),
    ("l", "list", [], [("item", "unsigned", [2], [])]),
    ("m", "map", [], [("value", "text", [4], [])]),
]


class _Texts(msgspec.Struct):
    a: str | None = None
    b: bool | None = None


_decode = msgspec.json.Decoder(_Texts).decode


def _told(found: Any) -> Any:
    """Return what a step of work has come to."""
    if found is None or isinstance(found, tuple):
        return found
    stop = len(found)
    places = found.places(0, stop, (0, 1, 2))
    return places, found.payloads(0, stop), found.unusual(0, stop), found.columns()


def _steps(form: Any, data: bytes, framing: str, place: dict[str, Any]) -> list[Any]:
    """Return all that comes of content, whose replays are of the same content."""
    journal = form.Journal(
        framing, 0, states=[], max_frame_bytes=200, max_pending_bytes=150, **place
    )
    got: list[Any] = []
    is_again = False
    middle = len(data) // 2
    for chunk in (data[:middle], data[middle:], None):
        if chunk is None:
            journal.end()
        else:
            journal.feed(chunk)
        while True:
            found = journal.work(100)
            got.append((_told(found), journal.offset, journal.buffered, journal.pending_bytes))
            if found is None:
                if not is_again:
                    break
                is_again = False
                got.append((_told(journal.end_replay()),))
            elif isinstance(found, tuple):
                if found[0] == "odd":
                    journal.leave_out()
                elif found[0] == "replay":
                    is_again = True
                    begin, end = journal.begin_replay()
                    journal.feed_replay(data[begin:end])
                elif found[0] == "changed":
                    raise AssertionError(found)
    got.append(journal.checkpoint())
    offsets = [each[1] for each in got[:-1] if len(each) == 4]
    if any(after < before for before, after in pairwise(offsets)):
        raise AssertionError(f"offsets fall back: {offsets}")
    return got


def _content(framing: str, place: dict[str, Any]) -> Callable[[bytes], object]:
    def work(data: bytes) -> None:
        found = [_steps(form, data, framing, place) for form in _forms()]
        # Documents that one form leaves to an adapter, the other may read.
        if found[0] != found[-1] and not (place is _JSON and "odd" in str(found)):
            raise AssertionError(f"the forms differ: {found}")

    return work


def _forms() -> list[Any]:
    return [core, plain] if core.FORM == "native" else [plain]


def _documents(data: bytes) -> None:
    """Parse lines as documents: those that are refused are left to others, and no more are read."""
    lines = data.split(b"\n")[:1000]  # As many as one run of odd messages holds.
    log = core.Journal("frames", 0)
    log.feed_frames([(line, at, at + 1) for at, line in enumerate(lines)])
    log.work(1 << 20)
    batch = log.resolve([bytes(16)] * len(lines))
    assert isinstance(batch, core.Batch)
    for count, columns, refused in batch.documents(core.Schema(_FIELDS), 1):
        if count + len(refused) != len(lines) or any(column[0] != count for column in columns):
            raise AssertionError(f"{count} rows and {refused} of {len(lines)} documents")
        for at in set(range(len(lines))) - set(refused):
            _decode(lines[at])


def _stamped(data: bytes) -> None:
    lines = b"".join(line + b"\n" for line in data.split(b"\n"))
    for nulls in (False, True):
        if core.count_objects(lines, nulls) != plain.count_objects(lines, nulls):
            raise AssertionError("the forms differ in numbers of objects")
    stampers = [form.Stamper(b'{"u":"', b'",', bytes(6), 1) for form in (core, plain)]
    first, second = (stamper.line(data, 1 << 40, False) for stamper in stampers)
    if first != second:
        raise AssertionError(f"the forms differ: {first}, {second}")


DECODERS: dict[str, Callable[[bytes], object]] = {
    "lines in the core": _content("lines", _JSON),
    "fixed frames in the core": _content("fixed", {"prefix": b"\x0a\x10"}),
    "documents in the core": _documents,
    "stamps in the core": _stamped,
}
