"""Messages of tests, which no broker has."""

from __future__ import annotations

from typing import Any

from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Envelope,
    Flags,
    ProducerID,
)

SIZE = 10
"""Bytes of each message."""
A, B = ProducerID(b"aaaaaa"), ProducerID(b"bbbbbb")


class Content:
    """A journal whose messages are all known."""

    size = SIZE
    producer = A

    def __init__(self, name: str = "source/A") -> None:
        self.name = name
        self.messages: list[Envelope[Any]] = []
        self.clock = 0

    @property
    def head(self) -> int:
        return len(self.messages) * self.size

    def add(
        self, flags: Flags, producer: ProducerID = A, clock: int | None = None
    ) -> Envelope[Any]:
        if clock is None:
            self.clock += 1
            clock = self.clock
        begin = self.head
        envelope = Envelope(self.name, begin, begin + self.size, clock, flags, producer, begin)
        self.messages.append(envelope)
        return envelope

    def outside(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(OUTSIDE_TXN, producer, clock)

    def pending(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(CONTINUE_TXN, producer, clock)

    def ack(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(ACK_TXN, producer, clock)

    def read(self, begin: int, end: int | None = None) -> list[Envelope[Any]]:
        """Return fresh envelopes of a range, as of a new reader."""
        return [
            Envelope(
                each.journal,
                each.begin,
                each.end,
                each.clock,
                each.flags,
                each.producer,
                each.message,
            )
            for each in self.messages[
                begin // self.size : None if end is None else end // self.size
            ]
        ]
