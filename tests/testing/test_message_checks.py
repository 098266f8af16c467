"""Checks of framings, adapters and streams: they pass what's right, and name what's wrong."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import msgspec
import pytest

from gazette_aio.message import (
    ACK_TXN,
    OUTSIDE_TXN,
    CSVFraming,
    Envelope,
    FixedFraming,
    Flags,
    NDJSONFraming,
    ProducerID,
    csv_adapter,
    json_adapter,
    raw_adapter,
)
from gazette_aio.message.framing.ndjson import LineDecoder
from gazette_aio.testing import check_adapter, check_framing, check_stream
from tests.message.framing.own_framings import SemicolonFraming

MESSAGES = [b'{"a":1}', b"{}", b"[1,2,3]"]


@pytest.mark.parametrize(
    ("framing", "messages"),
    [
        (NDJSONFraming(), MESSAGES),
        (FixedFraming(), [b"", b"\x00\n", b"abc"]),
        (CSVFraming(), [b"a,b", b'"c\n",defg', b"1,2"]),
    ],
)
def test_framings_of_the_package(framing, messages):
    check_framing(framing, messages)


def changed(**members: Any) -> NDJSONFraming:
    """Return a framing of lines whose decoder has other members."""
    kind = type("Changed", (LineDecoder,), members)

    class Framing(NDJSONFraming):
        def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
            return kind(offset, max_frame_bytes=max_frame_bytes)

    return Framing()


def without_end(decoder):
    decoder._ended = False
    return LineDecoder.next_frame(decoder)


def one_by_one(decoder):
    frames = LineDecoder.frames(decoder)
    return None if frames is None else frames.slice(0, 1)


def stripped(decoder):
    frame = LineDecoder.next_frame(decoder)
    return None if frame is None else frame._replace(payload=frame.payload.strip(b"{}"))


def shifted(decoder):
    frame = LineDecoder.next_frame(decoder)
    return None if frame is None else frame._replace(begin=frame.begin + 1)


def by_chunk(decoder, chunk):
    LineDecoder.feed(decoder, chunk if chunk.endswith(b"\n") else chunk + b"\n")


def unbounded(decoder, *args, **kwargs):
    LineDecoder.__init__(decoder, *args)


def stay(decoder, offset):
    return 0


class Declaring(NDJSONFraming):
    """Frames of lines that declare something else."""

    def __init__(self, **declared: Any) -> None:
        vars(self).update(declared)


@pytest.mark.parametrize(
    ("framing", "text"),
    [
        (changed(next_frame=stripped), "aren't the messages"),
        (changed(next_frame=shifted), "aren't contiguous"),
        (changed(next_frame=without_end), "doesn't raise UnexpectedEOFError"),
        (changed(frames=one_by_one), r"frames\(\) doesn't return"),
        (changed(feed=by_chunk), "byte by byte"),
        (changed(buffered=0), "`buffered`"),
        (changed(offset=3), "`offset`"),
        (changed(jump=stay), r"jump\(\) doesn't return"),
        (changed(__init__=unbounded), "beyond max_frame_bytes"),
        (Declaring(suffix=b";"), "`suffix`"),
        (Declaring(content_type=""), "content_type"),
    ],
)
def test_framings_that_break_a_promise(framing, text):
    with pytest.raises(AssertionError, match=text):
        check_framing(framing, MESSAGES)


def test_declarations_of_lines():
    framing = SemicolonFraming()
    framing.is_lines = True
    with pytest.raises(AssertionError, match="isn't a line"):
        check_framing(framing, MESSAGES)
    declared = Declaring(encodes_any=True)
    with pytest.raises(ValueError, match="one line"):
        check_framing(declared, MESSAGES)


def test_messages_of_one_length():
    with pytest.raises(AssertionError, match="different lengths"):
        check_framing(NDJSONFraming(), [b"a", b"b"])


class Meta(msgspec.Struct):
    uuid: str = ""


class Order(msgspec.Struct):
    id: int = 0
    _meta: Meta | None = None


@pytest.mark.parametrize(
    ("adapter", "messages", "framing"),
    [
        (json_adapter(), [{"a": 1}, {}], NDJSONFraming()),
        (json_adapter(Order), [Order(1), Order(2)], NDJSONFraming()),
        (csv_adapter(), [["", "a", "b"], ["", "1", "2"]], CSVFraming()),
        (raw_adapter("_meta.uuid"), [b'{"a":1}'], NDJSONFraming()),
    ],
)
def test_adapters_of_the_package(adapter, messages, framing):
    check_adapter(adapter, messages, framing=framing)


NO_UUID = UUID(int=0)


@dataclasses.dataclass
class Text:
    text: str
    uuid: UUID = NO_UUID


class TextAdapter:
    """An adapter as users write them."""

    def decode(self, frame: bytes) -> Text:
        uuid, _, text = frame.decode().partition(" ")
        return Text(text, UUID(uuid))

    def encode(self, message: Text, uuid: UUID) -> bytes:
        return f"{uuid} {message.text}".encode()

    def uuid(self, message: Text) -> UUID:
        return message.uuid

    def acknowledgement(self, uuid: UUID) -> bytes:
        return f"{uuid} ".encode()


class Mutating(TextAdapter):
    def encode(self, message, uuid):
        message.text += "!"
        return super().encode(message, uuid)


class Forgetting(TextAdapter):
    def decode(self, frame):
        return dataclasses.replace(super().decode(frame), text="")


class Unstamped(TextAdapter):
    def acknowledgement(self, uuid):
        return super().acknowledgement(UUID(int=0))


class TwoLines(TextAdapter):
    def encode(self, message, uuid):
        return super().encode(message, uuid) + b"\n"


class Array(TextAdapter):
    def encode(self, message, uuid):
        return bytearray(super().encode(message, uuid))


class Peeking(TextAdapter):
    def frame_uuid(self, frame):
        return UUID(int=1)


class Splitting(TextAdapter):
    uuid_is_text = True

    def split(self, messages):
        return b"", b" ", [b"" for _ in messages]


def test_adapters_of_users():
    check_adapter(TextAdapter(), [Text("a"), Text("b c")], framing=NDJSONFraming())
    check_adapter(Forgetting(), [Text("a")], equal=lambda a, b: True)


@pytest.mark.parametrize(
    ("adapter", "text"),
    [
        (Mutating(), "modifies"),
        (Forgetting(), "isn't the one that was encoded"),
        (Unstamped(), "an acknowledgement doesn't have the UUID"),
        (Array(), "return bytes"),
        (Peeking(), "frame_uuid"),
        (Splitting(), "split"),
        (raw_adapter(), "UUID"),
    ],
)
def test_adapters_that_break_a_promise(adapter, text):
    messages = [b"a"] if not isinstance(adapter, TextAdapter) else [Text("a")]
    with pytest.raises(AssertionError, match=text):
        check_adapter(adapter, messages)


def test_a_message_that_no_frame_holds():
    with pytest.raises(ValueError, match="one line"):
        check_adapter(TwoLines(), [Text("a")], framing=NDJSONFraming())


def envelope(
    begin: int, clock: int, flags: Flags = OUTSIDE_TXN, producer: bytes = b"\1" * 6
) -> Envelope[None]:
    return Envelope("a/journal", begin, begin + 1, clock, flags, ProducerID(producer), None)


def test_streams():
    others = b"\3" * 6
    check_stream([envelope(0, 1), envelope(5, 2), envelope(1, 1, producer=others), envelope(6, 3)])
    check_stream([envelope(5, 2), envelope(6, 2, ACK_TXN), envelope(0, 0), envelope(1, 0)])
    with pytest.raises(AssertionError, match=r"a/journal\[1:2\] is that at a/journal\[0:1\] once"):
        check_stream([envelope(0, 1), envelope(1, 1)])
    with pytest.raises(AssertionError, match="older"):
        check_stream([envelope(0, 2), envelope(1, 1)])
    with pytest.raises(AssertionError, match="which is after it"):
        check_stream([envelope(5, 1), envelope(1, 2)])
