"""The rule by which messages commit: one table, and one step over it.

Each producer of a journal has three numbers, its bounds:

    min    clock up to which messages are done: they were delivered or rolled back
    max    largest clock of the pending messages, or `min` if nothing is pending
    begin  offset of the first pending message, or -1 if nothing is pending

The next message of the producer has flags and a clock. Together with the bounds they select exactly
one row of RULES: the outcome of the message, the messages that commit, and the bounds thereafter.
The row also depends on whether all pending messages are still at hand: if some were evicted from
memory, or precede a restart, the commit reads them again from the journal.

`Sequencer` looks up each message here. The core, and summaries of ranges (`ranges.transfer`), have
the rule again for speed. Property tests compare them with RULES.

States of a producer, and the outcomes that lead from one to another, as a Mermaid diagram:

stateDiagram-v2
    [*] --> idle
    pending --> evicted : the ring overflows
    idle --> idle : OUTSIDE_COMMIT
    pending --> idle : OUTSIDE_COMMIT
    evicted --> idle : OUTSIDE_COMMIT
    idle --> pending : CONTINUE_BEGIN_SPAN
    pending --> pending : CONTINUE_EXTEND_SPAN
    evicted --> evicted : CONTINUE_EXTEND_SPAN
    idle --> idle : ACK_ROLLBACK
    pending --> idle : ACK_ROLLBACK
    evicted --> idle : ACK_ROLLBACK
    idle --> idle : ACK_EMPTY
    pending --> idle : ACK_COMMIT_RING
    evicted --> idle : ACK_COMMIT_REPLAY

Source: the transitions of Gazette's message sequencer.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from itertools import product
from typing import NamedTuple

from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN

# Plain ints, which compare faster than Flags. Unknown flags count as OUTSIDE.
OUTSIDE, CONTINUE, ACK = int(OUTSIDE_TXN), int(CONTINUE_TXN), int(ACK_TXN)


class QueueOutcome(IntEnum):
    """Outcome of queueing a message."""

    OUTSIDE_ALREADY_ACKED = 0
    OUTSIDE_COMMIT = 1
    CONTINUE_ALREADY_ACKED = 2
    CONTINUE_TXN_CLOCK_LARGER = 3
    CONTINUE_BEGIN_SPAN = 4
    CONTINUE_EXTEND_SPAN = 5
    ACK_ROLLBACK = 6
    ACK_EMPTY = 7
    ACK_COMMIT_RING = 8
    ACK_COMMIT_REPLAY = 9

    @property
    def label(self) -> str:
        """Name of the outcome in Gazette's metrics."""
        first, *others = self.name.replace("TXN_CLOCK", "RING_CLOCK").lower().split("_")
        return first + "".join(map(str.capitalize, others))


class ProducerBounds(NamedTuple):
    """State of one producer at an offset of a journal."""

    min: int
    """Messages with clocks up to this are done."""
    max: int
    """Largest clock of the pending messages, or `min`."""
    begin: int
    """Offset of the first pending message, or -1."""


Bounds = tuple[int, int, int]
"""ProducerBounds, or a plain tuple of its fields: a tenth faster for batches of many producers."""
State = tuple[bytes, int, int, int]
"""A producer, and its bounds."""


def stale_below(newest: int, horizon_ns: int) -> int:
    """Return the clock below which producers are stale.

    Args:
        newest: Newest `min` of the producers of a journal.
        horizon_ns: Age of stale producers relative to `newest`, in nanoseconds.
    """
    # Invariant: saturates, so that small clocks don't yield a bound that prunes all producers.
    return max(newest - ((horizon_ns // 100) << 4), 0)


def unseen(clock: int) -> ProducerBounds:
    """Return the bounds of a producer before its first message, which has `clock`."""
    return ProducerBounds(clock - 1, clock - 1, -1)


class ClockIs(IntEnum):
    """The clock of a message, relative to the bounds of its producer."""

    ZERO = 0
    BELOW = 1
    """Below `min`."""
    LAST = 2
    """Equal to `min`."""
    PENDING = 3
    """Above `min`, but not above `max`."""
    NEW = 4
    """Above `max`."""


class PendingAre(IntEnum):
    """The pending messages of a producer."""

    NONE = 0
    RETAINED = 1
    EVICTED = 2
    """At least some are evicted. Those of a checkpoint count as evicted, too."""


class Commits(Enum):
    """Messages that a message commits, in the order of the journal.

    An acknowledgement with the clock of the last committed message isn't delivered itself.
    """

    NOTHING = "nothing"
    MESSAGE = "the message"
    SPAN = "pending messages up to its clock, and the message"


class Then(Enum):
    """Bounds of a producer after a message and all that it commits are processed."""

    SAME = "min, max, begin"
    BEGIN = "min, clock, offset"
    EXTEND = "min, clock, begin"
    CLOSE = "clock, clock, -1"


class Rule(NamedTuple):
    """A row of the table: its cases, and their outcome."""

    flags: tuple[int, ...]
    clock: tuple[ClockIs, ...]
    pending: tuple[PendingAre, ...]
    outcome: QueueOutcome
    commits: Commits
    then: Then
    reason: str
    warning: str | None = None
    """Error to log: the producer misbehaves."""


ZERO, BELOW, LAST, PENDING, NEW = ClockIs
NONE, RETAINED, EVICTED = PendingAre
NOTHING, MESSAGE, SPAN = Commits
SAME, BEGIN, EXTEND, CLOSE = Then
_ALL, _ANY = (OUTSIDE, CONTINUE, ACK), (NONE, RETAINED, EVICTED)
_DONE, _ABOVE, _SOME = (BELOW, LAST), (PENDING, NEW), (RETAINED, EVICTED)
_Is = QueueOutcome

RULES = (
    #    flags        clock        pending      outcome                         commits  then
    Rule(_ALL,        (ZERO,),     _ANY,        _Is.OUTSIDE_COMMIT,             MESSAGE, SAME,
         "Without a clock it takes no part in sequencing. It's delivered whenever it's read."),
    Rule((OUTSIDE,),  _DONE,       _ANY,        _Is.OUTSIDE_ALREADY_ACKED,      NOTHING, SAME,
         "A duplicate."),
    Rule((OUTSIDE,),  _ABOVE,      (NONE,),     _Is.OUTSIDE_COMMIT,             MESSAGE, CLOSE,
         "It commits by itself."),
    Rule((OUTSIDE,),  _ABOVE,      _SOME,       _Is.OUTSIDE_COMMIT,             MESSAGE, CLOSE,
         "It commits by itself. The producer gave up its pending messages, or mixes two ways of "
         "publishing.",
         "message outside of transactions discards pending ones of its producer"),
    Rule((CONTINUE,), _DONE,       _ANY,        _Is.CONTINUE_ALREADY_ACKED,     NOTHING, SAME,
         "A duplicate of a message that is done."),
    Rule((CONTINUE,), (PENDING,),  _ANY,        _Is.CONTINUE_TXN_CLOCK_LARGER,  NOTHING, SAME,
         "A duplicate of a pending message."),
    Rule((CONTINUE,), (NEW,),      (NONE,),     _Is.CONTINUE_BEGIN_SPAN,        NOTHING, BEGIN,
         "The first message of a transaction."),
    Rule((CONTINUE,), (NEW,),      _SOME,       _Is.CONTINUE_EXTEND_SPAN,       NOTHING, EXTEND,
         "A further message of a transaction."),
    Rule((ACK,),      (BELOW,),    _ANY,        _Is.ACK_ROLLBACK,               NOTHING, CLOSE,
         "The producer went back in time, and may publish again what was delivered.",
         "acknowledgement is older than the last one: exactly-once semantics are lost"),
    Rule((ACK,),      (LAST,),     _ANY,        _Is.ACK_ROLLBACK,               NOTHING, CLOSE,
         "A repeated acknowledgement. Pending messages, if any, are rolled back."),
    Rule((ACK,),      _ABOVE,      (NONE,),     _Is.ACK_EMPTY,                  MESSAGE, CLOSE,
         "An acknowledgement of nothing, in this journal."),
    Rule((ACK,),      _ABOVE,      (RETAINED,), _Is.ACK_COMMIT_RING,            SPAN,    CLOSE,
         "The transaction commits. Pending messages above the clock are rolled back."),
    Rule((ACK,),      _ABOVE,      (EVICTED,),  _Is.ACK_COMMIT_REPLAY,          SPAN,    CLOSE,
         "The transaction commits, and the journal is read again from `begin`."),
)  # fmt: skip
"""Each case has exactly one row. A clock isn't PENDING if nothing is pending."""

_CASES = {case: rule for rule in RULES for case in product(rule.flags, rule.clock, rule.pending)}


def rule_of(bounds: ProducerBounds, flags: int, clock: int, pending: PendingAre) -> Rule:
    """Return the table row of a message.

    Args:
        bounds: Bounds of the message's producer.
        flags: Flags of the message.
        clock: Clock of the message.
        pending: Whether the producer's pending messages are at hand.
    """
    if clock == 0:
        case = ZERO
    elif clock > bounds.max:
        case = NEW
    elif clock > bounds.min:
        case = PENDING
    else:
        case = LAST if clock == bounds.min else BELOW
    return _CASES[flags if flags <= ACK else OUTSIDE, case, pending]


def step(
    bounds: ProducerBounds, flags: int, clock: int, offset: int, *, retained: bool = True
) -> tuple[Rule, ProducerBounds]:
    """Return the table row of a message, and the bounds of its producer thereafter.

    Args:
        bounds: Bounds of the message's producer: `unseen(clock)` if it's unknown.
        flags: Flags of the message.
        clock: Clock of the message.
        offset: Offset at which the message begins.
        retained: Whether all pending messages of the producer are at hand.
    """
    pending = RETAINED if retained else EVICTED
    rule = rule_of(bounds, flags, clock, pending if bounds.begin != -1 else NONE)
    match rule.then:
        case Then.SAME:
            return rule, bounds
        case Then.BEGIN:
            return rule, ProducerBounds(bounds.min, clock, offset)
        case Then.EXTEND:
            return rule, ProducerBounds(bounds.min, clock, bounds.begin)
        case Then.CLOSE:
            return rule, ProducerBounds(clock, clock, -1)
