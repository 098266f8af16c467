"""From frames to envelopes: the UUID of each message, read from its bytes."""

from __future__ import annotations

import struct
from binascii import unhexlify
from typing import TYPE_CHECKING, Any, NamedTuple

from gazette_aio.message.adapters.base import Adapter, FrameUUIDAdapter, PlacedAdapter, UUIDPlace
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.uuid import (
    Flags,
    ProducerID,
    get_clock,
    get_flags,
    get_producer_id,
    is_time_uuid,
    parse_uuid,
    uuid_from_bytes,
)
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from gazette_aio.message.framing import Frames

TEXT_LENGTH, RAW_LENGTH = 36, 16
_MAX_TAILS = 4096

_Tail = tuple[int, Flags, ProducerID]
_unpack_low = struct.Struct(">I").unpack


class BadFrame(NamedTuple):
    """A frame whose UUID couldn't be read."""

    position: int
    error: Exception


class EnvelopeBuilder:
    """Makes the envelopes of one journal's frames.

    Where the adapter knows of a usual place of the UUID, it's read from there. All of a UUID but
    the low 32 bits of its timestamp recurs in the messages of a producer for minutes: it's looked
    up, rather than parsed, which also tells that the UUID is well-formed.

    Args:
        journal: Name of the journal.
        adapter: Adapter of its messages.
        strict: Refuse UUIDs which aren't of version 1 and the RFC 4122 variant, nor zero.
    """

    def __init__(self, journal: str, adapter: Adapter[Any], *, strict: bool = False) -> None:
        self.journal = journal
        self._strict = strict
        self._adapter = adapter
        self.decodes = not isinstance(adapter, FrameUUIDAdapter)
        """Whether messages of envelopes are decoded already, and not the bytes of their frame."""
        self._frame_uuid: Callable[[bytes], UUID] | None = (
            adapter.frame_uuid if isinstance(adapter, FrameUUIDAdapter) else None
        )
        self._place: UUIDPlace | None = (
            adapter.uuid_place
            if isinstance(adapter, PlacedAdapter) and self._frame_uuid is not None
            else None
        )
        self._tails: dict[bytes, _Tail] = {}

    def build(self, frames: Frames) -> tuple[list[Envelope[Any]], BadFrame | None]:
        """Return the envelopes of frames, up to the first whose UUID can't be read."""
        place = self._place
        if place is None:
            return self._build_slowly(frames)
        if place.text:
            return self._build_text(frames, place)
        return self._build_raw(frames, place)

    def _build_text(
        self, frames: Frames, place: UUIDPlace
    ) -> tuple[list[Envelope[Any]], BadFrame | None]:
        envelopes: list[Envelope[Any]] = []
        add = envelopes.append
        journal, prefix, find_tail = self.journal, place.prefix, self._tails.get
        low_at = len(prefix)
        tail_at = low_at + 8
        tail_end = low_at + TEXT_LENGTH + len(place.suffix)
        begin = frames.begin
        for payload, end in zip(frames.payloads, frames.ends, strict=True):
            tail = find_tail(payload[tail_at:tail_end])
            if tail is not None and payload.startswith(prefix):
                try:
                    # Not int(…, 16), which accepts more than digits.
                    low = _unpack_low(unhexlify(payload[low_at:tail_at]))[0]
                except ValueError:
                    tail = None
                else:
                    high, flags, producer = tail
                    add(Envelope(journal, begin, end, low << 4 | high, flags, producer, payload))
            else:
                tail = None
            if tail is None:
                try:
                    add(self._build_one(payload, begin, end))
                except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                    return envelopes, BadFrame(len(envelopes), error)
            begin = end
        return envelopes, None

    def _build_raw(
        self, frames: Frames, place: UUIDPlace
    ) -> tuple[list[Envelope[Any]], BadFrame | None]:
        envelopes: list[Envelope[Any]] = []
        add = envelopes.append
        journal, prefix, find_tail = self.journal, place.prefix, self._tails.get
        low_at = len(prefix)
        tail_at = low_at + 4
        tail_end = low_at + RAW_LENGTH
        begin = frames.begin
        for payload, end in zip(frames.payloads, frames.ends, strict=True):
            tail = find_tail(payload[tail_at:tail_end])
            if tail is not None and payload.startswith(prefix):
                high, flags, producer = tail
                low = _unpack_low(payload[low_at:tail_at])[0]
                add(Envelope(journal, begin, end, low << 4 | high, flags, producer, payload))
            else:
                try:
                    add(self._build_one(payload, begin, end))
                except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                    return envelopes, BadFrame(len(envelopes), error)
            begin = end
        return envelopes, None

    def _build_slowly(self, frames: Frames) -> tuple[list[Envelope[Any]], BadFrame | None]:
        envelopes: list[Envelope[Any]] = []
        begin = frames.begin
        for payload, end in zip(frames.payloads, frames.ends, strict=True):
            try:
                envelopes.append(self._build_one(payload, begin, end))
            except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                return envelopes, BadFrame(len(envelopes), error)
            begin = end
        return envelopes, None

    def _build_one(self, payload: bytes, begin: int, end: int) -> Envelope[Any]:
        message: Any = payload
        uuid = self._learn(payload)
        if uuid is None:
            if self._frame_uuid is not None:
                uuid = self._frame_uuid(payload)
            else:
                message = self._adapter.decode(payload)
                uuid = self._adapter.uuid(message)
        is_time = is_time_uuid(uuid)
        if self._strict and not is_time:
            raise ValidationError(f"UUID {uuid} isn't of version 1")
        return Envelope(
            self.journal,
            begin,
            end,
            get_clock(uuid),
            get_flags(uuid),
            get_producer_id(uuid),
            message,
            None if is_time and uuid.int else uuid,
        )

    def _learn(self, payload: bytes) -> UUID | None:
        """Return the UUID at its usual place, if it's there, and learn its tail."""
        place = self._place
        if place is None or not payload.startswith(place.prefix):
            return None
        begin = len(place.prefix)
        end = begin + (TEXT_LENGTH if place.text else RAW_LENGTH)
        if len(payload) < end or not payload.startswith(place.suffix, end):
            return None
        try:
            raw = payload[begin:end]
            uuid = parse_uuid(raw) if place.text else uuid_from_bytes(raw)
        except ValidationError:
            return None
        if uuid.int and is_time_uuid(uuid):
            if len(self._tails) >= _MAX_TAILS:
                self._tails.clear()
            clock = get_clock(uuid)
            high = clock & ~(0xFFFFFFFF << 4)
            tail_at = begin + (8 if place.text else 4)
            tail = payload[tail_at : end + len(place.suffix)]
            self._tails[tail] = high, get_flags(uuid), get_producer_id(uuid)
        return uuid
