"""Observation of transactions: their sizes, and the durations of their phases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.consumer.transactions.machine import TransactionState


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """A transaction that is fully acknowledged. Times are in seconds."""

    messages: int
    """Number of consumed messages."""
    size_bytes: int
    """Bytes of consumed messages in their journals."""
    read_through: Mapping[str, int]
    """Offset that each source was read through."""
    not_running: float
    """From the end of the preparation before to the first message."""
    consuming: float
    """From the first message to the stall, or to the preparation."""
    stalled: float
    """From the maximum duration, elapsed while the transaction before wasn't acknowledged, to the
    preparation."""
    preparing: float
    """From the finalization to the start of the commit."""
    committing: float
    """From the start of the commit to its end."""
    acknowledging: float
    """From the commit to the last acknowledgement."""


class TransactionObserver(Protocol):
    """Observes transactions of a shard, such as for metrics. It must not raise or block."""

    def acknowledged(self, report: TransactionReport, /) -> None:
        """A transaction is fully acknowledged."""
        ...

    def message_failed(self, action: str, /) -> None:
        """A message can't be consumed: it's decided to `fail`, `retry`, `skip` or `dead_letter`."""
        ...


class Observers:
    """An observer that passes on what it learns.

    Args:
        observers: Observers to tell; none ignores it.
    """

    def __init__(self, *observers: TransactionObserver) -> None:
        self._observers = observers

    def acknowledged(self, report: TransactionReport, /) -> None:
        """A transaction is fully acknowledged."""
        for observer in self._observers:
            observer.acknowledged(report)

    def message_failed(self, action: str, /) -> None:
        """A message can't be consumed."""
        for observer in self._observers:
            observer.message_failed(action)


def report_of(transaction: TransactionState) -> TransactionReport:
    """Return the report of a transaction that is acknowledged."""
    times = (
        transaction.since,
        transaction.began,
        transaction.stalled,
        transaction.prepare_began,
        transaction.prepare_done,
        transaction.committed,
        transaction.acknowledged,
    )
    reached = [at for at in times if at is not None]
    assert len(reached) == len(times), "the transaction isn't acknowledged"
    return TransactionReport(
        transaction.messages,
        transaction.size_bytes,
        transaction.offsets,
        *(end - begin for begin, end in pairwise(reached)),
    )
