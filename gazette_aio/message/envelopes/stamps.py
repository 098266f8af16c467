"""Builder of envelopes of frames, which reads the UUID of each message from its bytes."""

from __future__ import annotations

import struct
from binascii import unhexlify
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gazette_aio.message.adapters.base import Adapter, FrameUUIDAdapter, PlacedAdapter, UUIDPlace
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
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

    from gazette_aio.message.envelopes.origin import Origin
    from gazette_aio.message.framing import Frames

_MAX_TAILS = 4096
UNIFORM_RUN = 32
"""Messages that a run of one producer has at least, or one less."""

_Tail = tuple[int, Flags, ProducerID]
_unpack_low = struct.Struct(">I").unpack


class BadFrame(NamedTuple):
    """A frame whose UUID, or message, can't be read."""

    position: int
    error: Exception

    @property
    def kind(self) -> str:
        """Kind of the FramingError to raise, if the UUID can't be read."""
        return "uuid" if isinstance(self.error, ValidationError) else "decode"


class EnvelopeBuilder:
    """Builds the envelopes of one journal's frames.

    A UUID is read from its usual place, if the adapter has one. All of a UUID but the low 32 bits
    of its timestamp recurs in the messages of a producer for minutes: it's looked up rather than
    parsed, and a UUID that is found is known to be well-formed.

    Args:
        journal: Name of the journal.
        adapter: Adapter of its messages.
        strict: Refuse UUIDs that are neither zero nor of version 1 and the RFC 4122 variant.
        origin: Origin of the envelopes.
    """

    def __init__(
        self,
        journal: str,
        adapter: Adapter[Any],
        *,
        strict: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self.journal = journal
        self._origin = origin
        self._strict = strict
        self._adapter = adapter
        self._frame_uuid: Callable[[bytes], UUID] | None = (
            adapter.frame_uuid if isinstance(adapter, FrameUUIDAdapter) else None
        )
        self._place: UUIDPlace | None = (
            adapter.uuid_place
            if isinstance(adapter, PlacedAdapter) and self._frame_uuid is not None
            else None
        )
        self._tails: dict[bytes, _Tail] = {}
        # Those of messages of transactions, by producer.
        self._transactional: dict[ProducerID, dict[bytes, _Tail]] = {}
        # Of the place: where the low 32 bits of the timestamp begin, and the tail behind them.
        # Without a place there are no tails, so that none is found.
        place = self._place or UUIDPlace(b"", b"", text=False)
        self._prefix = place.prefix
        self._low_at = len(place.prefix)
        self._tail_at = self._low_at + (8 if place.text else 4)
        self._tail_end = place.uuid_end + len(place.suffix)
        self._is_text = place.text
        self._head_of = itemgetter(slice(0, self._tail_at))
        self._tail_of = itemgetter(slice(self._tail_at, self._tail_end))
        self._stamp_of = itemgetter(slice(0, self._tail_end))

    def _cut_lows(self, payloads: list[bytes], tail: bytes = b"") -> list[bytes]:
        """Return the low bits of the first payloads that have the prefix, and `tail` if given."""
        prefix, end = self._prefix, self._tail_end if tail else self._tail_at
        stamps = b"".join(map(self._stamp_of if tail else self._head_of, payloads))
        if len(stamps) < len(payloads) * end:
            # One is too short. The stamps after it aren't aligned.
            short = next(at for at, each in enumerate(payloads) if len(each) < end)
            return self._cut_lows(payloads[:short], tail)
        # Hot: one search finds what is around all low bits.
        first, *lows = b"".join((tail, stamps, prefix)).split(tail + prefix)
        if first:
            return []  # The first payload hasn't the prefix; maybe none has.
        del lows[-1]  # It's what follows the last prefix.
        size = self._tail_at - self._low_at
        if set(map(len, lows)) == {size}:
            return lows
        return lows[: next((at for at, low in enumerate(lows) if len(low) != size), None)]

    def _read_lows(self, lows: list[bytes]) -> tuple[int, ...] | None:
        """Return low bits as numbers, or None if some aren't digits."""
        joined = b"".join(lows)
        try:
            # Not int(…, 16) of text, which accepts more than digits.
            return struct.unpack(f">{len(lows)}I", unhexlify(joined) if self._is_text else joined)
        except ValueError:
            return None

    def build(self, frames: Frames) -> tuple[list[Envelope[Any]], BadFrame | None]:
        """Return the envelopes of frames, up to the first whose UUID can't be read."""
        usual = self._build_usual(frames)
        if usual is not None:
            return usual, None
        envelopes: list[Envelope[Any]] = []
        add = envelopes.append
        journal, origin = self.journal, self._origin
        prefix, find_tail = self._prefix, self._tails.get
        low_at, tail_at, tail_end = self._low_at, self._tail_at, self._tail_end
        is_text = self._is_text
        begin = frames.begin
        for payload, end in zip(frames.payloads, frames.ends, strict=True):
            tail = find_tail(payload[tail_at:tail_end])
            if tail is not None and payload.startswith(prefix):
                low_digits = payload[low_at:tail_at]
                try:
                    # Not int(…, 16) of text, which accepts more than digits.
                    low = _unpack_low(unhexlify(low_digits) if is_text else low_digits)[0]
                except ValueError:
                    pass
                else:
                    high, flags, producer = tail
                    clock = low << 4 | high
                    add(Envelope(journal, begin, end, clock, flags, producer, payload, origin))
                    begin = end
                    continue
            try:
                add(self._build_one(payload, begin, end))
            except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                return envelopes, BadFrame(len(envelopes), error)
            begin = end
        return envelopes, None

    def _build_usual(self, frames: Frames) -> list[Envelope[Any]] | None:
        """Return the envelopes of frames, or None unless all UUIDs are known and at their place."""
        if not self._prefix:
            return None  # Nothing to search for separates the UUIDs.
        payloads = frames.payloads
        known = list(map(self._tails.get, map(self._tail_of, payloads)))
        if not all(known):
            return None
        lows = self._read_lows(self._cut_lows(payloads))
        if lows is None or len(lows) < len(payloads):
            return None
        journal, origin = self.journal, self._origin
        places = zip([frames.begin, *frames.ends], frames.ends, strict=False)
        return [
            Envelope(journal, begin, end, low << 4 | high, flags, producer, payload, origin)
            for (begin, end), low, (high, flags, producer), payload in zip(
                places, lows, cast("list[_Tail]", known), payloads, strict=True
            )
        ]

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
            self._origin,
            None if is_time and uuid.int else uuid,
        )

    def _learn(self, payload: bytes) -> UUID | None:
        """Return the UUID at its usual place, if it's there, and learn its tail."""
        place = self._place
        if place is None or not payload.startswith(place.prefix):
            return None
        begin, end = self._low_at, place.uuid_end
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
                self._transactional.clear()
            clock = get_clock(uuid)
            high = clock & ~(0xFFFFFFFF << 4)
            tail = payload[self._tail_at : self._tail_end]
            known = self._tails[tail] = high, get_flags(uuid), get_producer_id(uuid)
            if known[1] in {CONTINUE_TXN, ACK_TXN}:
                self._transactional.setdefault(known[2], {})[tail] = known
        return uuid
