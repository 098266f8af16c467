"""The rule as a function: from a producer's state before a range to its state after the range.

Theory of operation. The effect of messages on the bounds of their producer (see `sequencing.rules`)
has two properties that let ranges be summarized independently, in parallel, and exactly, for any
order of clocks:

- An acknowledgement leaves the state (its clock, its clock, nothing pending), whether it commits
  or rolls back. So the state after the first acknowledgement of a range depends on the range
  alone. As pending clocks are above `min`, both outcomes also are one verdict on the messages
  pending before: "commit clocks up to mine".
- Before the first acknowledgement, `min` only changes by messages outside of transactions, to
  clocks above it. So the last one that counts is the first one with the largest clock, and it
  counts if that clock is above `min`. The state after it depends on the range alone.

A range with neither remains. It adds its pending clocks to the earlier ones: their largest clock
and the first message suffice. One question then may have only a lower bound as its answer: if
nothing was pending, and the range begins with duplicates, which message is the first one above
them? The answer affects no verdict, only the offset from which a later commit is read again.

Zero clocks have no effect: such messages always commit by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.core.rules import ACK, CONTINUE, ProducerBounds, unseen

if TYPE_CHECKING:
    from collections.abc import Iterable

DROPPED = 0
"""Verdict of pending messages that never commit. Others are the clock up to which they commit."""


class Run(NamedTuple):
    """Messages of transactions, of a range without an acknowledgement."""

    clock: int
    """Clock of the first message."""
    begin: int
    """Offset of the first message."""
    max: int
    """Largest clock."""


class Transfer(NamedTuple):
    """Effect of a range on the state of one producer."""

    first: int
    """Clock of the first message."""
    outside: int
    """Largest clock outside of transactions before the first acknowledgement, or 0."""
    ack: int
    """Clock of the first acknowledgement, or 0."""
    last: ProducerBounds | None
    """State at the end, if there's an acknowledgement or `outside` counts."""
    run: Run | None
    """Messages of transactions, if there's no acknowledgement."""


def begun(bounds: ProducerBounds | None, transfer: Transfer) -> ProducerBounds:
    """Return the state at the begin of a range, also of a producer that wasn't seen before it."""
    return unseen(transfer.first) if bounds is None else bounds


def verdict(bounds: ProducerBounds, transfer: Transfer) -> int | None:
    """Return the fate of messages that are pending when a range begins.

    Returns:
        The clock up to which they commit, or DROPPED, or None if they're still pending at its end.
    """
    if transfer.outside > bounds.min:
        return DROPPED
    return transfer.ack or None


def apply(bounds: ProducerBounds, transfer: Transfer) -> tuple[ProducerBounds, bool]:
    """Return the state at the end of a range, and whether its `begin` is exact.

    Otherwise `begin` is a lower bound. The exact offset is that of the range's first message of a
    transaction with a clock above `min`.

    Args:
        bounds: State when the range begins.
        transfer: Effect of the range.
    """
    if transfer.ack or transfer.outside > bounds.min:
        assert transfer.last is not None, "an acknowledgement or message outside leaves a state"
        return transfer.last, True
    run = transfer.run
    if run is None or run.max <= bounds.max:
        return bounds, True
    if bounds.begin != -1:
        return ProducerBounds(bounds.min, run.max, bounds.begin), True
    return ProducerBounds(bounds.min, run.max, run.begin), run.clock > bounds.max


def chain(former: Transfer, latter: Transfer) -> tuple[Transfer, bool]:
    """Return the effect of two consecutive ranges, and whether the `begin` of its end is exact."""
    last, exact = latter.last, True
    if former.last is not None:
        last, exact = apply(former.last, latter)
    if former.ack:
        return former._replace(last=last), exact
    run = None
    if not latter.ack:
        run = former.run or latter.run
        if former.run is not None and latter.run is not None:
            run = former.run._replace(max=max(former.run.max, latter.run.max))
    outside = max(former.outside, latter.outside)
    return Transfer(former.first, outside, latter.ack, last, run), exact


def transfer_of(rows: Iterable[tuple[int, int, int]]) -> Transfer:
    """Return the effect of messages of one producer, in any order of clocks.

    Args:
        rows: Clock, kind (OUTSIDE, CONTINUE or ACK) and begin of each message. At least one.
    """
    first = outside = ack = 0
    low = high = 0  # The state after a message that determines it, once `has_last`.
    begin = -1
    has_last = False
    run_clock = run_begin = run_max = 0
    for clock, kind, offset in rows:
        first = first or clock
        if kind == CONTINUE:
            if has_last and clock > high:
                high = clock
                begin = offset if begin == -1 else begin
            if not run_clock:
                run_clock, run_begin = clock, offset
            if clock > run_max:  # noqa: PLR1730 - hot: a call would double the cost.
                run_max = clock
        elif kind == ACK or clock > low:
            if kind == ACK:
                ack = ack or clock
            elif not ack:
                outside = clock
            low = high = clock
            begin, has_last = -1, True
    last = ProducerBounds(low, high, begin) if has_last else None
    run = Run(run_clock, run_begin, run_max) if run_clock and not ack else None
    return Transfer(first, outside, ack, last, run)
