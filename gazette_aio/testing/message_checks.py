"""Conformance checks of framings and adapters that users write, and of streams of messages."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gazette_aio.message.adapters.base import (
    FrameUUIDAdapter,
    SplittingAdapter,
)
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES, Frame, Framing
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    build_uuid,
    new_producer_id,
)
from gazette_aio.protocol.errors import GazetteError, UnexpectedEOFError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from gazette_aio.message import Adapter, Decoder, Envelope

T = TypeVar("T")

_OFFSET: Final = 1_000
_SHUFFLES: Final = 20
_GARBAGE_BYTES: Final = 2_000
_CLOCK: Final = 0x1EB_0000_0000_0000_0


def check_framing(framing: Framing, messages: Sequence[bytes]) -> None:
    """Check that a framing keeps the promises of `Framing` to readers and publishers.

    Checked are: frames are the messages, and adjacent in the journal; frames don't depend on the
    chunks of content; decoding continues after an incomplete frame, a jump of the offset and a
    frame that is too large; decoding of content without frames ends; and declarations such as
    `suffix` hold.

    Args:
        framing: The framing.
        messages: Encoded messages, as an adapter returns them: at least two, of different lengths.

    Raises:
        AssertionError: The framing breaks a promise, which the text names.
    """
    assert len({len(message) for message in messages}) > 1, "give messages of different lengths"
    frames = [framing.encode(message) for message in messages]
    _check_declarations(framing, messages, frames)
    content = b"".join(frames)
    whole = _decoded(framing, [content])
    assert [frame.payload for frame in whole] == list(messages), (
        "frames aren't the messages that were encoded"
    )
    ends = [frame.end for frame in whole]
    assert [frame.begin for frame in whole] == [_OFFSET, *ends[:-1]], "frames aren't contiguous"
    assert ends[-1] == _OFFSET + len(content), "the last frame doesn't end with the content"
    _check_chunks(framing, content, whole)
    _check_ends(framing, max(frames, key=len))
    _check_jump(framing, frames, whole)
    _check_limit(framing, messages, whole, content)
    _check_garbage(framing)


def _check_declarations(
    framing: Framing, messages: Sequence[bytes], frames: Sequence[bytes]
) -> None:
    assert framing.content_type, "a framing needs a content_type"
    for message, frame in zip(messages, frames, strict=True):
        if framing.suffix:
            assert frame == message + framing.suffix, "a frame isn't its message and `suffix`"
        if framing.is_lines:
            assert frame.find(b"\n") == len(frame) - 1, "`is_lines`, but a frame isn't a line"
    if framing.encodes_any:
        for any_bytes in (b"", b"\n", bytes(range(256)), *frames):
            framing.encode(any_bytes)


def _decoded(framing: Framing, chunks: Iterable[bytes]) -> list[Frame]:
    decoder = framing.decoder(_OFFSET)
    found: list[Frame] = []
    for chunk in chunks:
        decoder.feed(chunk)
        found += _ready(decoder)
    decoder.end()
    assert decoder.next_frame() is None, "a frame appears at the end of content"
    return found


def _ready(decoder: Decoder) -> list[Frame]:
    found: list[Frame] = []
    while (frame := decoder.next_frame()) is not None:
        assert decoder.offset == frame.end, "`offset` isn't that of the next frame"
        found.append(frame)
    return found


def _check_chunks(framing: Framing, content: bytes, whole: list[Frame]) -> None:
    single = [content[at : at + 1] for at in range(len(content))]
    assert _decoded(framing, single) == whole, "frames differ if content comes byte by byte"
    rng = random.Random(1)  # noqa: S311 - The same cases each time.
    for _ in range(_SHUFFLES):
        cuts = sorted(rng.choices(range(len(content) + 1), k=3))
        pairs = zip([0, *cuts], [*cuts, len(content)], strict=True)
        chunks = [content[begin:end] for begin, end in pairs]
        assert _decoded(framing, chunks) == whole, "frames differ by the chunks of content"
    decoder = framing.decoder(_OFFSET)
    decoder.feed(content)
    first = decoder.next_frame()
    run = decoder.frames()
    assert first == whole[0], "the first frame differs if all content comes at once"
    assert run is not None, "frames() lacks frames of next_frame()"
    runs = [
        Frame(run.begin_of(index), end, run.payloads[index]) for index, end in enumerate(run.ends)
    ]
    assert runs == whole[1:], "frames() doesn't return the frames of next_frame()"


def _check_ends(framing: Framing, frame: bytes) -> None:
    decoder = framing.decoder(_OFFSET)
    decoder.feed(frame[:-1])
    assert decoder.next_frame() is None, "a frame is returned before its last byte"
    assert decoder.buffered == len(frame) - 1, "`buffered` isn't the length of the partial frame"
    decoder.end()
    for _ in range(2):
        assert isinstance(_error(decoder), UnexpectedEOFError), (
            "content that ends within a frame doesn't raise UnexpectedEOFError, each time"
        )
    decoder.feed(frame[-1:])
    assert len(_ready(decoder)) == 1, "a frame isn't continued after end()"


def _check_jump(framing: Framing, frames: Sequence[bytes], whole: list[Frame]) -> None:
    decoder = framing.decoder(0)
    decoder.feed(frames[0][:-1])
    assert decoder.next_frame() is None
    discarded = decoder.jump(_OFFSET)
    assert discarded == len(frames[0]) - 1, "jump() doesn't return the bytes that it discards"
    assert decoder.offset == _OFFSET, "jump() doesn't continue at the offset"
    decoder.feed(b"".join(frames))
    assert _ready(decoder) == whole, "frames after jump() differ"


def _check_limit(
    framing: Framing, messages: Sequence[bytes], whole: list[Frame], content: bytes
) -> None:
    longest = max(frame.end - frame.begin for frame in whole)
    shorter = [frame for frame in whole if frame.end - frame.begin < longest]
    decoder = framing.decoder(_OFFSET, max_frame_bytes=longest - 1)
    decoder.feed(content)
    decoder.end()
    found: list[Frame] = []
    refused = 0
    for _ in range(2 * len(messages) + 2):
        try:
            frame = decoder.next_frame()
        except GazetteError:
            refused += 1
            continue
        if frame is None:
            break
        found.append(frame)
    assert refused, "a frame beyond max_frame_bytes isn't refused"
    assert found == shorter, "frames around one that is too large are lost"


def _check_garbage(framing: Framing) -> None:
    rng = random.Random(2)  # noqa: S311 - The same cases each time.
    decoder = framing.decoder(_OFFSET, max_frame_bytes=100)
    decoder.feed(rng.randbytes(_GARBAGE_BYTES))
    at = decoder.offset
    for _ in range(_GARBAGE_BYTES + 1):
        try:
            if decoder.next_frame() is None:
                return
        except GazetteError:
            pass
        assert decoder.offset >= at, "`offset` goes back"
        at = decoder.offset
    raise AssertionError("content without frames never comes to an end")


def _error(decoder: Decoder) -> BaseException | None:
    try:
        decoder.next_frame()
    except GazetteError as error:
        return error
    return None


def check_adapter(
    adapter: Adapter[T],
    messages: Sequence[T],
    *,
    framing: Framing | None = None,
    equal: Callable[[T, T], bool] | None = None,
) -> None:
    """Check that an adapter keeps the promises of `Adapter` to readers and publishers.

    Checked are: decoded messages equal encoded messages, and have the same UUID; encoding doesn't
    modify messages; acknowledgements have their UUID; frames of `framing` can hold the messages;
    and the optional protocols `FrameUUIDAdapter` and `SplittingAdapter`, if the
    adapter implements them, give the same bytes.

    Args:
        adapter: The adapter.
        messages: Messages of the adapter's type: at least one.
        framing: Framing of the messages' journals; None skips its check.
        equal: Returns whether a decoded message equals the encoded message; by default, both must
            encode to the same bytes.

    Raises:
        AssertionError: The adapter breaks a promise, which the text names.
    """
    assert messages, "give at least one message"
    producer = new_producer_id()
    for number, message in enumerate(messages):
        for flags in (OUTSIDE_TXN, CONTINUE_TXN):
            uuid = build_uuid(producer, _CLOCK + number, flags)
            _check_message(adapter, message, uuid, framing, equal)
    uuid = build_uuid(producer, _CLOCK, ACK_TXN)
    encoded = adapter.acknowledgement(uuid)
    _check_uuid(adapter, encoded, uuid, "an acknowledgement")
    _check_framed(framing, encoded)
    _check_stamping(adapter, messages, producer)


def _check_message(
    adapter: Adapter[T],
    message: T,
    uuid: UUID,
    framing: Framing | None,
    equal: Callable[[T, T], bool] | None,
) -> None:
    encoded = adapter.encode(copy.deepcopy(message), uuid)
    assert type(encoded) is bytes, "encode() doesn't return bytes"
    adapter.encode(message, uuid)
    assert adapter.encode(message, uuid) == encoded, "encode() modifies the message"
    _check_framed(framing, encoded)
    _check_uuid(adapter, encoded, uuid, "a message")
    decoded = adapter.decode(encoded)
    same = adapter.encode(decoded, uuid) == encoded if equal is None else equal(decoded, message)
    assert same, "a message that is decoded isn't the one that was encoded"


def _check_uuid(adapter: Adapter[Any], encoded: bytes, uuid: UUID, what: str) -> None:
    if isinstance(adapter, FrameUUIDAdapter):
        assert adapter.frame_uuid(encoded) == uuid, f"frame_uuid() of {what} isn't its UUID"
        if what == "an acknowledgement":
            return  # It need not be decoded.
    found = adapter.uuid(adapter.decode(encoded))
    assert found == uuid, f"{what} doesn't have the UUID that it was stamped with"


def _check_framed(framing: Framing | None, encoded: bytes) -> None:
    if framing is None:
        return
    decoder = framing.decoder(max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
    decoder.feed(framing.encode(encoded))
    frame = decoder.next_frame()
    assert frame is not None, "a framed message isn't a frame"
    assert frame.payload == encoded, "the framing changes a message"


def _check_stamping(adapter: Adapter[Any], messages: Sequence[Any], producer: bytes) -> None:
    uuids = [build_uuid(producer, _CLOCK + at, CONTINUE_TXN) for at in range(len(messages))]
    encoded = [adapter.encode(*pair) for pair in zip(messages, uuids, strict=True)]
    kinds: Any = adapter
    if isinstance(adapter, SplittingAdapter):
        heads, between, rests = kinds.split(messages)
        for at, uuid in enumerate(uuids):
            head = heads if isinstance(heads, bytes) else heads[at]
            stamp = str(uuid).encode() if kinds.uuid_is_text else uuid.bytes
            joined = head + stamp + between + rests[at]
            assert joined == encoded[at], "split() doesn't return the bytes of encode()"


def check_stream(envelopes: Iterable[Envelope[Any]]) -> None:
    """Check that each message of a stream occurs once, and in the order of its producer.

    Use this for the output of a pipeline, as a `ReadCommittedIter` returns it. Acknowledgements and
    messages without a UUID are ignored.

    Args:
        envelopes: Messages of any number of journals, in the order of reading.

    Raises:
        AssertionError: A message occurs twice, or before an earlier message of its producer.
    """
    latest: dict[tuple[str, bytes], Envelope[Any]] = {}
    for envelope in envelopes:
        where = f"{envelope.journal}[{envelope.begin}:{envelope.end}]"
        assert envelope.begin < envelope.end, f"the message at {where} has no bytes"
        if not envelope.clock or envelope.flags == ACK_TXN:
            continue
        key = (envelope.journal, bytes(envelope.producer))
        if (earlier := latest.get(key)) is not None:
            before = f"{earlier.journal}[{earlier.begin}:{earlier.end}]"
            assert envelope.clock != earlier.clock, (
                f"the message at {where} is that at {before} once more"
            )
            assert envelope.clock > earlier.clock, (
                f"the message at {where} follows that at {before}, but is older"
            )
            assert envelope.begin >= earlier.end, (
                f"the message at {where} follows that at {before}, which is after it"
            )
        latest[key] = envelope
