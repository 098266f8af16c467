"""Identity of messages: version 1 UUIDs made of a Clock, Flags and a ProducerID.

A UUID carries, beside its version and variant bits:

- a *clock*: 60 bits of 100 ns ticks since 1582-10-15T00:00:00Z, then a 4-bit counter. Clocks are
  plain unsigned 64-bit integers, and the clocks of one producer only grow.
- *flags*: 10 bits that give the transaction semantics of the message.
- a *producer ID*: 6 bytes, drawn at random for each publisher.

Extraction never checks version or variant, as no reader of Gazette does: a UUID of another version
yields an arbitrary clock, flags and producer. Iterators with `strict_uuid=True` refuse such UUIDs.
"""

from __future__ import annotations

import secrets
import time
from binascii import unhexlify
from datetime import UTC, datetime, timedelta
from typing import NewType
from uuid import UUID

from gazette_aio.protocol.errors import ValidationError

ProducerID = NewType("ProducerID", bytes)
"""Six bytes that identify a publisher."""

RAW_LENGTH, TEXT_LENGTH = 16, 36
"""Lengths of a UUID: its bytes, and its canonical text."""
MASK_64 = (1 << 64) - 1
UNIX_EPOCH_TICKS = 122192928000000000
"""Ticks of 100 ns between 1582-10-15 and 1970-01-01."""
TICK = 160
"""Clock increment of one published message: one microsecond."""
ZERO_UUID = UUID(int=0)
"""UUID of messages that opt out of exactly-once semantics. They're always delivered."""

_VERSION_1 = 0x1000
_VARIANT_RFC_4122 = 0x8000
_MAX_FLAGS = 0x3FF
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Flags(int):
    """Transaction semantics of a message: an enumeration, whose upper eight bits are reserved."""

    __slots__ = ()

    def __str__(self) -> str:
        name = _FLAG_NAMES.get(int(self))
        return name if name is not None else f"Flags({int(self):x})"

    def __repr__(self) -> str:
        return str(self)


OUTSIDE_TXN = Flags(0)
"""The message commits by itself, at once."""
CONTINUE_TXN = Flags(1)
"""The message begins or extends a transaction, and is pending until its producer's next ACK."""
ACK_TXN = Flags(2)
"""Commits the pending messages of its producer with clocks up to its own, and rolls back others."""

_FLAG_NAMES = {0: "OUTSIDE_TXN", 1: "CONTINUE_TXN", 2: "ACK_TXN"}
KNOWN_FLAGS = (OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN)


def new_producer_id() -> ProducerID:
    """Return a fresh random ProducerID, with the multicast bit set: it's never a real MAC.

    IDs should live about as long as a process: readers track a state per ID.
    """
    token = bytearray(secrets.token_bytes(6))
    token[0] |= 1
    return ProducerID(bytes(token))


def clock_from_ns(unix_ns: int) -> int:
    """Return the clock of a Unix time in nanoseconds. Digits below 100 ns are truncated."""
    # Wire: times before 1970 are truncated toward zero, not down.
    ticks = unix_ns // 100 if unix_ns >= 0 else -(-unix_ns // 100)
    return ((ticks + UNIX_EPOCH_TICKS) << 4) & MASK_64


def clock_from_datetime(when: datetime) -> int:
    """Return the clock of `when`, which must be aware of its time zone."""
    return clock_from_ns(unix_ns(when))


def unix_ns(when: datetime) -> int:
    """Return the exact Unix nanoseconds of an aware datetime.

    Raises:
        ValidationError: `when` has no time zone.
    """
    if when.tzinfo is None:
        raise ValidationError("datetime must be aware of its time zone")
    # Integer arithmetic: a float timestamp has too few digits.
    return (when - _EPOCH) // timedelta(microseconds=1) * 1000


def clock_as_ns(clock: int) -> int:
    """Return the Unix nanoseconds of `clock`, without its counter."""
    return ((clock >> 4) - UNIX_EPOCH_TICKS) * 100


def clock_as_time(clock: int) -> datetime:
    """Return the UTC time of `clock`, with the microsecond precision that datetime has."""
    return _EPOCH + timedelta(microseconds=clock_as_ns(clock) // 1000)


class Clock:
    """A ticking clock of message UUIDs, which never decreases.

    Clocks belong to one event loop; they aren't safe for use by several threads.

    Args:
        value: Initial value.
        tick: Increment of `tick()`, by default one microsecond. Publishers before Gazette v0.101
            used 1.
    """

    __slots__ = ("step", "value")

    def __init__(self, value: int = 0, *, tick: int = TICK) -> None:
        self.value: int = value & MASK_64
        self.step: int = tick

    @classmethod
    def from_time(cls, when: int | datetime, *, tick: int = TICK) -> Clock:
        """Return a Clock at `when`: Unix nanoseconds, or an aware datetime."""
        clock = cls(tick=tick)
        clock.update(when)
        return clock

    @classmethod
    def now(cls) -> Clock:
        """Return a Clock at the present wall time."""
        return cls.from_time(time.time_ns())

    def update(self, when: int | datetime | None = None) -> None:
        """Advance to `when` (Unix nanoseconds, aware datetime, or now), if it's later."""
        if when is None:
            when = time.time_ns()
        updated = clock_from_datetime(when) if isinstance(when, datetime) else clock_from_ns(when)
        self.value = max(self.value, updated)

    def tick(self) -> int:
        """Advance by one tick, and return the new value."""
        self.value = (self.value + self.step) & MASK_64
        return self.value

    def as_time(self) -> datetime:
        """Return the UTC time of this clock."""
        return clock_as_time(self.value)

    def as_time_ns(self) -> int:
        """Return the Unix nanoseconds of this clock, precise to 100 ns."""
        return clock_as_ns(self.value)

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Clock({self.value})"


def build_uuid(producer: bytes, clock: int, flags: int) -> UUID:
    """Return the UUID of `producer`, `clock` and `flags`.

    Raises:
        ValidationError: `flags` needs more than ten bits, or `producer` isn't of six bytes.
    """
    if not 0 <= flags <= _MAX_FLAGS:
        raise ValidationError("only 10 low bits may be used for flags")
    if len(producer) != 6:
        raise ValidationError("a producer ID has six bytes")
    high = (clock >> 4 & 0xFFFFFFFF) << 32 | (clock >> 36 & 0xFFFF) << 16
    high |= clock >> 52 & 0xFFF | _VERSION_1
    sequence = (clock & 0xF) << 10 | flags | _VARIANT_RFC_4122
    return UUID(int=high << 64 | sequence << 48 | int.from_bytes(producer, "big"))


def get_clock(uuid: UUID) -> int:
    """Return the clock of `uuid`."""
    number = uuid.int
    return (
        (number >> 64 & 0xFFF) << 52
        | (number >> 80 & 0xFFFF) << 36
        | (number >> 96) << 4
        | number >> 58 & 0xF
    )


def get_flags(uuid: UUID) -> Flags:
    """Return the flags of `uuid`."""
    flags = uuid.int >> 48 & _MAX_FLAGS
    return KNOWN_FLAGS[flags] if flags < 3 else Flags(flags)


def get_producer_id(uuid: UUID) -> ProducerID:
    """Return the ProducerID of `uuid`."""
    return ProducerID((uuid.int & 0xFFFFFFFFFFFF).to_bytes(6, "big"))


def is_time_uuid(uuid: UUID) -> bool:
    """Return whether `uuid` has version 1 and the RFC 4122 variant, or is zero."""
    number = uuid.int
    return number == 0 or (number >> 76 & 0xF == 1 and number >> 62 & 0x3 == 2)


def parse_uuid(text: str | bytes) -> UUID:
    """Parse a UUID: canonical, `urn:uuid:` prefixed, in braces, or 32 bare hex digits.

    Raises:
        ValidationError: `invalid UUID length: N`, `invalid UUID format`, or an invalid URN prefix.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    size = len(raw)
    if size == 45:
        if raw[:9].lower() != b"urn:uuid:":
            prefix = raw[:9].decode("utf-8", "backslashreplace")
            raise ValidationError(f'invalid urn prefix: "{prefix}"')
        raw = raw[9:]
    elif size == 38:
        # Whatever encloses it, usually braces.
        raw = raw[1:37]
    elif size == 32:
        return UUID(int=_hex_int(raw))
    elif size != TEXT_LENGTH:
        raise ValidationError(f"invalid UUID length: {size}")
    if raw[8] != 45 or raw[13] != 45 or raw[18] != 45 or raw[23] != 45:
        raise ValidationError("invalid UUID format")
    return UUID(int=_hex_int(raw[:8] + raw[9:13] + raw[14:18] + raw[19:23] + raw[24:]))


def uuid_from_bytes(raw: bytes) -> UUID:
    """Return the UUID of its 16 raw bytes.

    Raises:
        ValidationError: `raw` has another length.
    """
    if len(raw) != RAW_LENGTH:
        raise ValidationError(f"invalid UUID (got {len(raw)} bytes)")
    return UUID(int=int.from_bytes(raw, "big"))


def _hex_int(digits: bytes) -> int:
    # Not int(digits, 16), which accepts signs, underscores and blanks.
    try:
        return int.from_bytes(unhexlify(digits), "big")
    except ValueError:
        raise ValidationError("invalid UUID format") from None
