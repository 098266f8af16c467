"""Forms in which live tails show content: as text, or message by message with their states."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.console.message_uuids import text_of, uuid_reader
from gazette_aio.console.states import MessageStates, Settled
from gazette_aio.message.adapters.json_types import DEFAULT_UUID_PATH
from gazette_aio.message.framing.registry import find_framing
from gazette_aio.message.uuid import clock_as_time, get_clock, get_producer_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.message.framing import Framing

_FRAME_BYTES: Final = 4 << 20
_EVENT_MESSAGES: Final = 32
_WITHIN_CHARACTERS: Final = bytes(range(0x80, 0xC0))
_SHOWN_BYTES: Final = 16 << 10


class TailForm(Protocol):
    """Converts content to events."""

    recent_bytes: int
    """Bytes before the write head at which a tail begins."""

    def begin(self, offset: int, *, is_whole: bool = False) -> None:
        """Set the offset of the next content, which doesn't follow the previous content.

        It may begin within a message, unless it `is_whole`, as after a hole of the journal: the
        content after it begins with an append.
        """
        ...

    def events(self, begin: int, content: bytes) -> Iterator[bytes]:
        """Yield the events of content. Each event takes a bounded time."""
        ...


class TextForm:
    """Content as text."""

    recent_bytes = 4 << 10

    def __init__(self) -> None:
        # Characters may be cut by the ends of events.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within = False

    def begin(self, offset: int, *, is_whole: bool = False) -> None:
        """Drop the incomplete character of the previous content."""
        self._decoder.reset()
        self._is_within = offset > 0 and not is_whole

    def events(self, begin: int, content: bytes) -> Iterator[bytes]:
        """Yield one event. Content that begins within a character loses its rest."""
        end = begin + len(content)
        if self._is_within:
            content = content[:3].lstrip(_WITHIN_CHARACTERS) + content[3:]
            begin, self._is_within = end - len(content), False
        text = self._decoder.decode(content)
        yield tail_event(end, {"begin": str(begin), "end": str(end), "text": text})


class MessageForm:
    """Content message by message, with their states.

    Args:
        journal: Spec of the journal.
        uuid_path: Members that lead to the UUID of a JSON document; empty for the usual one.
        fresh: Offsets of messages to send; None for all. Of other messages, only states are sent.

    Raises:
        ValidationError: The journal has no framing, or messages without UUIDs.
        ConfigurationError: The path isn't valid.
    """

    recent_bytes = 32 << 10

    def __init__(
        self, journal: pb.JournalSpec, uuid_path: str = "", fresh: range | None = None
    ) -> None:
        self._fresh = fresh
        values = [each.value for each in journal.labels.labels if each.name == pb.CONTENT_TYPE]
        content_type = values[0] if values else ""
        framing = find_framing(content_type)
        if framing is None:
            raise pb.ValidationError(
                f"the journal's {pb.CONTENT_TYPE!r} label names no framing of messages"
            )
        self._framing: Framing = framing
        self._uuid_of = uuid_reader(content_type, uuid_path or DEFAULT_UUID_PATH)
        self._states = MessageStates()
        self.begin(0)

    def begin(self, offset: int, *, is_whole: bool = False) -> None:
        """Search for the next message, unless content begins with one."""
        self._decoder = self._framing.decoder(offset, max_frame_bytes=_FRAME_BYTES)
        self._is_within = offset > 0 and not is_whole

    def events(self, begin: int, content: bytes) -> Iterator[bytes]:
        """Yield events of a few messages each."""
        self.feed(begin, content)
        shown: list[dict[str, Any]] = []
        settled: list[Settled] = []
        end = begin
        while (message := self.next_message(settled)) is not None:
            end = int(message["end"])
            at = int(message["begin"])
            if self._fresh is None or at in self._fresh:
                shown.append(message)
            else:
                settled.append(Settled(at, message["state"]))
            if len(shown) + len(settled) >= _EVENT_MESSAGES:
                yield _messages_event(end, shown, settled)
                shown, settled = [], []
        if shown or settled:
            yield _messages_event(end, shown, settled)

    def feed(self, begin: int, content: bytes) -> None:
        """Take the next content of the journal."""
        if self._is_within and self._framing.is_lines:
            end = begin + len(content)
            _, newline, content = content.partition(b"\n")
            if not newline:
                return
            self._decoder.jump(end - len(content))
            self._is_within = False
        self._decoder.feed(content)

    def next_message(self, settled: list[Settled]) -> dict[str, Any] | None:
        """Return the next message of the content so far, or None.

        Args:
            settled: Final states of earlier messages are added to it.

        Returns:
            The `state` is `unreadable` for bytes that aren't a message. The `producer` is its ID as
            hexadecimal digits, and the `time` that of the clock as ISO 8601; both are empty for
            messages without UUIDs. The `text` is the first bytes of the message, which has more
            if it `isCut`.
        """
        while True:
            try:
                frame = self._decoder.next_frame()
            except pb.FramingError as error:
                if self._is_within:
                    continue  # Of the message that content began within.
                return _unreadable(error.begin, error.end, str(error))
            if frame is None:
                return None
            self._is_within = False
            try:
                uuid = self._uuid_of(frame.payload)
            except Exception as error:  # noqa: BLE001 - A message may be anything.
                return _unreadable(frame.begin, frame.end, f"{error}: {_text(frame.payload)}")
            state, others = self._states.take(frame.begin, uuid)
            settled += others
            is_plain = state == "plain"
            return {
                "begin": str(frame.begin),
                "end": str(frame.end),
                "state": state,
                "producer": "" if is_plain else get_producer_id(uuid).hex(),
                "time": "" if is_plain else _time(get_clock(uuid)),
                "text": _text(frame.payload),
                "isCut": len(frame.payload) > _SHOWN_BYTES,
            }


def _time(clock: int) -> str:
    return clock_as_time(clock).isoformat(timespec="milliseconds")


def _text(payload: bytes) -> str:
    return text_of(payload, _SHOWN_BYTES)


def _unreadable(begin: int, end: int, text: str) -> dict[str, Any]:
    place = {"begin": str(begin), "end": str(end)}
    return {
        **place,
        "state": "unreadable",
        "producer": "",
        "time": "",
        "text": text,
        "isCut": False,
    }


def _messages_event(end: int, shown: list[dict[str, Any]], settled: list[Settled]) -> bytes:
    states = [(str(each.begin), each.state) for each in settled]
    return tail_event(end, {"messages": shown, "settled": states})


def tail_event(end: int, data: Any) -> bytes:
    """Return an event. Its data is one line of JSON, so that no content can end the event.

    Args:
        end: Offset after the content.
        data: Value of the event.
    """
    return b"id: %d\ndata: %b\n\n" % (end, msgspec.json.encode(data))


def problem_event(problem: str) -> bytes:
    """Return the event of a failure, which is the last one."""
    return b"data: %b\n\n" % msgspec.json.encode({"problem": problem})
