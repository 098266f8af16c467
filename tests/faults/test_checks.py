"""The checks of the soak suite find what they are for."""

from __future__ import annotations

import random

import pytest

from benchmarks.soaks.invariant import BrokenInvariantError
from benchmarks.soaks.journal_check import CommittedCheck, JournalCheck, Writer


@pytest.fixture
def check() -> JournalCheck:
    return JournalCheck("a/journal")


@pytest.fixture
def exact(check: JournalCheck) -> Writer:
    return check.add_writer("exact", is_exact=True)


@pytest.fixture
def other(check: JournalCheck) -> Writer:
    return check.add_writer("other", is_exact=False)


def sent(writer: Writer, count: int) -> list[bytes]:
    rng = random.Random(1)
    return [writer.next_record(rng) for _ in range(count)]


def acknowledge(check: JournalCheck, writer: Writer, number: int, begin: int, size: int) -> None:
    check.acknowledge(begin, begin + size, writer.sent[number])


def test_what_must_be(check: JournalCheck, exact: Writer, other: Writer) -> None:
    one, two = sent(exact, 2)
    three, four = sent(other, 2)
    content = one + three + four + three + four + two  # A batch is repeated as a whole.
    acknowledge(check, exact, 0, 0, len(one))  # Ahead of the reader.
    for begin in range(0, len(content), 100):
        check.feed(content[begin : begin + 100])
    acknowledge(check, exact, 1, len(content) - len(two), len(two))  # And behind it.
    acknowledge(check, other, 1, len(one + three + four + three), len(four))
    assert check.repeated == 2
    assert (check.offset, check.acknowledged) == (len(content), 3)
    check.finish()


def test_twice(check: JournalCheck, exact: Writer) -> None:
    (one,) = sent(exact, 1)
    with pytest.raises(BrokenInvariantError, match="exact 0 is there twice"):
        check.feed(one + one)


@pytest.mark.parametrize("name", ["exact", "other"])
def test_gaps(check: JournalCheck, exact: Writer, other: Writer, name: str) -> None:
    records = sent(check.writers[name], 3)
    with pytest.raises(BrokenInvariantError, match=f"{name} 2, expected 1"):
        check.feed(records[0] + records[2])


def test_foreign_and_torn_bytes(check: JournalCheck, exact: Writer) -> None:
    one, two = sent(exact, 2)
    with pytest.raises(BrokenInvariantError, match="torn"):
        check.feed(one + two[3:] + b"\n" * 9)
    fresh = JournalCheck("a/journal")
    fresh.add_writer("exact", is_exact=True).sent += exact.sent
    with pytest.raises(BrokenInvariantError, match="exact 0 is torn"):
        fresh.feed(one[:-1] + b"!")


def test_lost_acknowledgements_of_what_is_not_there(check: JournalCheck, exact: Writer) -> None:
    one, two = sent(exact, 2)
    check.feed(one)
    acknowledge(check, exact, 1, len(one), len(two))
    with pytest.raises(BrokenInvariantError, match="1 acknowledged appends are lost"):
        check.finish()
    with pytest.raises(BrokenInvariantError, match="isn't there"):
        acknowledge(check, exact, 0, 7, len(one) - 7)


def test_elsewhere_than_acknowledged(check: JournalCheck, exact: Writer, other: Writer) -> None:
    (one,), (two,) = sent(exact, 1), sent(other, 1)
    acknowledge(check, other, 0, 0, len(two))
    with pytest.raises(BrokenInvariantError, match="something else than what was acknowledged"):
        check.feed(one + two)


def test_an_end_ahead_of_the_end(check: JournalCheck, exact: Writer) -> None:
    one, two = sent(exact, 2)
    check.feed(one)
    with pytest.raises(BrokenInvariantError, match="1 records of exact are missing"):
        check.finish()
    check.feed(two[:-1])
    with pytest.raises(BrokenInvariantError, match="half a record"):
        check.finish()


def test_committed_messages() -> None:
    check = CommittedCheck()
    check.commit({("a", "one"): 2, ("b", "one"): 1})
    check.feed("a", "one", 0)
    check.feed("b", "one", 0)
    assert not check.is_complete
    for number in (0, 2):
        with pytest.raises(BrokenInvariantError, match=f"one {number}, expected 1"):
            check.feed("a", "one", number)
    check.feed("a", "one", 1)
    assert check.is_complete
