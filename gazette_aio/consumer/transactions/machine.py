"""Decisions of a shard's transactions, without tasks, futures or a clock.

    idle ──► consuming ──► stalled ──► preparing ──► committing ──► acknowledging ──► acknowledged
     │           │                         ▲
     │           └── nothing is at hand, ──┘        of one transaction
     │               or reading stopped
     └──► drained, at the end of reading

At most two transactions are alive: `prior`, which commits and is acknowledged, and `current`, which
consumes meanwhile. `current` starts to commit only after `prior` is acknowledged.

The loop asks for the `next()` action, executes it, and reports what happened by the method that
the action names. Events of the prior transaction may be reported at any time.

A transaction reads until one of these stops it:

- its maximum duration has elapsed, counted from its first message;
- the application deferred a message;
- reading has ended.

It starts to commit once its minimum duration has elapsed, the prior transaction is acknowledged,
and nothing is ready to be read; but while messages are pending whose acknowledgement is awaited, it
reads on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from gazette_aio.consumer.transactions.intake import Intake


@dataclass(frozen=True, slots=True)
class Durations:
    """Bounds of a transaction, in seconds from its first message."""

    minimum: float
    maximum: float
    waits_for_acks: bool = True
    """Whether pending messages keep the transaction open, up to the maximum."""


PHASES: Final = (
    "not_running",
    "consuming",
    "stalled",
    "preparing",
    "committing",
    "acknowledging",
)
"""Phases of a transaction, between its times."""


@dataclass(slots=True)
class Transaction:
    """A transaction. Times are of the loop's clock, in seconds, and None if not reached."""

    durations: Durations
    since: float
    """When the preparation of the transaction before was done."""
    is_restored: bool = False
    """Whether it stands for the transaction of a restored checkpoint."""
    messages: int = 0
    """Number of consumed messages."""
    size_bytes: int = 0
    """Bytes of consumed messages in their journals."""
    is_min_elapsed: bool = False
    is_max_elapsed: bool = False
    began: float | None = None
    """When it began, before its first message."""
    stalled: float | None = None
    """When its maximum duration elapsed though the transaction before wasn't acknowledged; or
    else when the preparation began."""
    prepare_began: float | None = None
    prepare_done: float | None = None
    """When the commit started."""
    committed: float | None = None
    acknowledged: float | None = None
    """When the last acknowledgement was appended."""
    read_through: dict[str, int] = field(default_factory=dict[str, int])
    """Offsets to report as progress, by journal."""

    def phase_seconds(self) -> dict[str, float]:
        """Return the duration of each phase of a transaction that is acknowledged."""
        times = (
            self.since,
            self.began,
            self.stalled,
            self.prepare_began,
            self.prepare_done,
            self.committed,
            self.acknowledged,
        )
        reached = [at for at in times if at is not None]
        assert len(reached) == len(times), "the transaction isn't acknowledged"
        seconds = (max(end - begin, 0.0) for begin, end in pairwise(reached))
        return dict(zip(PHASES, seconds, strict=True))


class Action(Enum):
    """What to do next, and the method that reports it."""

    BEGIN = auto()
    """Begin the current transaction: `begun()`."""
    CONSUME = auto()
    """Consume the first ready messages of the intake, or all of them: `consumed()`.

    No message but the first may be started at or after the machine's `deadline`.
    """
    ADVANCE = auto()
    """Let the intake handle its input: `passed()`, if it has passed over messages."""
    READ_AGAIN = auto()
    """Let the intake read again."""
    WAIT = auto()
    """Wait for an event, or the deadline."""
    COMMIT = auto()
    """Start to commit: `prepared()`."""
    DRAINED = auto()
    """End: reading has ended, and everything is committed and acknowledged."""


class TransactionMachine:
    """Decides the next action of a shard's transactions.

    Args:
        intake: Messages to consume.
        offsets: Offsets of the restored checkpoint, by journal.
        durations: Bounds of the first transaction.
        now: Present time, in seconds.
    """

    def __init__(
        self, intake: Intake, offsets: dict[str, int], durations: Durations, now: float
    ) -> None:
        self.deadline: float | None = None
        """When the minimum or maximum duration elapses, if a timer is needed."""
        self.prior: Transaction = Transaction(
            durations, now, is_restored=True, committed=now, read_through=offsets
        )
        """The transaction before, at first that of the restored checkpoint."""
        self.current: Transaction = Transaction(durations, now)
        """The transaction that consumes."""
        self._intake = intake
        self._is_stopped = False  # Whether the current transaction reads no further messages.

    def next(self, now: float) -> Action:
        """Return the next action.

        Args:
            now: Present time, in seconds.
        """
        self._tick(now)
        intake = self._intake
        is_reading = not (self._is_stopped or intake.has_ended)
        if is_reading:
            if intake.ready:
                return self._consume()
            if intake.is_replaying:
                return Action.READ_AGAIN
            if intake.line:
                return Action.ADVANCE
        if self._blocks(is_reading=is_reading):
            return Action.WAIT
        return Action.COMMIT if self.current.messages else Action.DRAINED

    def _consume(self) -> Action:
        if self.current.began is not None:
            return Action.CONSUME
        prior = self.prior
        # Invariant: recovered acknowledgements precede all messages that are published. Readers
        # would take a late one for the rollback of these.
        if prior.is_restored and prior.acknowledged is None:
            return Action.WAIT
        return Action.BEGIN

    def _blocks(self, *, is_reading: bool) -> bool:
        current = self.current
        if self.prior.acknowledged is None:
            return True
        if not is_reading and not current.messages:
            return False
        if not current.messages or not current.is_min_elapsed:
            return True
        return (
            current.durations.waits_for_acks
            and is_reading
            and not current.is_max_elapsed
            and self._intake.has_pending
        )

    def _tick(self, now: float) -> None:
        current = self.current
        # Invariant: a transaction that began consumes a message, however late it is.
        if self.deadline is None or now < self.deadline or not current.messages:
            return
        assert current.began is not None, "the timer runs only after the transaction began"
        current.is_min_elapsed = True
        end = current.began + current.durations.maximum
        if now < end:
            self.deadline = end
            return
        self.deadline = None
        current.is_max_elapsed = True
        self._is_stopped = True
        if self.prior.acknowledged is None:
            current.stalled = now

    # Outcomes of actions.

    def begun(self, now: float) -> None:
        """The current transaction began."""
        self.current.began = now
        self.deadline = now + self.current.durations.minimum

    def consumed(self, messages: int, size_bytes: int, *, is_deferred: bool) -> None:
        """Messages were consumed.

        Args:
            messages: Their number.
            size_bytes: Their bytes.
            is_deferred: Whether the application left the next one for the next transaction.

        Raises:
            TransactionError: The first message of the transaction is deferred.
        """
        self.current.messages += messages
        self.current.size_bytes += size_bytes
        if not is_deferred:
            return
        if not self.current.messages:
            raise TransactionError(
                "consumer transaction is empty, but application deferred the first message"
            )
        self._is_stopped = True

    def passed(self, journal: str, offset: int) -> bool:
        """The intake has passed over messages before an offset, which no later one reports.

        Returns:
            Whether the offset is to be published as progress now. Who waits for it must not wait
            for ever.
        """
        if self.current.began is not None or self._intake.ready or self._intake.is_replaying:
            return False  # The checkpoint of the current transaction reports progress.
        if self.prior.acknowledged is not None:
            return True
        self.prior.read_through[journal] = offset
        return False

    # The commit.

    def prepared(
        self, offsets: dict[str, int], durations: Durations, *, since: float, now: float
    ) -> None:
        """The current transaction started to commit, and the next one reads.

        Args:
            offsets: Offsets of its checkpoint, by journal.
            durations: Bounds of the next transaction.
            since: When the preparation began.
            now: Present time.
        """
        assert self.prior.acknowledged is not None, "transactions commit one after the other"
        self.prior = prior = self.current
        prior.read_through = offsets
        prior.prepare_began, prior.prepare_done = since, now
        if prior.stalled is None:
            prior.stalled = since
        self.current = Transaction(durations, now)
        self.deadline = None
        self._is_stopped = False

    def committed(self, now: float) -> None:
        """The prior transaction has committed."""
        self.prior.committed = now

    def acknowledged(self, now: float) -> None:
        """All acknowledgements of the prior transaction, if any, were appended."""
        assert self.prior.committed is not None, "a transaction is acknowledged once committed"
        self.prior.acknowledged = now
