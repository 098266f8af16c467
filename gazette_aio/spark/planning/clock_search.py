"""Searches of the fragments of a journal for those with messages of a time.

Theory of operation. Messages are roughly in the order of their clocks: no message has a clock which
is more than the *skew* before that of an earlier message. Producers' clocks, and the time between
the stamp of a message and its append, must keep to that. A message `m` thus bounds all others:

    after m,  no clock is less than    clock(m) - skew
    before m, no clock is greater than clock(m) + skew

So if a fragment begins with messages whose clocks are all at least `stop + skew`, no message of the
fragment or after it has a clock less than `stop`. If it begins with messages whose clocks are all
less than `start - skew`, no message before the fragment has a clock of `start` or more. A binary
search looks for the first such end, and for the last such begin. Both hold where the search ends
up, whatever the order of the other fragments is.

A fragment which can't be probed, or which has no clocks, bounds nothing: it's read, unless its
neighbors exclude it. Only persisted fragments are candidates, which don't change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.spark.planning.journal_ranges import clip_fragments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gazette_aio.spark.planning.journal_ranges import JournalRange


class Clocks(NamedTuple):
    """Clocks of the first messages of a fragment."""

    least: int
    greatest: int


class Probe(NamedTuple):
    """Begin of a fragment, whose first messages are to be looked at."""

    begin: int
    end: int


class ClockWindow(NamedTuple):
    """Clocks of wanted messages.

    Args:
        start: Least clock, if any.
        stop: Clock after the greatest clock, if any.
        skew: Amount by which clocks may go back.
    """

    start: int | None
    stop: int | None
    skew: int

    def ends_before(self, clocks: Clocks) -> bool:
        """Return whether no wanted message is at or after the first messages of a fragment."""
        return self.stop is not None and clocks.least >= self.stop + self.skew

    def begins_after(self, clocks: Clocks) -> bool:
        """Return whether no wanted message is before the first messages of a fragment."""
        return self.start is not None and clocks.greatest + self.skew < self.start


def next_step(
    planned: JournalRange, window: ClockWindow, known: Mapping[int, Clocks | None]
) -> Probe | JournalRange:
    """Return the fragment to probe next, or the part of a range which can have wanted messages.

    Each fragment is probed at most once, and about 2 * log2(fragments) of them are.

    Args:
        planned: The range, whose fragments were listed.
        window: Clocks of the wanted messages.
        known: Results of the probes so far, by their begin; None where a fragment has no clocks.
    """
    probes = _candidates(planned)

    def search(high: int, is_high: Callable[[Clocks | None], bool]) -> Probe | int:
        """Return the first fragment, up to `high`, for which `is_high` is true."""
        low = -1
        while high - low > 1:
            middle = (low + high) // 2
            if probes[middle].begin not in known:
                return probes[middle]
            if is_high(known[probes[middle].begin]):
                high = middle
            else:
                low = middle
        return high

    stop = len(probes)
    if window.stop is not None:
        found = search(stop, lambda one: one is not None and window.ends_before(one))
        if isinstance(found, Probe):
            return found
        stop = found
    end = probes[stop].begin if stop < len(probes) else planned.end
    begin = planned.begin
    if window.start is not None:
        found = search(stop, lambda one: one is None or not window.begins_after(one))
        if isinstance(found, Probe):
            return found
        if found > 0:
            begin = probes[found - 1].begin
    return planned._replace(begin=begin, end=max(begin, end))


def _candidates(planned: JournalRange) -> list[Probe]:
    """Return the persisted fragments whose first messages are in a range, in order.

    A fragment which begins inside another isn't among them: brokers may read the other instead.
    """
    listed = planned.journal.fragments or ()
    begins = {fragment.begin for fragment in listed}
    return [
        Probe(fragment.begin, min(fragment.end, planned.end))
        for fragment in clip_fragments(listed)
        if fragment.mod_time
        and fragment.begin in begins
        and planned.begin <= fragment.begin < planned.end
    ]
