"""Rules of a commit journal: the state which records amount to, and a driver's next step.

Drivers append by compare-and-append: a record takes effect only if nothing was appended since its
driver last read. A driver thus decides on the state just before its record, and all drivers agree
on the order.

Invariants:

1. Each batch of a sink has one commit record: the first one. Records of later batches follow it.
2. A producer publishes for another batch only if the previous batch is decided, and lists the
   producer with the clock which it reported, and the producer isn't retired.
3. An acknowledgement is appended only for a producer of the latest commit record of its sink. It's
   repeated only after that producer is retired: a copy after messages of the next batch would make
   readers drop these messages.
4. A commit returns only after all acknowledgements of its batch are appended.
5. No producer of a commit record is rolled back, and no producer which is rolled back or retired is
   in a later commit record.

A deciding function returns an `Append`, or a final step. The driver appends and folds the record,
and calls the function again; if the append is refused, it reads the journal, and calls again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gazette_aio.protocol.errors import StoreError
from gazette_aio.spark.sink.commit_records import CommitKind, CommitRecord, Refused, SinkKey, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_aio.message.uuid import ProducerID
    from gazette_aio.spark.sink.commit_records import TaskMessage

RECENT_RECORDS: Final = 8
"""Number of batches for which a producer may be idle and still be reused."""
MOST_RUNS: Final = 256
"""Greatest number of unnamed jobs in the state. Only the job itself needs its state, and soon."""


class Use(NamedTuple):
    """Use of a producer for a batch."""

    batch: int
    ack: int
    """Clock of the acknowledgement."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a batch: the state of a sink which tasks need. Small, and pickles."""

    key: SinkKey
    decided: int
    """Latest batch which is decided, or -1."""
    clean: dict[ProducerID, Use]
    """Reusable producers, and their latest uses."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """State of one sink."""

    recent: tuple[CommitRecord, ...] = ()
    """The latest commit records, in order."""
    retired: dict[ProducerID, int] = dataclasses.field(default_factory=dict["ProducerID", int])
    """Retired producers which a record may still name, and the batches which retired them."""
    done: bool = False
    """Whether the acknowledgements of the latest commit record are known to be appended."""

    @property
    def last(self) -> CommitRecord | None:
        """The latest commit record."""
        return self.recent[-1] if self.recent else None

    @property
    def decided(self) -> int:
        """Latest batch which is decided, or -1."""
        return self.recent[-1].batch if self.recent else -1

    def plan(self, key: SinkKey) -> Plan:
        """Return the plan of the next batch."""
        clean = {
            span.producer: Use(record.batch, span.ack)
            for record in self.recent
            for span in record.spans
            if span.producer not in self.retired
        }
        return Plan(key, self.decided, clean)

    def fold(self, record: CommitRecord) -> SinkState:
        """Return the state after a further record."""
        match record.kind:
            case CommitKind.COMMIT:
                if record.batch <= self.decided:
                    return self  # Invariant: the first one counts.
                recent = (*self.recent, record)[-RECENT_RECORDS:]
                # No record names producers of earlier batches.
                oldest = recent[0].batch
                retired = {p: batch for p, batch in self.retired.items() if batch >= oldest}
                return SinkState(recent, retired)
            case CommitKind.RETIRE | CommitKind.ABORT:
                retired = {**self.retired, **dict.fromkeys(record.producers, record.batch)}
                return dataclasses.replace(self, retired=retired)
            case CommitKind.DONE:
                return dataclasses.replace(self, done=self.done or record.batch == self.decided)


class CommitState:
    """State of the sinks of a commit journal.

    Args:
        only: The only sink to keep; None for all.
    """

    def __init__(self, only: SinkKey | None = None) -> None:
        self._only = only
        self._sinks: dict[SinkKey, SinkState] = {}
        self._runs: dict[SinkKey, None] = {}
        self._refused: dict[SinkKey | None, str] = {}

    def fold(self, line: CommitRecord | Refused) -> None:
        """Process the next line of the journal."""
        key = line.key
        if key is not None and self._only not in (None, key):
            return
        if isinstance(line, Refused):
            self._refused.setdefault(key, line.reason)
        else:
            # Least recently updated first.
            self._sinks[line.key] = self._sinks.pop(line.key, SinkState()).fold(line)
            if line.key.is_of_run:
                self._runs[line.key] = None
                if len(self._runs) > MOST_RUNS:
                    oldest = next(iter(self._runs))
                    del self._runs[oldest], self._sinks[oldest]

    def of(self, key: SinkKey) -> SinkState:
        """Return the state of a sink.

        Raises:
            StoreError: The journal has lines which this release doesn't understand.
        """
        reason = self._refused.get(None) or self._refused.get(key)
        if reason is not None:
            raise StoreError(f"commit journal has {reason}: nothing can be decided")
        return self._sinks.get(key, SinkState())

    def refuses(self, key: SinkKey) -> bool:
        """Return whether only lines of this sink aren't understood."""
        return key in self._refused and None not in self._refused

    def __iter__(self) -> Iterator[SinkKey]:
        return iter(list(self._sinks))

    def __repr__(self) -> str:
        return f"<CommitState of {len(self._sinks)} sinks>"


class Append(NamedTuple):
    """Append a record at the offset read so far, fold it, and decide again."""

    record: CommitRecord


class Acknowledge(NamedTuple):
    """Append the acknowledgements of a record."""

    record: CommitRecord


class Republish(NamedTuple):
    """Fail: other producers must publish the batch again."""

    producers: frozenset[ProducerID]


class RollBack(NamedTuple):
    """Roll back messages of the batch, which no record commits any more."""


class Return(NamedTuple):
    """Return: nothing is left to do."""


Commit: TypeAlias = Append | Acknowledge | Republish | Return
Abort: TypeAlias = Append | RollBack | Return


def decide(state: SinkState, batch: int, proposal: CommitRecord | None, nonce: str = "") -> Commit:
    """Return a driver's next step to commit a batch.

    Args:
        state: State of the sink up to the offset at which a record would be appended.
        batch: Number of the batch.
        proposal: The record which commits the batch, or None if nothing was published.
        nonce: Nonce of records which this call appends.
    """
    last = state.last
    if last is not None and last.batch > batch:
        return Return()
    if last is not None and last.batch == batch:
        if state.done:
            return Return()
        if proposal is not None and last.nonce == proposal.nonce:
            return Acknowledge(last)
        # Invariant: another call may have appended these acknowledgements before.
        retirement = retire(state, last, last.producers, nonce)
        return retirement if isinstance(retirement, Append) else Acknowledge(last)
    if proposal is None:
        return Return()
    if unusable := frozenset(_unusable(state, proposal)):
        return Republish(unusable)
    return Append(proposal)


def retire(
    state: SinkState, record: CommitRecord, producers: Iterable[ProducerID], nonce: str = ""
) -> Append | Return:
    """Return a driver's next step to retire producers of a commit record."""
    remaining = frozenset(producers) - state.retired.keys()
    # Invariant: after a later decision, the producers are retired, or didn't need to be.
    if not remaining or state.decided > record.batch:
        return Return()
    spans = tuple(Span(span.producer, span.ack) for span in record.spans)
    spans = tuple(span for span in spans if span.producer in remaining)
    return Append(
        CommitRecord(CommitKind.RETIRE, record.key, record.batch, record.run, nonce, spans=spans)
    )


def abort(
    state: SinkState, key: SinkKey, batch: int, messages: Iterable[TaskMessage], nonce: str = ""
) -> Abort:
    """Return a driver's next step to abort a batch, unless the batch is decided.

    The record retires the producers, so that no later commit record names them. It also takes the
    offset at which a commit record may still arrive.
    """
    if state.decided >= batch:
        return Return()
    spans = {message.producer: Span(message.producer, message.ack) for message in messages}
    remaining = tuple(span for span in spans.values() if span.producer not in state.retired)
    if not remaining:
        return RollBack() if spans else Return()
    return Append(CommitRecord(CommitKind.ABORT, key, batch, nonce=nonce, spans=remaining))


def finish(state: SinkState, record: CommitRecord, nonce: str = "") -> Append | Return:
    """Return the next step after all acknowledgements of a commit record are appended."""
    if state.done or state.decided != record.batch:
        return Return()
    return Append(CommitRecord(CommitKind.DONE, record.key, record.batch, record.run, nonce))


def _unusable(state: SinkState, proposal: CommitRecord) -> Iterable[ProducerID]:
    """Yield producers which a commit record must not name."""
    acks = {span.producer: span.ack for record in state.recent for span in record.spans}
    for span in proposal.spans:
        # Wire: an acknowledgement with a clock not after the previous one would roll back.
        if span.producer in state.retired or span.ack <= acks.get(span.producer, -1):
            yield span.producer
