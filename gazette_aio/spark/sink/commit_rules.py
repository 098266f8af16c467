"""What the records of a commit journal come to, and what a driver does next.

Drivers append to the journal by compare-and-append: a record takes effect only if nothing was
appended since its driver last read. So what a driver decides upon is what is there just before its
record, and all drivers agree on the order.

Invariants:

1. There's one commit record of each batch of a sink: the first, and those of later batches follow.
2. A producer publishes for another batch only if the batch before is decided, lists it with the
   clock it reported, and it isn't retired.
3. An acknowledgement is appended only for a producer of the latest commit record of its sink. It's
   repeated only once that producer is retired: a copy of it which lands behind messages of the next
   batch would have readers drop these.
4. A batch returns only when all of its acknowledgements are appended.
5. No producer of a commit record is rolled back, and none which is rolled back, or retired, gets
   into a commit record thereafter.

A function which decides returns an `Append`, or what the sink has come to. Who appends the record
folds it, and asks again; if the append was refused, it reads on, and asks again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gazette_aio.protocol.errors import StoreError
from gazette_aio.spark.sink.commit_records import Kind, Record, Refused, SinkKey, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_aio.message.uuid import ProducerID
    from gazette_aio.spark.sink.commit_records import TaskMessage

RECENT_RECORDS: Final = 8
"""Batches over which a producer may be idle, and be used again."""
MOST_RUNS: Final = 256
"""Jobs without a name which are remembered. Only those who run them ask for them, and soon."""


class Use(NamedTuple):
    """The use which a producer was put to."""

    batch: int
    ack: int
    """Clock of its acknowledgement."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What tasks of a batch have to know of those before. It's small, and can be pickled."""

    key: SinkKey
    decided: int
    """Latest batch which is decided, or -1."""
    clean: dict[ProducerID, Use]
    """Producers which may be used again, and their latest uses."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """What the records of one sink come to."""

    recent: tuple[Record, ...] = ()
    """Its latest commit records, the last one at the end."""
    retired: dict[ProducerID, int] = dataclasses.field(default_factory=dict["ProducerID", int])
    """Retired producers which may still be named, and the batches which retired them."""
    done: bool = False
    """Whether the acknowledgements of the latest one are known to be appended."""

    @property
    def last(self) -> Record | None:
        """The latest commit record."""
        return self.recent[-1] if self.recent else None

    @property
    def decided(self) -> int:
        """Latest batch which is decided, or -1."""
        return self.recent[-1].batch if self.recent else -1

    def plan(self, key: SinkKey) -> Plan:
        """Return what tasks of the next batch have to know."""
        clean = {
            span.producer: Use(record.batch, span.ack)
            for record in self.recent
            for span in record.spans
            if span.producer not in self.retired
        }
        return Plan(key, self.decided, clean)

    def fold(self, record: Record) -> SinkState:
        """Return the state behind a further record."""
        match record.kind:
            case Kind.COMMIT:
                if record.batch <= self.decided:
                    return self  # Invariant: the first one counts.
                recent = (*self.recent, record)[-RECENT_RECORDS:]
                # Nobody names producers of batches before that.
                oldest = recent[0].batch
                retired = {p: batch for p, batch in self.retired.items() if batch >= oldest}
                return SinkState(recent, retired)
            case Kind.RETIRE | Kind.ABORT:
                retired = {**self.retired, **dict.fromkeys(record.producers, record.batch)}
                return dataclasses.replace(self, retired=retired)
            case Kind.DONE:
                return dataclasses.replace(self, done=self.done or record.batch == self.decided)


class CommitState:
    """What a commit journal comes to.

    Args:
        only: The one sink of interest; None for all.
    """

    def __init__(self, only: SinkKey | None = None) -> None:
        self._only = only
        self._sinks: dict[SinkKey, SinkState] = {}
        self._runs: dict[SinkKey, None] = {}
        self._refused: dict[SinkKey | None, str] = {}

    def fold(self, line: Record | Refused) -> None:
        """Take in the next line of the journal."""
        key = line.key
        if key is not None and self._only not in (None, key):
            return
        if isinstance(line, Refused):
            self._refused.setdefault(key, line.reason)
        else:
            # The one which was heard of last is at the end.
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
        """Whether lines which aren't understood are of this sink, and not of any."""
        return key in self._refused and None not in self._refused

    def __iter__(self) -> Iterator[SinkKey]:
        return iter(list(self._sinks))

    def __repr__(self) -> str:
        return f"<CommitState of {len(self._sinks)} sinks>"


class Append(NamedTuple):
    """Append a record right behind what was read, fold it, and ask again."""

    record: Record


class Acknowledge(NamedTuple):
    """Append the acknowledgements of a record."""

    record: Record


class Refuse(NamedTuple):
    """Fail: the batch must be published again by other producers."""

    producers: frozenset[ProducerID]


class RollBack(NamedTuple):
    """Roll back messages of the batch: nothing commits them any more."""


class Return(NamedTuple):
    """Return: there's nothing to do."""


Commit: TypeAlias = Append | Acknowledge | Refuse | Return
Abort: TypeAlias = Append | RollBack | Return


def decide(state: SinkState, batch: int, proposal: Record | None, nonce: str = "") -> Commit:
    """Return what a driver does next to commit a batch.

    Args:
        state: What the journal comes to, up to where a record would be appended.
        batch: The batch.
        proposal: The record which commits it, or None if nothing was published.
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
        # Invariant: these may have been acknowledged before.
        retirement = retire(state, last, last.producers, nonce)
        return retirement if isinstance(retirement, Append) else Acknowledge(last)
    if proposal is None:
        return Return()
    if unusable := frozenset(_unusable(state, proposal)):
        return Refuse(unusable)
    return Append(proposal)


def retire(
    state: SinkState, record: Record, producers: Iterable[ProducerID], nonce: str = ""
) -> Append | Return:
    """Return what a driver does next so that producers of a commit record are retired."""
    remaining = frozenset(producers) - state.retired.keys()
    # Invariant: they aren't of a later batch: who decided that has retired them, or none was to be.
    if not remaining or state.decided > record.batch:
        return Return()
    spans = tuple(Span(span.producer, span.ack) for span in record.spans)
    spans = tuple(span for span in spans if span.producer in remaining)
    return Append(Record(Kind.RETIRE, record.key, record.batch, record.run, nonce, spans=spans))


def abort(
    state: SinkState, key: SinkKey, batch: int, messages: Iterable[TaskMessage], nonce: str = ""
) -> Abort:
    """Return what a driver does next to abort a batch, unless that's decided already.

    The record retires the producers, so that no commit record names them thereafter. It also takes
    the place at which a commit record may still be about to be appended.
    """
    if state.decided >= batch:
        return Return()
    spans = {message.producer: Span(message.producer, message.ack) for message in messages}
    remaining = tuple(span for span in spans.values() if span.producer not in state.retired)
    if not remaining:
        return RollBack() if spans else Return()
    return Append(Record(Kind.ABORT, key, batch, nonce=nonce, spans=remaining))


def finish(state: SinkState, record: Record, nonce: str = "") -> Append | Return:
    """Return what is next once all acknowledgements of a commit record are appended."""
    if state.done or state.decided != record.batch:
        return Return()
    return Append(Record(Kind.DONE, record.key, record.batch, record.run, nonce))


def _unusable(state: SinkState, proposal: Record) -> Iterable[ProducerID]:
    """Yield producers which a commit record must not name."""
    acks = {span.producer: span.ack for record in state.recent for span in record.spans}
    for span in proposal.spans:
        # Wire: an acknowledgement which isn't beyond the one before would roll back.
        if span.producer in state.retired or span.ack <= acks.get(span.producer, -1):
            yield span.producer
