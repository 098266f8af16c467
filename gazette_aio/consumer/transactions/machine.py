"""Decisions of a shard's transactions, without tasks, futures or a clock.

    idle ──► consuming ──► stalled ──► preparing ──► committing ──► acknowledging ──► acknowledged
     │           │                         ▲
     │           └── the channel is empty, ┘        of one transaction
     │               or reading stopped
     └──► drained, at the end of the channel

At most two transactions are alive: `prior`, which commits and is acknowledged, and `current`, which
consumes meanwhile. `current` starts to commit only after `prior` is acknowledged.

The driver asks for the `next()` action, executes it, and reports what happened by the method that
the action names. Events of the prior transaction may be reported at any time.

A transaction reads until one of these stops it:

- its maximum duration has elapsed, counted from its first message;
- the application deferred a message;
- the channel has ended.

It starts to commit once its minimum duration has elapsed, the prior transaction is acknowledged,
and nothing is ready to be read; but while messages are pending whose acknowledgement is awaited, it
reads on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.message.envelopes.uniform_run import bytes_between
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.message import Envelope, ReplayRange, Sequencer, SequencerCheckpoint

PRUNE_HORIZON: Final = timedelta(hours=24)
"""Age at which a checkpoint forgets producers."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Bounds of a transaction, in seconds from its first message."""

    minimum: float
    maximum: float
    waits_for_acks: bool = True
    """Whether pending messages keep the transaction open, up to the maximum."""


class Phase(Enum):
    """Phase of a transaction that started to commit."""

    COMMITTING = auto()
    ACKNOWLEDGING = auto()
    ACKNOWLEDGED = auto()


@dataclass(slots=True)
class TransactionState:
    """A transaction. Times are of the driver's clock, None if not reached."""

    durations: Durations
    since: float
    """When the preparation of the transaction before was done."""
    is_restored: bool = False
    """Whether it stands for the transaction of a restored checkpoint."""
    phase: Phase = Phase.COMMITTING
    messages: int = 0
    size_bytes: int = 0
    is_min_elapsed: bool = False
    is_max_elapsed: bool = False
    began: float | None = None
    stalled: float | None = None
    prepare_began: float | None = None
    prepare_done: float | None = None
    committed: float | None = None
    acknowledged: float | None = None
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    """Offsets to report as progress, by journal."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the current transaction: `begun()`."""


@dataclass(frozen=True, slots=True)
class Consume:
    """Consume messages `rows[begin:]` in order, or the first of them: `consumed()`.

    No message but the first of `rows[begin:]` may be started at or after the machine's `deadline`.
    """

    rows: Sequence[Envelope[Any]]
    begin: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Take the element of the channel that is ready: `received()`, or `ended()`."""


@dataclass(frozen=True, slots=True)
class BeginReplay:
    """Read content of a journal again: `replay_begun()`."""

    range: ReplayRange


@dataclass(frozen=True, slots=True)
class ReadReplay:
    """Read the next messages of the replay: `replayed()`, or `replay_ended()`."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish progress of an idle shard."""

    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for an event, or the deadline."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Start to commit: `preparing()`, `checkpoint()`, `prepared()`."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The channel has ended, and everything is committed and acknowledged."""


Action = Begin | Consume | Receive | BeginReplay | ReadReplay | Publish | Wait | Commit | Drained

_BEGIN, _RECEIVE, _READ_REPLAY = Begin(), Receive(), ReadReplay()
_WAIT, _COMMIT, _DRAINED = Wait(), Commit(), Drained()


class TransactionMachine:
    """Decides the next action of a shard's transactions.

    Args:
        sequencer: Sequencer of the restored checkpoint.
        durations: Bounds of the first transaction.
        now: Present time, in seconds.
    """

    def __init__(self, sequencer: Sequencer, durations: Durations, now: float) -> None:
        self.deadline: float | None = None
        """When the minimum or maximum duration elapses, if a timer is needed."""
        self.prior: TransactionState = TransactionState(
            durations, now, is_restored=True, phase=Phase.ACKNOWLEDGING, offsets=sequencer.offsets
        )
        """The transaction before, at first that of the restored checkpoint."""
        self.prior.prepare_done = now
        self.current: TransactionState = TransactionState(durations, now)
        """The transaction that consumes."""
        self.is_reading: bool = True
        """Whether the current transaction reads further messages."""
        self._sequencer = sequencer
        self._has_ended = False
        self._run: Sequence[Envelope[Any]] = ()  # Received, and queued up to an index.
        self._queued = 0
        self._rows: Sequence[Envelope[Any]] | None = None  # Taken, and consumed up to an index.
        self._consumed = 0
        self._is_replaying = False
        self._idle_progress: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether the current transaction hasn't begun, and the prior one is acknowledged."""
        return self.current.began is None and self.prior.phase is Phase.ACKNOWLEDGED

    def next(self, now: float, *, is_ready: bool) -> Action:
        """Return the next action.

        Args:
            now: Present time, in seconds.
            is_ready: Whether an element of the channel is at hand.
        """
        self._tick(now)
        if self._idle_progress:
            published, self._idle_progress = self._idle_progress, {}
            return Publish(published)
        if self.is_reading and (action := self._read(is_ready=is_ready)) is not None:
            return action
        if self._blocks():
            return _WAIT
        return _COMMIT if self.current.messages else _DRAINED

    def _read(self, *, is_ready: bool) -> Action | None:
        sequencer = self._sequencer
        while True:
            if (rows := self._rows) is not None:
                if self._consumed < len(rows):
                    return self._consume(rows)
                sequencer.settle(len(rows))
                self._rows = None
            elif self._is_replaying:
                return _READ_REPLAY
            elif sequencer.emitting:
                if sequencer.replay_required:
                    return BeginReplay(sequencer.replay_range())
                self._rows, self._consumed = sequencer.take(), 0
            elif self._queued < len(self._run):
                self._queue()
                if self._idle_progress:
                    published, self._idle_progress = self._idle_progress, {}
                    return Publish(published)
            else:
                self._run, self._queued = (), 0  # Idle shards retain no messages.
                return _RECEIVE if is_ready else None

    def _consume(self, rows: Sequence[Envelope[Any]]) -> Action:
        if self.current.began is not None:
            return Consume(rows, self._consumed)
        prior = self.prior
        # Invariant: recovered acknowledgements precede all messages that are published. Readers
        # would take a late one for the rollback of these.
        if prior.is_restored and prior.phase is not Phase.ACKNOWLEDGED:
            return _WAIT
        return _BEGIN

    def _queue(self) -> None:
        """Queue received messages, up to the next commit."""
        run, begin = self._run, self._queued
        self._queued = self._sequencer.queue_commits(run, begin)
        if self.current.began is not None or self._sequencer.emitting:
            return  # The checkpoint of the current transaction reports progress.
        # A retained message has a slot. Others were duplicates, or rolled back pending ones: no
        # transaction will report them, and who waits for them must not wait forever.
        for index in range(self._queued - 1, begin - 1, -1):
            if (envelope := run[index]).slot == 0:
                self._pass_over(envelope)
                return

    def _pass_over(self, envelope: Envelope[Any]) -> None:
        prior = self.prior
        is_idle = prior.phase is Phase.ACKNOWLEDGED
        (self._idle_progress if is_idle else prior.offsets)[envelope.journal] = envelope.end

    def _blocks(self) -> bool:
        current = self.current
        if self.prior.phase is not Phase.ACKNOWLEDGED:
            return True
        if not self.is_reading and not current.messages:
            return False
        if not current.messages or not current.is_min_elapsed:
            return True
        return (
            current.durations.waits_for_acks
            and self.is_reading
            and not current.is_max_elapsed
            and self._sequencer.has_pending
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
        self.is_reading = False
        if self.prior.phase is not Phase.ACKNOWLEDGED:
            current.stalled = now

    # Outcomes of actions.

    def begun(self, now: float) -> None:
        """The current transaction began."""
        self.current.began = now
        self.deadline = now + self.current.durations.minimum

    def consumed(self, count: int) -> None:
        """The first `count` messages of `Consume` were consumed."""
        rows, begin = self._rows, self._consumed
        assert rows is not None, "no messages were to be consumed"
        self._consumed = begin + count
        self.current.messages += count
        self.current.size_bytes += bytes_between(rows, begin, self._consumed)

    def deferred(self) -> None:
        """The application left the next message for the next transaction.

        Raises:
            TransactionError: It's the first message of the transaction.
        """
        if not self.current.messages:
            raise TransactionError(
                "consumer transaction is empty, but application deferred the first message"
            )
        self.is_reading = False

    def received(self, run: Sequence[Envelope[Any]]) -> None:
        """Messages of one journal were received."""
        assert self._queued == len(self._run), "messages before them aren't queued"
        self._run, self._queued = self._sequencer.queue_run(run), 0

    def ended(self) -> None:
        """The channel has ended."""
        self._has_ended = True
        self.is_reading = False

    def replay_begun(self) -> None:
        """The replay has begun."""
        self._sequencer.start_replay()
        self._is_replaying = True

    def replayed(self, run: Sequence[Envelope[Any]]) -> None:
        """Messages were read again.

        Raises:
            ReplayError: A message isn't in the range.
        """
        if rows := self._sequencer.take_replay(run):
            self._rows, self._consumed = rows, 0

    def replay_ended(self) -> None:
        """All of the range was read again."""
        self._sequencer.finish_replay()
        self._is_replaying = False

    # The commit.

    def preparing(self, now: float) -> None:
        """The current transaction reads no further, and is about to be finalized."""
        current = self.current
        current.prepare_began = now
        if current.stalled is None:
            current.stalled = now

    def checkpoint(self) -> SequencerCheckpoint:
        """Return the checkpoint of the current transaction."""
        if self._rows is not None:
            if self._consumed:
                self._sequencer.settle(self._consumed)
            if self._consumed == len(self._rows):
                self._rows = None
        checkpoint = self._sequencer.checkpoint(PRUNE_HORIZON)
        self.current.offsets = dict(checkpoint.offsets)
        return checkpoint

    def prepared(self, durations: Durations, now: float) -> None:
        """The current transaction started to commit, and the next one reads.

        Args:
            durations: Bounds of the next transaction.
            now: Present time.
        """
        assert self.prior.phase is Phase.ACKNOWLEDGED, "transactions commit one after the other"
        self.prior = self.current
        self.prior.prepare_done = now
        self.current = TransactionState(durations, now)
        self.deadline = None
        self.is_reading = not self._has_ended

    def committed(self, now: float) -> None:
        """The prior transaction has committed."""
        self.prior.committed = now
        self.prior.phase = Phase.ACKNOWLEDGING

    def acknowledged(self, now: float) -> TransactionState:
        """All acknowledgements of the prior transaction, if any, were appended.

        Returns:
            The transaction, whose offsets are to be published as progress.
        """
        prior = self.prior
        assert prior.phase is Phase.ACKNOWLEDGING, "a transaction is acknowledged once committed"
        prior.acknowledged = now
        prior.phase = Phase.ACKNOWLEDGED
        return prior
