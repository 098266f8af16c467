"""Rate limits of append streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.broker.journal.flow_control import (
    LOOK_MILLIS,
    FlowBalance,
    FlowControl,
    effective_max_rate,
)


def flow(
    journal: FlowBalance | None = None, *, max_rate: int = 10_000, now: int = 100_000
) -> FlowControl:
    return FlowControl(journal or FlowBalance(), max_rate=max_rate, min_rate=1000, now_millis=now)


def all_waited(fc: FlowControl, now: int) -> bool:
    """Charge the client for all time."""
    return fc.tick(now, now - fc.journal.last_millis)


def test_balance_and_underflow() -> None:
    fc = flow()
    assert (fc.journal.balance, fc.spent) == (10_000, 1000)
    fc.chunk(9_980)
    assert (fc.journal.balance, fc.charge) == (20, 0)
    fc.chunk(40)
    assert (fc.journal.balance, fc.charge) == (0, 20)
    assert all_waited(fc, 100_001)
    assert fc.charge == 10
    assert all_waited(fc, 200_001)  # A held chunk is not the client's fault.
    assert (fc.journal.balance, fc.spent, fc.charge) == (99_990, 10, 0)
    fc.chunk(40)
    assert not all_waited(fc, 200_052)
    assert (fc.total_chunks, fc.delayed_chunks) == (3, 1)


def test_a_large_chunk_is_discharged_over_time() -> None:
    fc = flow(max_rate=1000)
    fc.chunk(11_000)
    for second in range(1, 10):
        assert all_waited(fc, 100_000 + second * 1000)
        assert fc.charge == 10_000 - second * 1000
        assert 0 < fc.hold_millis() <= 1000
    assert all_waited(fc, 110_000)
    assert fc.charge == fc.hold_millis() == 0


def test_balance_carries_over() -> None:
    journal = FlowBalance()
    flow(journal).chunk(9_000)
    assert journal.balance == 1000
    flow(journal, now=100_150)
    assert journal.balance == 2500


def test_lifting_the_limit_releases_a_chunk() -> None:
    fc = flow()
    fc.chunk(50_000)
    assert fc.charge
    fc.lift()
    assert fc.charge == 0
    fc.chunk(1 << 30)
    assert fc.charge == 0


def test_a_lowered_limit_holds_from_the_first_chunk() -> None:
    journal = FlowBalance(balance=100_000, last_millis=100_000)
    fc = flow(journal, max_rate=1000)
    fc.chunk(10_001)
    assert (fc.charge, fc.delayed_chunks) == (1, 1)


def test_unlimited_journals_still_underflow() -> None:
    fc = flow(max_rate=0)
    fc.chunk(1 << 40)
    assert (fc.charge, fc.spent) == (0, 1000)
    assert all_waited(fc, 100_999)
    assert not all_waited(fc, 101_000)


def test_the_silent_client_is_cut_off_after_its_credit() -> None:
    fc = flow()
    assert fc.patience_millis() == 1050
    fc.skip(100_400)  # The broker was busy: the client isn't charged for it.
    assert fc.patience_millis() == 1050
    assert fc.tick(105_000, 300)  # Nor for what else the broker spent of the wait.
    assert fc.patience_millis() == 750
    assert flow(max_rate=0).tick(200_000, 999)
    assert not flow(max_rate=0).tick(200_000, 1000)


def test_the_broker_bounds_journals_which_have_a_limit() -> None:
    assert effective_max_rate(10**15, 10**10) == 10**10
    assert effective_max_rate(10**3, 10**10) == 10**3
    assert effective_max_rate(0, 10**10) == 0
    assert effective_max_rate(5, 0) == 5


@given(
    st.integers(0, 100_000),
    st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 3000)), max_size=30),
)
def test_rates_hold(max_rate: int, steps: list[tuple[int, int]]) -> None:
    journal = FlowBalance()
    now = start = 50_000
    fc = FlowControl(journal, max_rate=max_rate, min_rate=1, now_millis=now)
    passed = 0
    for length, pause in steps:
        now += pause
        all_waited(fc, now)
        fc.chunk(length)
        ticks = 0
        while hold := fc.hold_millis():
            now += hold
            all_waited(fc, now)
            ticks += 1
            assert ticks < 10_000_000
        passed += length
        assert 0 <= journal.balance <= max(10 * max_rate, max_rate)
        if max_rate:
            assert passed <= max_rate * (1 + (now - start) / 1000) + 1
    assert fc.total_chunks == len(steps)


# Only time that the broker was there to see is charged


def waited(lates: list[float]) -> tuple[float, bool]:
    """Return what counts of a wait whose looks are late by these times, and whether it's over."""
    fc, now, over = patient(), 100_000.0, False
    fc.begin_wait(now)
    for late in lates:
        due = now + LOOK_MILLIS
        now = due + late
        over = fc.look(due, now)
    return fc.waited_millis, over


def patient() -> FlowControl:
    """Return the flow of a client that may be silent for a second."""
    fc = flow(max_rate=0)
    fc.spent = 950
    assert fc.patience_millis() == 1000
    return fc


def test_a_broker_that_looks_in_time_charges_the_client_for_all() -> None:
    assert waited([0.0] * 9) == (pytest.approx(900), False)
    assert waited([0.0] * 11) == (pytest.approx(1100), True)


def test_a_starved_broker_charges_the_client_for_nothing() -> None:
    assert waited([LOOK_MILLIS, 250, 5000, 3_600_000] * 10) == (0.0, False)
    # One long stop costs the client nothing of what it has left after that.
    assert waited([0.0] * 8 + [60_000] + [0.0]) == (pytest.approx(900), False)
    assert waited([0.0] * 8 + [60_000] + [0.0] * 3) == (pytest.approx(1100), True)


def test_a_busy_broker_charges_the_client_for_less() -> None:
    assert waited([40] * 10) == (pytest.approx(600), False)
    assert waited([40] * 17) == (pytest.approx(1020), True)


def test_a_message_ends_a_wait_at_any_time() -> None:
    fc = patient()
    fc.begin_wait(100_000)
    due = 100_000 + LOOK_MILLIS
    assert not fc.look(due, 100_030)
    assert fc.waited_millis == pytest.approx(30)
    # The same look is due within the next wait, which didn't begin with its interval.
    fc.begin_wait(100_050)
    assert not fc.look(due, 100_100)
    assert fc.waited_millis == pytest.approx(50)
    fc.begin_wait(100_100)
    assert fc.end_wait(due + 100, 190_000)  # The broker saw the message long after it came.
    assert fc.waited_millis == 0.0


def test_clients_that_may_be_silent_are_not_looked_at() -> None:
    fc = FlowControl(FlowBalance(), max_rate=0, min_rate=0, now_millis=0)
    fc.begin_wait(100.0)
    assert not fc.look(10**9, 10**9)


@given(st.lists(st.floats(0, 10_000), max_size=50))
def test_no_more_counts_than_there_was(lates: list[float]) -> None:
    counted, _ = waited(lates)
    assert 0 <= counted <= LOOK_MILLIS * len(lates) + 1e-3
    assert counted >= sum(LOOK_MILLIS - late for late in lates) - 1e-3
