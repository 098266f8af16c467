"""Line of concurrent transactions: which of them commits next, and with which others.

Transactions whose messages are held in memory may be open at the same time. At its end, each gets
in line, and those that meet there commit together. One that has to publish before its end, because
it's large or its caller wants that, gets in line for a *turn*: it publishes and commits alone.

| in line, from the front | next |
| --- | --- |
| a turn | the turn alone, until its transaction ends |
| ends, of one log | all of them up to the first of another kind, in one commit |
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from gazette_aio.protocol.errors import TooManyTransactionsError

T = TypeVar("T")


class _Place(NamedTuple, Generic[T]):
    transaction: T
    log: object
    is_turn: bool

    def commits_with(self, other: _Place[T]) -> bool:
        return self.log is other.log and not (self.is_turn or other.is_turn)


class Line(Generic[T]):
    """Line of the transactions of a Publisher and its views.

    Args:
        max_waiting: Transactions that may wait for others to end.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        """Transactions that may wait for others to end."""
        self.open: int = 0
        """Transactions that are open, in line, or commit."""
        self._places: deque[_Place[T]] = deque()
        self._is_busy = False

    def enter(self) -> None:
        """Count a transaction that begins.

        Raises:
            TooManyTransactionsError: Too many are open.
        """
        if self.open > self.max_waiting:
            raise TooManyTransactionsError(
                f"{self.open} transactions of this Publisher are open, and max_waiting is "
                f"{self.max_waiting}: retry later, or publish less often, or raise max_waiting"
            )
        self.open += 1

    def leave(self) -> None:
        """Count a transaction that has ended."""
        self.open -= 1

    def wait(self, transaction: T, log: object, *, is_turn: bool) -> None:
        """Have a transaction get in line, for a turn or for its commit."""
        self._places.append(_Place(transaction, log, is_turn))

    def withdraw(self, transaction: T) -> bool:
        """Have a transaction leave the line, and return whether it was there."""
        for place in self._places:
            if place.transaction is transaction:
                self._places.remove(place)
                return True
        return False

    def next(self) -> tuple[list[T], bool]:
        """Return the transactions that are next, and whether it's a turn. They leave the line.

        There are none while the ones before aren't done.
        """
        if self._is_busy or not self._places:
            return [], False
        self._is_busy = True
        first = self._places.popleft()
        group = [first.transaction]
        if not first.is_turn:
            while self._places and self._places[0].commits_with(first):
                group.append(self._places.popleft().transaction)
        return group, first.is_turn

    def done(self) -> None:
        """Note that the transactions that were next have ended."""
        self._is_busy = False
