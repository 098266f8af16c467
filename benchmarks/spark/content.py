"""Rows of 216 bytes: documents of JSON with UUIDs, in transactions of several producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    Clock,
    build_uuid,
    new_producer_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROW_BYTES: Final = 216
PRODUCERS: Final = 4
APPENDS: Final = 4
"""Appends of a transaction, between which are those of the other producers."""
APPENDED: Final = 1250
ROUND: Final = PRODUCERS * APPENDS * APPENDED
"""Rows of a transaction of each producer."""

SCHEMA: Final = (
    "id BIGINT, user STRING, kind STRING, amount DOUBLE, at STRING,"
    " place STRUCT<city: STRING, zip: STRING>, tags ARRAY<STRING>"
)
"""The documents' members but for the UUID."""

_KINDS: Final = ("click", "view", "order", "refund")
_UUID_BYTES: Final = 36
_HEAD, _TAIL, _ACK_TAIL = '{"_meta":{"uuid":"', '"},', '"}}\n'


def appends(rounds: int) -> Iterator[bytes]:
    """Yield what's appended to a journal, in order. All of it is committed in the end.

    Args:
        rounds: Transactions of each producer.
    """
    producers = [(new_producer_id(), Clock.now()) for _ in range(PRODUCERS)]
    tails = [_members(number) for number in range(ROUND)]
    for turn in range(rounds * PRODUCERS * APPENDS):
        producer, clock = producers[turn % PRODUCERS]
        begin = turn * APPENDED % ROUND
        parts: list[str] = []
        for tail in tails[begin : begin + APPENDED]:
            uuid = build_uuid(producer, clock.tick(), CONTINUE_TXN)
            parts += (_HEAD, str(uuid), _TAIL, tail)
        if turn // PRODUCERS % APPENDS == APPENDS - 1:
            uuid = build_uuid(producer, clock.tick(), ACK_TXN)
            parts += (_HEAD, str(uuid), _ACK_TAIL)
        yield "".join(parts).encode()


def _members(number: int) -> str:
    """Return the rest of a line behind its UUID."""
    members = (
        f'"id":{10_000_000 + number},"user":"user-{number % 9973:05}",'
        f'"kind":"{_KINDS[number % len(_KINDS)]}","amount":{1000 + number % 8000 / 8:.3f},'
        f'"at":"2024-05-{1 + number % 28:02}T12:30:00Z",'
        f'"place":{{"city":"Berlin","zip":"10117"}},"tags":["web","new"]'
    )
    return members.ljust(ROW_BYTES - len(_HEAD) - _UUID_BYTES - len(_TAIL) - 2) + "}\n"
