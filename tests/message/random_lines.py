"""Logs of random messages as JSON lines: transactions, and messages that misbehave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Clock,
    ProducerID,
    build_uuid,
    json_adapter,
)

if TYPE_CHECKING:
    import random

A, B = ProducerID(b"\x01AAAAA"), ProducerID(b"\x01BBBBB")
START = Clock.from_time(1_700_000_000 * 10**9).value


class Number(msgspec.Struct):
    n: int


ADAPTER = json_adapter(Number)


def line(number: int, clock: int, flags: Any = CONTINUE_TXN, producer: ProducerID = A) -> bytes:
    uuid = build_uuid(producer, clock, flags)
    if flags == ACK_TXN:
        return ADAPTER.acknowledgement(uuid) + b"\n"
    return ADAPTER.encode(Number(number), uuid) + b"\n"


def random_lines(rng: random.Random) -> list[bytes]:
    """Return transactions of one producer or two, some of which misbehave."""
    clocks = {A: START, B: START + 16 * rng.randrange(-5000, 5000)}
    odd = rng.choice((0, 0, 0.02, 0.2))
    lines: list[bytes] = []
    for _ in range(rng.randrange(1, 10)):
        producer = rng.choice((A, A, A, B))
        step = rng.choice((160, 160, 160, 16, 1))
        flags: Any = rng.choice((CONTINUE_TXN, CONTINUE_TXN, CONTINUE_TXN, OUTSIDE_TXN))
        for _ in range(rng.choice((1, 3, 31, 32, 50, 200))):
            clocks[producer] += step
            lines.append(line(len(lines), clocks[producer], flags, producer))
            if rng.random() < odd:
                lines.append(_odd_line(rng, lines, clocks[producer] + step, producer))
        if rng.random() < 0.7:
            clocks[producer] += step
            lines.append(line(0, clocks[producer], ACK_TXN, producer))
        for _ in range(rng.choice((0, 0, 20, 60))):
            for flags in (*[CONTINUE_TXN] * rng.randrange(4), ACK_TXN):
                clocks[producer] += step
                lines.append(line(len(lines), clocks[producer], flags, producer))
            if rng.random() < odd / 3:
                lines.append(_odd_line(rng, lines, clocks[producer] + step, producer))
    return lines


def _odd_line(rng: random.Random, lines: list[bytes], clock: int, producer: ProducerID) -> bytes:
    usual = line(len(lines), clock, CONTINUE_TXN, producer)
    head, uuid = usual[:18], usual[18:54]
    match rng.randrange(8):
        case 0:
            return rng.choice(lines)  # It's a duplicate, or is bad again.
        case 1:
            return usual.replace(b'"n":', b'"n":"bad",')
        case 2:
            return b'{"n":7,"_meta":{"uuid":"' + uuid + b'"}}\n'
        case 3:
            return head + uuid.upper() + usual[54:]
        case 4:
            return head + uuid.replace(b"-", b"_") + usual[54:]
        case 5:
            return head + b"g" + usual[19:]
        case 6:
            return usual[: rng.randrange(60)].rstrip() + b"\n"
        case _:
            return line(0, clock - rng.choice((160, 1600)), ACK_TXN, producer)
