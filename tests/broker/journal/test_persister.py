"""Times at which complete fragments are persisted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.index import FragmentIndex
from gazette_aio.broker.host.scheduler import Timer, Work
from gazette_aio.broker.journal.persister import Persister
from gazette_aio.broker.keyspace.keyspace import KeySpace


class FailingPersister(Persister):
    """A persister whose store fails. Time is what a test says."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Timer]] = []
        self.attempts = 0
        options = SimpleNamespace(persist_delay=1.0, persist_retry=10.0)
        runtime: Any = SimpleNamespace(options=options, scheduler=self)
        life: Any = SimpleNamespace(name="a/journal", first_store="file:///", closed=False)
        super().__init__(runtime, KeySpace(), life, FragmentIndex())

    def after(self, seconds: float, name: str, work: Work, *, lane: str) -> Timer:
        """Take the place of the scheduler."""
        assert lane == "file:///"
        timer = Timer(name, work, lane)
        self.timers.append((seconds, timer))
        return timer

    def complete(self) -> None:
        """Add a fragment."""
        self.add(cast("Any", object()))
        self.schedule()

    async def fire(self, number: int) -> None:
        """Let the time of a timer come."""
        if (work := self.timers[number][1].work) is not None:
            await work()

    async def persist(self) -> None:
        """Fail."""
        self.attempts += 1
        raise pb.StoreError("failed")

    @property
    def pauses(self) -> list[float]:
        """Pauses of all timers so far."""
        return [seconds for seconds, _ in self.timers]


@pytest.fixture
def persister() -> FailingPersister:
    persister = FailingPersister()
    persister.complete()
    return persister


async def test_pauses_grow_after_failures(persister: FailingPersister) -> None:
    for number in range(6):
        await persister.fire(number)
    assert persister.pauses == [1.0, 10.0, 20.0, 40.0, 80.0, 150.0, 150.0]


async def test_a_further_fragment_waits_for_the_same_pause(persister: FailingPersister) -> None:
    persister.complete()
    assert persister.pauses == [1.0]
    await persister.fire(0)
    persister.complete()
    assert persister.pauses == [1.0, 10.0]


async def test_a_replaced_timer_does_nothing(persister: FailingPersister) -> None:
    await persister.fire(0)
    persister.follow_store()
    assert persister.pauses == [1.0, 10.0, 1.0]
    await persister.fire(2)
    assert persister.pauses == [1.0, 10.0, 1.0, 10.0]
    # The pause after the first failure ends within that after the second.
    await persister.fire(1)
    assert persister.attempts == 2
    persister.complete()
    assert persister.pauses == [1.0, 10.0, 1.0, 10.0]
    await persister.fire(3)
    assert persister.attempts == 3
    assert persister.pauses[4:] == [20.0]
