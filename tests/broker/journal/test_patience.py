"""Time for which a client is charged, by what the broker was there to see of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.broker.journal.patience import LOOK_SECONDS, Patience


def waited(lates: list[float], allowance: float = 1.0) -> tuple[float, bool]:
    """Return what counts of a wait whose looks are late by these times, and whether it's over."""
    patience, now, over = Patience(), 100.0, False
    patience.begin(now, allowance)
    for late in lates:
        due = now + LOOK_SECONDS
        now = due + late
        over = patience.look(due, now)
    return patience.waited, over


def test_a_broker_that_looks_in_time_charges_the_client_for_all() -> None:
    assert waited([0.0] * 9) == (pytest.approx(0.9), False)
    assert waited([0.0] * 11) == (pytest.approx(1.1), True)


def test_a_starved_broker_charges_the_client_for_nothing() -> None:
    assert waited([LOOK_SECONDS, 0.25, 5.0, 3600.0] * 10) == (0.0, False)
    # One long stop costs the client nothing of what it has left after that.
    assert waited([0.0] * 8 + [60.0] + [0.0]) == (pytest.approx(0.9), False)
    assert waited([0.0] * 8 + [60.0] + [0.0] * 3) == (pytest.approx(1.1), True)


def test_a_busy_broker_charges_the_client_for_less() -> None:
    assert waited([0.04] * 10) == (pytest.approx(0.6), False)
    assert waited([0.04] * 17) == (pytest.approx(1.02), True)


def test_a_message_ends_a_wait_at_any_time() -> None:
    patience = Patience()
    patience.begin(100.0, 1.0)
    due = 100.0 + LOOK_SECONDS
    assert not patience.look(due, 100.03)
    assert patience.waited == pytest.approx(0.03)
    # The same look is due within the next wait, which didn't begin with its interval.
    patience.begin(100.05, 1.0)
    assert not patience.look(due, 100.1)
    assert patience.waited == pytest.approx(0.05)
    patience.begin(100.1, 1.0)
    assert not patience.look(due + 0.1, 190.0)  # The broker saw the message long after it came.
    assert patience.waited == 0.0


def test_clients_that_may_be_silent_are_not_looked_at() -> None:
    patience = Patience()
    patience.begin(100.0, math.inf)
    assert not patience.look(math.inf, 10**9)


@given(st.lists(st.floats(0, 10), max_size=50))
def test_no_more_counts_than_there_was(lates: list[float]) -> None:
    counted, _ = waited(lates)
    assert 0 <= counted <= LOOK_SECONDS * len(lates) + 1e-6
    assert counted >= sum(LOOK_SECONDS - late for late in lates) - 1e-6
