"""Stamping of many messages at once, with the UUIDs of consecutive clocks."""

from __future__ import annotations

import struct
from binascii import hexlify
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.uuid import CLOCK_SPAN, MASK_64, clock_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_aio.message.adapters.base import SplitMessages


class Ticks(NamedTuple):
    """Consecutive clocks of a producer, and the flags of their messages."""

    producer: bytes
    flags: int
    first: int
    step: int
    rows: int


def stamp(
    messages: SplitMessages,
    ticks: Ticks,
    *,
    text: bool,
    suffix: bytes = b"",
    frame: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Return the joined frames of messages, stamped in their order.

    Args:
        messages: Encoded messages.
        ticks: Clocks of the messages.
        text: Whether UUIDs are text, or else 16 bytes.
        suffix: Bytes of a frame after its message.
        frame: Returns the frame of a message, if it's more than a suffix.
    """
    heads, between, rests = messages
    count = len(rests)
    assert count == ticks.rows
    lows, tails = _uuids(ticks, between, text=text)
    if frame is not None:
        heads = [heads] * count if isinstance(heads, bytes) else heads
        parts = zip(heads, lows, tails, rests, strict=True)
        return b"".join([frame(b"".join(part)) for part in parts])
    if not count:
        return b""
    # Hot: the end of one message and the begin of the next are one piece.
    if isinstance(heads, bytes):
        joints, first = [suffix + heads] * count, heads
    else:
        joints, first = [suffix + head for head in heads], heads[0]
    pieces = [b""] * (4 * count)
    pieces[0::4] = joints
    pieces[0] = first
    pieces[1::4] = lows
    pieces[2::4] = tails
    pieces[3::4] = rests
    pieces.append(suffix)
    return b"".join(pieces)


def _uuids(ticks: Ticks, between: bytes, *, text: bool) -> tuple[list[bytes], list[bytes]]:
    """Return the first part of each UUID, which differs, and the rest with `between`."""
    lows: list[bytes] = []
    tails: list[bytes] = []
    for numbers, tail in _spans(ticks, text=text):
        words = struct.pack(f">{len(numbers)}I", *numbers)
        if text:
            lows += hexlify(words, b" ", 4).split()
        else:
            lows += [words[at : at + 4] for at in range(0, len(words), 4)]
        tails += [tail + between] * len(numbers)
    return lows, tails


def _spans(ticks: Ticks, *, text: bool) -> Iterator[tuple[range, bytes]]:
    """Yield runs of UUIDs: the first words of each, and the common rest."""
    producer, flags, clock, step, count = ticks
    while count > 0:
        base, uuid = clock_span(producer, flags, clock)
        size = 1
        if step > 0 and step & 0xF == 0:
            size = min(count, -(-(base + CLOCK_SPAN - clock) // step))
        low = clock - base >> 4
        yield (
            range(low, low + (size - 1) * (step >> 4) + 1, max(step >> 4, 1)),
            str(uuid)[8:].encode() if text else uuid.bytes[4:],
        )
        clock = clock + size * step & MASK_64
        count -= size
