"""Searches for the fragments with messages of a time, on journals without a broker."""

from __future__ import annotations

import math
import random

import pytest

from gazette_aio.spark.planning.clock_search import Clocks, ClockWindow, Probe, next_step
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo, JournalRange

SIZE = 10
"""Messages of a fragment, each of one byte."""


def journal(*fragments, head=None):
    ends = [each.end for each in fragments]
    return JournalInfo("j", max(ends) if head is None else head, fragments=fragments)


def fragments(count):
    return [FragmentInfo(SIZE * at, SIZE * at + SIZE, 1) for at in range(count)]


def search(planned, window, answer):
    """Return the planned range, and the begins of the probes."""
    known = {}
    while isinstance(step := next_step(planned, window, known), Probe):
        assert step.begin not in known, "a fragment is probed once"
        known[step.begin] = answer(step)
    return step, list(known)


def probed(clocks, size=3):
    def answer(probe):
        found = [c for c in clocks[probe.begin : min(probe.begin + size, probe.end)] if c]
        return Clocks(min(found), max(found)) if found else None

    return answer


@pytest.mark.parametrize("seed", range(200))
def test_no_message_of_the_time_is_left_out(seed):
    rng = random.Random(seed)
    count, skew = rng.randint(0, 40), rng.choice([0, 5, 60])
    # Appends at times in order, by producers whose clocks differ by up to the skew.
    clocks = [1000 + 7 * at + rng.randint(0, skew) for at in range(SIZE * count + 5)]
    if rng.random() < 0.5:
        clocks = [0 if rng.random() < 0.5 else clock for clock in clocks]
    listed = [fragment._replace(mod_time=int(rng.random() < 0.9)) for fragment in fragments(count)]
    start, stop = sorted(rng.randint(900, 1100 + 7 * len(clocks)) for _ in range(2))
    window = ClockWindow(
        start if rng.random() < 0.8 else None, stop if rng.random() < 0.8 else None, skew
    )
    begin = rng.randint(0, len(clocks))
    planned = JournalRange(
        journal(*rng.sample(listed, count), head=len(clocks)),
        begin,
        rng.randint(begin, len(clocks)),
    )
    found, probes = search(planned, window, probed(clocks))
    assert planned.begin <= found.begin <= found.end <= planned.end
    for at in range(planned.begin, planned.end):
        is_wanted = clocks[at] and (window.start or 0) <= clocks[at] < (window.stop or 1 << 60)
        assert not is_wanted or found.begin <= at < found.end
    assert len(probes) <= 2 * math.ceil(math.log2(count + 1))


def test_few_fragments_are_read_beside_those_of_the_time():
    clocks = list(range(1000, 1000 + 50 * SIZE))
    planned = JournalRange(journal(*fragments(50)), 0, len(clocks))
    window = ClockWindow(1205, 1225, skew=2)
    found, probes = search(planned, window, probed(clocks))
    assert found[1:] == (200, 230)
    assert len(probes) <= 12


def test_a_time_before_all_content_leaves_nothing():
    planned = JournalRange(journal(*fragments(50)), 0, 50 * SIZE)
    found, probes = search(planned, ClockWindow(None, 5, skew=300), lambda _: Clocks(1000, 1001))
    assert found.begin == found.end
    assert len(probes) <= 6
    # So does a time within the range which follows.
    found, _ = search(planned._replace(begin=15), ClockWindow(None, 5, 3), lambda _: Clocks(9, 9))
    assert found[1:] == (15, 20)


def test_a_fragment_without_clocks_bounds_nothing():
    planned = JournalRange(journal(*fragments(8)), 0, 8 * SIZE)
    found, _ = search(planned, ClockWindow(5, 6, skew=0), lambda _: None)
    assert found == planned


def test_content_which_is_not_persisted_is_not_probed():
    listed = [*fragments(2), FragmentInfo(20, 30, 0)]
    planned = JournalRange(journal(*listed), 0, 30)
    found, probes = search(planned, ClockWindow(None, 5, skew=0), lambda _: Clocks(1, 1))
    assert found == planned
    assert sorted(probes) == [0, 10]


def test_a_fragment_inside_another_is_not_probed():
    listed = [FragmentInfo(0, 20, 1), FragmentInfo(10, 30, 1), FragmentInfo(30, 40, 1)]
    planned = JournalRange(journal(*listed), 0, 40)
    found, probes = search(
        planned, ClockWindow(None, 5, 0), lambda probe: Clocks(*[probe.begin] * 2)
    )
    assert found[1:] == (0, 30)
    assert 10 not in probes
