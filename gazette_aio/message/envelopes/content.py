"""Content of one journal: its core, and what only Python can do for the core.

The core splits and sequences content, and returns batches of messages to deliver. Here UUIDs are
read that the core can't read for certain, content of other framings is split, and errors get words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from gazette_aio.message.adapters.base import FrameUUIDAdapter, PlacedAdapter
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.core import Journal
from gazette_aio.message.framing.base import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.framing.refusals import refused
from gazette_aio.message.uuid import ZERO_UUID, is_time_uuid
from gazette_aio.protocol.errors import (
    FramingError,
    ReplayError,
    UnexpectedEOFError,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.core import Batch
    from gazette_aio.message.core.rules import State
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.framing import Decoder, Frames

DEFAULT_PENDING_BYTES = 64 << 20
"""Limit of the pending messages that are retained."""


class Refusal(NamedTuple):
    """Bytes of a journal that are no message."""

    cause: Exception
    """The reason."""
    begin: int
    end: int
    kind: str
    """Kind of the FramingError."""
    content: bytes | None = None
    """The frame of the bytes; None if they aren't a frame."""
    cls: type[FramingError] = FramingError
    """Class of the FramingError."""

    def error(self, journal: str) -> FramingError:
        """Return the error to raise."""
        text = f"{journal} at offset {self.begin}: {self.cause}"
        error = self.cls(text, journal=journal, begin=self.begin, end=self.end, kind=self.kind)
        error.__cause__ = self.cause
        return error


Found: TypeAlias = "Batch | Refusal | Literal['progress'] | None"


def uuid_of(adapter: Adapter[Any], payload: bytes, *, strict: bool = False) -> UUID:
    """Return the UUID of a message, as its adapter reads it.

    Raises:
        ValidationError: It's malformed, or not of version 1 though `strict` is set.
        Exception: The message can't be decoded.
    """
    if isinstance(adapter, FrameUUIDAdapter):
        uuid = adapter.frame_uuid(payload)
    else:
        uuid = adapter.uuid(adapter.decode(payload))
    if strict and not is_time_uuid(uuid):
        raise ValidationError(f"UUID {uuid} isn't of version 1")
    return uuid


class JournalContent:
    """Content of one journal, from chunks to batches of messages in the order of their delivery.

    Args:
        journal_format: Format of the journal.
        offset: Offset to begin at.
        states: States of the producers at the offset, to deliver committed messages in commit
            order; or None to deliver all messages in journal order.
        entering: Whether pending messages before the offset are delivered if they commit.
        max_frame_bytes: Limit of the length of a message.
        max_pending_bytes: Limit of the pending messages that are retained.
        strict: Refuse UUIDs that are neither zero nor of version 1.
        lenient: Take messages whose UUID can't be read for messages without one.
        skip_acks: Leave acknowledgements out.
        skip_errors: Return messages before and after bytes that are no message together, and not in
            the order of the content.
        is_split: Whether messages are fed to the core itself, in place of content.
    """

    def __init__(
        self,
        journal_format: JournalFormat[Any],
        offset: int,
        *,
        states: Iterable[State] | None = None,
        entering: bool = True,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_pending_bytes: int = DEFAULT_PENDING_BYTES,
        strict: bool = False,
        lenient: bool = False,
        skip_acks: bool = False,
        skip_errors: bool = False,
        is_split: bool = False,
    ) -> None:
        self.format = journal_format
        self.journal: str = journal_format.journal
        self.begun: int = offset
        """Offset at which the content began."""
        self.refused_through: int = offset
        """Offset after the last bytes that were refused."""
        self.remarks: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Remarks of the core about misbehaving producers that were logged."""
        self.replay: ContentReplay | None = None
        """The replay that the next commit needs, or that is in progress."""
        self._adapter = journal_format.adapter
        self._max_frame_bytes = max_frame_bytes
        self._strict = strict
        self._lenient = lenient
        self._frame_uuid = (
            self._adapter.frame_uuid if isinstance(self._adapter, FrameUUIDAdapter) else None
        )
        self._decoder: Decoder | None = None
        # What is refused after a restart mustn't depend on the record that happens to be first.
        self._framing = framing = journal_format.framing.for_ranges()
        if framing.splits == "frames":
            self._decoder = self.decoder_at(offset)
        prefix, suffix, path = _uuid_place(self._adapter)
        self.core: Journal = Journal(
            "frames" if is_split else framing.splits,
            offset,
            prefix=prefix,
            suffix=suffix,
            path=path,
            states=None if states is None else list(states),
            entering=entering,
            max_frame_bytes=max_frame_bytes,
            max_pending_bytes=max_pending_bytes,
            strict=strict,
            skip_acks=skip_acks,
            skip_errors=skip_errors,
        )
        self.through = offset
        """Offset after the content so far."""
        self._is_torn = False  # Whether the end of content within a message was refused.
        self._odd: Sequence[bytes] = ()  # Messages that are next, after one was left out.

    @property
    def offset(self) -> int:
        """Offset of the next message to process."""
        core, decoder = self.core, self._decoder
        return core.offset if decoder is None or core.buffered else decoder.offset

    @property
    def buffered(self) -> int:
        """Bytes of content that aren't processed."""
        return self.through - self.offset

    def decoder_at(self, offset: int) -> Decoder:
        """Return a decoder of the journal's frames."""
        return self._framing.decoder(offset, max_frame_bytes=self._max_frame_bytes)

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take content from `begin` on, and return the number of bytes discarded before a gap."""
        discarded = 0 if begin == self.through else self.jump(begin)
        (self._decoder or self.core).feed(chunk)
        self._is_torn = False
        self.through = begin + len(chunk)
        return discarded

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes discarded."""
        self.through = offset
        return (self._decoder or self.core).jump(offset)

    def end(self) -> None:
        """Declare the end of content: a partial message is an error now."""
        (self._decoder or self.core).end()

    def begin_replay(self) -> tuple[int, int]:
        """Begin the replay that a commit needs, or begin it again, and return its range."""
        self._odd = ()
        return self.core.begin_replay()

    def read(self, limit_bytes: int) -> Found:
        """Process about so much content. All messages returned before must have been delivered.

        Returns:
            Messages to deliver; or bytes that are no message; or `progress`, if nothing is to be
            delivered so far; or None if more content is needed, or content of `replay`.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        replay = self.replay
        if replay is not None and not replay.is_open:
            return None
        found: Any = ("odd", self._odd) if self._odd else self.core.work(limit_bytes)
        if found is None:
            found = self._continue(limit_bytes)
        if found.__class__ is tuple and found[0] == "odd":
            found = self._resolve(found[1])
        if found is not None and found.__class__ in {tuple, Refusal}:
            found = self._translate(found)
        return cast("Found", found)

    def _continue(self, limit_bytes: int) -> Any:
        """Return what follows the content that the core has."""
        replay, decoder = self.replay, self._decoder
        if replay is not None:
            if replay.feed_frames():
                return self.core.work(limit_bytes)
            if not replay.has_ended:
                return None
            self.replay = None
            self._odd = ()
            return self.core.end_replay() or _PROGRESS
        if decoder is None:
            return None
        try:
            frames = decoder.frames()
        except FramingError as error:
            return Refusal(error, error.begin, error.end, error.kind, None, type(error))
        except UnexpectedEOFError as error:
            if self._is_torn:
                return None  # It was refused before.
            self._is_torn = True
            return Refusal(error, decoder.offset, decoder.offset, "unexpected_eof")
        if frames is None:
            return None
        self.core.feed_frames(places(frames))
        return self.core.work(limit_bytes)

    def _resolve(self, payloads: Sequence[bytes]) -> Any:
        """Continue with messages whose UUIDs only the adapter can read, up to a bad one."""
        uuids: list[bytes] = []
        for payload in payloads:
            try:
                uuids.append(self._uuid_of(payload))
            except Exception as error:  # noqa: BLE001 - returned after the messages before it.
                if self._lenient:
                    uuids.append(ZERO_UUID.bytes)
                    continue
                if uuids:
                    break
                self._odd = payloads[1:]
                kind = "uuid" if isinstance(error, ValidationError) else "decode"
                return Refusal(error, *self.core.leave_out(), kind, payload)
        self._odd = ()
        return self.core.resolve(uuids)

    def _uuid_of(self, payload: bytes) -> bytes:
        if self._frame_uuid is not None and not self._strict:
            return self._frame_uuid(payload).bytes
        return uuid_of(self._adapter, payload, strict=self._strict).bytes

    def _translate(self, found: Any) -> Found:
        match found:
            case ("refused", kind, begin, end, size):
                form = self.format.framing.splits
                cause = refused(form, kind, begin, end, size, self._max_frame_bytes)
                cls = type(cause) if isinstance(cause, FramingError) else FramingError
                found = Refusal(cause, begin, end, kind, None, cls)
            case ("replay", _, _):
                self.core.settle_all()
                self.replay = ContentReplay(self)
                return None
            case ("changed", text):
                raise ReplayError(text)
            case ("odd", _):
                return "progress"
            case _:
                pass
        self.core.settle_all()
        if not isinstance(found, Refusal) or self.replay is not None:
            # Bytes of a replay were refused when they were first read.
            return "progress"
        self.refused_through = found.end
        return found


_PROGRESS = ("progress",)


class ContentReplay:
    """Content of a transaction that outgrew the retained messages, and is read again."""

    def __init__(self, content: JournalContent) -> None:
        self._content = content
        self._at = 0
        self._decoder: Decoder | None = None
        self.is_open: bool = False
        """Whether content is expected."""
        self.has_ended: bool = False
        """Whether all content was fed."""

    def open(self) -> tuple[int, int] | None:
        """Begin, and return the range to read; or None if the replay has begun."""
        if self.is_open:
            return None
        content = self._content
        begin, end = content.begin_replay()
        self.is_open, self.has_ended, self._at = True, False, begin
        if content.format.framing.splits == "frames":
            self._decoder = content.decoder_at(begin)
        return begin, end

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, perhaps after a gap."""
        core, decoder = self._content.core, self._decoder
        if begin != self._at:
            if decoder is None:
                core.jump_replay(begin)
            else:
                decoder.jump(begin)
        if decoder is None:
            core.feed_replay(chunk)
        else:
            decoder.feed(chunk)
        self._at = begin + len(chunk)

    def feed_frames(self) -> bool:
        """Pass the next frames to the core, if the core doesn't split content itself."""
        while self._decoder is not None:
            try:
                frames = self._decoder.frames()
            except FramingError:
                continue  # The error was raised when the frame was first read.
            if frames is None:
                break
            self._content.core.feed_replay_frames(places(frames))
            return True
        return False

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range.

        A partial frame at the end is garbage before an acknowledgement, and was skipped when first
        read.
        """
        self.has_ended = True

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""
        self.is_open = False


def places(frames: Frames) -> list[tuple[bytes, int, int]]:
    """Return the payload, begin and end of each frame."""
    begins = (frames.begin, *frames.ends)
    return list(zip(frames.payloads, begins, frames.ends, strict=False))


def _uuid_place(
    adapter: Adapter[Any],
) -> tuple[bytes | None, bytes | None, list[bytes] | None]:
    """Return where the core finds UUIDs: prefix, suffix and path, as it takes them."""
    place = adapter.uuid_place if isinstance(adapter, PlacedAdapter) else None
    if place is None or (place.suffix and not place.text):
        return None, None, None
    if not place.text:
        return (place.prefix if isinstance(adapter, FrameUUIDAdapter) else None), None, None
    path: list[bytes] | None = None
    kind, usual = cast("Any", type(adapter)), cast("Any", JSONAdapter)
    if isinstance(adapter, JSONAdapter) and kind.frame_uuid is usual.frame_uuid:
        path = [name.encode() for name in adapter.uuid_path]
    return place.prefix, place.suffix, path
