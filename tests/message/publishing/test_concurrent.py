"""Transactions of concurrent tasks: whose messages are whose, and which commit together."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.message import IntentLog, Publisher, json_adapter
from gazette_aio.message.publishing import commits, intents
from gazette_aio.protocol.errors import (
    ConfigurationError,
    GazetteError,
    QueueFullError,
    StoreError,
    TooManyTransactionsError,
    TransactionError,
)
from tests.message import fakes
from tests.message.publishing.two_journals import JOURNALS, NDJSON, ONE, TWO, committed, to
from tests.waiting import eventually, turns

FakeAppends: Any = fakes.FakeAppends
FakeClient: Any = fakes.FakeClient
POINTS = 60
"""More suspensions than a transaction has."""


class Site:
    """A publisher of journals in memory, and its log."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
        self.appends = FakeAppends(self.client)
        self.publisher: Any = Publisher(self.appends, json_adapter(), **options)
        self.log: Any = IntentLog(path)
        self.records = 0
        persist = self.log.persist

        async def counted(*record: Any) -> None:
            self.records += 1
            await persist(*record)

        self.log.persist = counted

    async def publish(self, *numbers: int, **options: Any) -> None:
        """Commit a transaction that publishes each number to both journals."""
        async with self.publisher.transaction(intents=self.log, **options):
            for number in numbers:
                for journal in JOURNALS:
                    await self.publisher.publish_uncommitted(to(journal), {"v": number})

    async def numbers(self) -> list[int]:
        """Return the numbers that are committed, each of which is in both journals."""
        found = await committed(self.client)
        numbers = [number for journal, number in found if journal == ONE]
        assert found == sorted((journal, number) for journal in JOURNALS for number in numbers)
        return numbers


@pytest.fixture
async def site(tmp_path: Path):
    site = Site(tmp_path / "log")
    yield site
    await site.log.aclose()


async def test_a_hundred_callers_share_commits(site: Site):
    await asyncio.gather(*(site.publish(number) for number in range(100)))
    assert await site.numbers() == list(range(100))
    # One commits the first of them, and another one all that have ended meanwhile.
    assert site.records <= 3
    assert not site.log.in_doubt


async def test_exclusive_transactions_have_their_turns_in_order(site: Site):
    order: list[int] = []

    async def count(number: int) -> None:
        async with site.publisher.transaction(intents=site.log, exclusive=True) as transaction:
            order.append(number)
            await asyncio.sleep(0)
            transaction.state = {"count": (transaction.state or {"count": 0})["count"] + 1}

    await asyncio.gather(*(count(number) for number in range(20)), site.publish(1))
    assert order == list(range(20))
    assert site.log.state == {"count": 20}
    assert await site.numbers() == [1]


async def test_no_more_than_max_waiting_are_open(tmp_path: Path):
    site = Site(tmp_path / "log", max_waiting=2)
    begun = asyncio.Event()

    async def publish(number: int) -> None:
        await begun.wait()
        await site.publish(number, exclusive=True)

    others = [asyncio.create_task(publish(number)) for number in range(3)]
    async with site.publisher.transaction(intents=site.log):
        begun.set()
        await turns(3)
        (refused,) = (task for task in others if task.done())
        with pytest.raises(TooManyTransactionsError, match="raise max_waiting") as raised:
            await refused
        assert raised.value.retryable
    others.remove(refused)
    await asyncio.gather(*others)
    assert await site.numbers() == [0, 1]
    await site.log.aclose()


@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_transaction_within_another_is_refused(site: Site, exclusive: bool):
    async with site.publisher.transaction(intents=site.log, exclusive=exclusive):
        for nested in (site.publish(1), asyncio.create_task(site.publish(1))):
            with pytest.raises(TransactionError, match="is open in this task"):
                await nested
        await site.publisher.publish_uncommitted(to(ONE), {"v": 2})
    assert await committed(site.client) == [(ONE, 2)]
    transaction = site.publisher.transaction()
    async with transaction:
        pass
    with pytest.raises(TransactionError, match="begins once"):
        await transaction.__aenter__()


@pytest.mark.parametrize("exclusive", [False, True])
async def test_messages_belong_to_the_block_of_their_task(site: Site, exclusive: bool):
    publisher, order = site.publisher, asyncio.Event()

    async def fails() -> None:
        async with publisher.transaction(intents=site.log):
            await publisher.publish_uncommitted(to(ONE), {"v": "of the one that raises"})
            await asyncio.create_task(publisher.publish_uncommitted(to(ONE), {"v": "of its child"}))
            order.set()
            await asyncio.sleep(0)
            raise KeyError

    failing = asyncio.create_task(fails())
    await order.wait()
    before = dict(site.client.journals)
    async with publisher.transaction(intents=site.log, exclusive=exclusive):
        await publisher.publish_uncommitted(to(TWO), {"v": 1})
        with pytest.raises(KeyError):
            await failing
        await asyncio.create_task(publisher.publish_uncommitted(to(TWO), {"v": 2}))
    assert await committed(site.client) == [(TWO, 1), (TWO, 2)]
    assert site.client.journals[ONE] == before[ONE] == b""  # It left nothing.


@pytest.mark.parametrize("how", ["one", "batch", "nowait"])
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_task_that_outlives_its_block_is_refused(site: Site, how: str, exclusive: bool):
    publisher, ended = site.publisher, asyncio.Event()

    async def publish() -> None:
        await ended.wait()
        if how == "one":
            await publisher.publish_uncommitted(to(ONE), {"v": 1})
        elif how == "batch":
            await publisher.publish_uncommitted_batch((ONE, NDJSON), [{"v": 1}])
        else:
            publisher.publish_uncommitted_nowait(to(ONE), {"v": 1})

    async def transact() -> None:
        async with publisher.transaction():
            await publisher.publish_uncommitted(to(ONE), {"v": 3})
        await publisher.publish_committed(to(ONE), {"v": 4})

    async with publisher.transaction(exclusive=exclusive):
        late = asyncio.create_task(publish())
        well = asyncio.create_task(publish_later := _after(ended, transact))
    ended.set()
    with pytest.raises(TransactionError, match="has ended"):
        await late
    await well
    del publish_later
    with pytest.raises(TransactionError, match="belong to the block"):
        await publish()
    await site.publish()
    assert await committed(site.client) == [(ONE, 3), (ONE, 4)]


async def _after(event: asyncio.Event, call: Any) -> None:
    await event.wait()
    await call()


async def test_messages_outside_of_blocks_do_not_join_the_first_transaction(site: Site):
    await site.publisher.publish_uncommitted(to(ONE), {"v": 1})
    with pytest.raises(TransactionError, match="build_ack_intents"):
        await site.publish(2)
    site.publisher.abandon()
    await site.publish(2)
    assert await site.numbers() == [2]


async def test_acknowledging_by_hand_is_refused_while_a_transaction_is_open(site: Site):
    async with site.publisher.transaction(exclusive=True):
        await site.publisher.publish_uncommitted(to(ONE), {"v": 1})
        with pytest.raises(TransactionError, match="is open"):
            site.publisher.build_ack_intents()
    assert await committed(site.client) == [(ONE, 1)]


@pytest.mark.parametrize("large", [False, True])
async def test_a_call_in_progress_is_waited_for(site: Site, large: bool):
    publisher, go_on = site.publisher, asyncio.Event()

    async def mapping(_message: Any) -> tuple[str, str]:
        await go_on.wait()
        return ONE, NDJSON

    async with publisher.transaction(exclusive=large):
        task = asyncio.create_task(publisher.publish_uncommitted(mapping, {"v": 1}))
        await turns(5)
        asyncio.get_running_loop().call_soon(go_on.set)
    await task
    assert await committed(site.client) == [(ONE, 1)]


@pytest.mark.parametrize("others", [0, 2])
async def test_a_cancellation_at_every_suspension_concerns_nobody_else(
    tmp_path: Path, threads: Any, others: int
):
    outcomes: set[Any] = set()
    for point in range(POINTS):
        site = Site(tmp_path / str(point))
        await site.publish(0)
        task = asyncio.create_task(site.publish(1))
        rest = [asyncio.create_task(site.publish(2 + number)) for number in range(others)]
        await turns(point)
        was_done = task.done()
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        assert was_done or isinstance(ended, asyncio.CancelledError)
        await asyncio.gather(*rest)
        await site.publish(9)
        numbers = await site.numbers()
        assert sorted({0, 9, *range(2, 2 + others)} | ({1} & set(numbers))) == numbers, point
        assert not was_done or 1 in numbers
        await site.log.aclose()
        outcomes.add((1 in numbers, was_done))
    assert outcomes == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_as_the_commit_ends(
    site: Site, threads: Any, fails: bool, caplog: pytest.LogCaptureFixture
):
    """No error is logged that nobody waits for any more."""
    for point in range(POINTS):
        site.appends.failures = {ONE: StoreError("journal is full")} if fails else {}
        first = asyncio.create_task(site.publish(point))
        second = asyncio.create_task(site.publish(point, exclusive=True))
        await turns(point)
        first.cancel()
        second.cancel()
        await asyncio.wait((first, second))
        for task in (first, second):
            if not task.cancelled():
                task.exception()
        del first, second, task
    gc.collect()
    site.appends.failures = {}
    await site.publish(-1)
    assert -1 in await site.numbers()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_cancellation_just_before_the_next_commit_begins(
    site: Site, shared: bool, monkeypatch: pytest.MonkeyPatch
):
    mark_written, waiting = site.log.mark_written, asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def cancels() -> None:
        await waiting.wait()
        await mark_written()
        monkeypatch.undo()
        tasks[1].cancel()

    monkeypatch.setattr(site.log, "mark_written", cancels)
    tasks += [asyncio.create_task(site.publish(number)) for number in range(3 if shared else 2)]
    await turns(3)
    waiting.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended if error is not None] == [asyncio.CancelledError]
    assert set(await site.numbers()) >= ({0, 2} if shared else {0})
    assert site.records == (2 if shared else 1)  # Each commit is stored.
    await site.publish(3)
    assert 3 in await site.numbers()


async def test_one_of_a_shared_commit_is_cancelled_as_its_journal_fails(site: Site, threads: Any):
    """The state is that of the transaction if and only if its messages commit."""
    site.appends.failures["topic/broken"] = StoreError("journal is full")
    broken = site.appends.locks.setdefault("topic/broken", asyncio.Lock())
    publisher = site.publisher

    async def publish(journal: str, number: int, state: Any = None) -> None:
        async with publisher.transaction(intents=site.log) as transaction:
            await publisher.publish_uncommitted(to(journal), {"v": number})
            if state is not None:
                transaction.state = state

    async def shared(*calls: Any) -> list[asyncio.Task[None]]:
        """Return transactions whose commit waits for the broken journal."""
        async with site.log.turn:
            first = asyncio.create_task(publish(ONE, 0))
            await turns()
            tasks = [asyncio.create_task(call) for call in calls]
            await turns()
            await broken.acquire()
        await first
        await turns()
        return tasks

    failing, other = await shared(publish("topic/broken", 1), publish(ONE, 2))
    failing.cancel()
    await turns()
    broken.release()
    await other
    assert failing.cancelled()
    assert await committed(site.client) == [(ONE, 0), (ONE, 2)]

    calls = (publish(ONE, 3, {"v": 3}), publish("topic/broken", 4), publish(ONE, 5))
    stateful, failing, other = await shared(*calls)
    stateful.cancel()
    await turns()
    broken.release()
    await other
    with pytest.raises(StoreError):
        await failing
    found = [number for _, number in await committed(site.client)]
    assert found in ([0, 0, 2, 3, 5], [0, 0, 2, 5])
    assert site.log.state == ({"v": 3} if 3 in found else None)


async def test_a_recovery_that_is_cancelled_cancels_no_other_transaction(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    prepare, ending = site.log.prepare, asyncio.Event()

    async def slow(appends: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            monkeypatch.setattr(site.log, "prepare", prepare)
            await ending.wait()

    monkeypatch.setattr(site.log, "prepare", slow)
    first = asyncio.create_task(site.publish(1))
    await turns(3)
    first.cancel()
    await turns(3)
    second = asyncio.create_task(site.publish(2))
    await turns(3)
    ending.set()
    await second
    assert first.cancelled()
    assert await site.numbers() == [2]


async def test_a_failing_journal_fails_only_transactions_with_messages_to_it(site: Site):
    site.appends.failures["topic/broken"] = StoreError("journal is full")
    publisher = site.publisher

    async def publish_to_both(number: int) -> None:
        async with publisher.transaction(intents=site.log):
            await publisher.publish_uncommitted(to(ONE), {"v": number})
            await publisher.publish_uncommitted(to("topic/broken"), {"v": number})

    calls = [publish_to_both(n) if n % 3 else site.publish(n) for n in range(12)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    failed = [error for error in ended if error is not None]
    assert len({id(error) for error in failed}) == len(failed) == 8
    for error in failed:
        assert isinstance(error, StoreError)
        assert str(error) == (
            "the transaction did not commit, and nothing of it becomes visible: journal is full"
        )
        assert not error.outcome_unknown
    assert await site.numbers() == [0, 3, 6, 9]


@pytest.mark.parametrize("fails", ["persist", "decide", "append_intents", "mark_written"])
async def test_a_shared_commit_in_doubt_is_recovered_by_the_next_transaction(
    site: Site, fails: str, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_args: Any) -> None:
        raise StoreError("disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(commits if fails == "append_intents" else site.log, fails, fail)
        calls = (site.publish(number) for number in range(5))
        ended: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in ended} == {StoreError}
    assert len({id(error) for error in ended}) == 5
    doubtful = [error.outcome_unknown for error in ended]
    # The first of them begins a commit of its own. The others find it in doubt, and recover it,
    # unless that fails, too.
    committing = {"persist": 0, "mark_written": 1}.get(fails, 5)
    assert doubtful == [True] * committing + [False] * (5 - committing)
    for error in ended:
        meaning = "may commit" if error.outcome_unknown else "nothing of it becomes visible"
        assert meaning in str(error)
    recoveries: list[Any] = []
    append_intents = intents.append_intents

    async def counted(*args: Any) -> None:
        recoveries.append(args)
        await append_intents(*args)

    monkeypatch.setattr(intents, "append_intents", counted)
    await asyncio.gather(*(site.publish(number) for number in range(5, 10)))
    assert len(recoveries) == (fails != "persist")
    assert await site.numbers() == [*range(committing), *range(5, 10)]


@pytest.mark.parametrize("flush", [False, True])
async def test_a_transaction_that_is_open_while_another_fails_recovers_it(
    site: Site, flush: bool, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_args: Any) -> None:
        raise StoreError("disk is gone")

    begun = asyncio.Event()

    async def fails() -> None:
        await begun.wait()
        with monkeypatch.context() as patched:
            patched.setattr(commits, "append_intents", fail)
            with pytest.raises(StoreError, match="may commit"):
                await site.publish(1)

    failing = asyncio.create_task(fails())
    async with site.publisher.transaction(intents=site.log):
        begun.set()
        await failing
        assert site.log.in_doubt
        for journal in JOURNALS:
            await site.publisher.publish_uncommitted(to(journal), {"v": 2})
        if flush:
            await site.publisher.flush()
    assert await site.numbers() == [1, 2]


async def test_two_transactions_do_not_share_a_state(site: Site):
    publisher, log = site.publisher, site.log
    async with publisher.transaction(intents=log) as first:
        first.state = {"by": "first"}
        await asyncio.create_task(_with_state(site))
    assert log.state == {"by": "first"}
    await _stateful(site, {"by": "second"})
    assert log.state == {"by": "second"}
    # One that doesn't look at the state leaves it as it is.
    await site.publish(1)
    assert log.state == {"by": "second"}
    with pytest.raises(ConfigurationError, match="a state needs a log"):
        async with publisher.transaction() as without:
            without.state = {"lost": True}
    with pytest.raises(StoreError, match="can't be stored"):
        await _stateful(site, {"by": object()})


async def _stateful(site: Site, state: Any) -> None:
    async with site.publisher.transaction(intents=site.log) as transaction:
        transaction.state = state


async def _with_state(site: Site) -> None:
    import contextvars

    call = _stateful(site, {"by": "second"})
    task = asyncio.get_running_loop().create_task(call, context=contextvars.Context())
    with pytest.raises(TransactionError, match="exclusive=True"):
        await task


@pytest.mark.parametrize("how", ["await", "gather", "wait", "flush"])
async def test_an_append_may_be_awaited_within_the_block(site: Site, how: str):
    publisher = site.publisher
    other = asyncio.create_task(site.publish(7))
    async with publisher.transaction(intents=site.log):
        first = await publisher.publish_uncommitted(to(ONE), {"v": 1})
        second = await publisher.publish_uncommitted(to(TWO), {"v": 1})
        assert "held in memory" in repr(first)
        assert not first.done()
        if how == "await":
            await first
            await second
        elif how == "gather":
            await asyncio.gather(first, second)
        elif how == "wait":
            await asyncio.wait((first, second))
        else:
            await publisher.flush()
        assert first.done()
        assert site.client.journals[ONE]
        await publisher.publish_uncommitted(to(ONE), {"v": 2})
        await publisher.publish_uncommitted(to(TWO), {"v": 2})
    await other
    assert await site.numbers() == [1, 2, 7]
    async with publisher.transaction(intents=site.log):
        held = await publisher.publish_uncommitted(to(ONE), {"v": 3})
    assert held.done()
    assert held.exception() is None
    assert held.commit_range[1] <= len(site.client.journals[ONE])
    with pytest.raises(KeyError):  # noqa: PT012
        async with publisher.transaction(intents=site.log):
            held = await publisher.publish_uncommitted(to(ONE), {"v": 4})
            raise KeyError
    with pytest.raises(TransactionError, match="abandoned"):
        await held


async def test_an_append_that_is_observed_as_its_block_raises_takes_no_turn(site: Site):
    observed: list[Any] = []

    async def fails() -> None:
        async with site.publisher.transaction(intents=site.log):
            append = await site.publisher.publish_uncommitted(to(ONE), {"v": 1})
            observed.append(append.operation)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    await turns()
    with pytest.raises(TransactionError, match="abandoned"):
        await observed[0]
    await site.publish(2)
    assert await site.numbers() == [2]


async def test_a_task_that_awaits_an_append_is_told_that_its_block_raised(site: Site):
    publisher = site.publisher
    children: list[asyncio.Task[None]] = []

    async def fails() -> None:
        async with publisher.transaction(intents=site.log):
            append = await publisher.publish_uncommitted(to(ONE), {"v": 1})
            children.append(asyncio.create_task(_awaited(append)))
            await turns(3)
            raise ZeroDivisionError

    begun = asyncio.create_task(_after_turns(fails))
    async with publisher.transaction(intents=site.log, exclusive=True):
        with pytest.raises(ZeroDivisionError):
            await begun
    with pytest.raises(TransactionError, match="abandoned"):
        await children[0]
    await site.publish(2)
    assert await site.numbers() == [2]


async def _awaited(append: Any) -> None:
    await append


async def _after_turns(call: Any) -> None:
    await turns(3)
    await call()


async def test_messages_that_are_abandoned_while_they_are_written_do_not_commit(site: Site):
    lock = site.appends.locks.setdefault(TWO, asyncio.Lock())
    publisher = site.publisher
    async with publisher.transaction(intents=site.log):
        for journal in JOURNALS:
            await publisher.publish_uncommitted(to(journal), {"v": 1})
        await lock.acquire()
        flushed = asyncio.create_task(publisher.flush())
        await turns()
        publisher.abandon()
        lock.release()
        await flushed
        for journal in JOURNALS:
            await publisher.publish_uncommitted(to(journal), {"v": 2})
    assert await site.numbers() == [2]


@pytest.mark.parametrize("outcome", ["commits", "raises"])
async def test_a_large_transaction_takes_its_turn(site: Site, outcome: str):
    publisher, size = site.publisher, 0
    small = [asyncio.create_task(site.publish(number)) for number in range(3)]

    async def publish() -> None:
        nonlocal size
        async with publisher.transaction(intents=site.log):
            for number in range(100, 400):
                for journal in JOURNALS:
                    await publisher.publish_uncommitted(to(journal), {"v": number, "x": "x" * 1000})
            size = len(site.client.journals[ONE])
            # Others wait for the end of its turn.
            waiting = asyncio.get_running_loop().create_task(site.publish(5), context=fresh)
            await turns(30)
            assert not waiting.done()
            small.append(waiting)
            if outcome == "raises":
                raise KeyError

    import contextvars

    fresh = contextvars.Context()
    if outcome == "raises":
        with pytest.raises(KeyError):
            await publish()
    else:
        await publish()
    assert size > 300 << 10
    await asyncio.gather(*small)
    large = list(range(100, 400)) if outcome == "commits" else []
    assert await site.numbers() == [0, 1, 2, 5, *large]


async def test_a_full_transaction_makes_room_by_draining(site: Site):
    publisher = site.publisher
    async with publisher.transaction(intents=site.log):
        for _ in range(3):
            publisher.publish_uncommitted_nowait(to(ONE), {"v": 1, "x": "x" * (5 << 20)})
        with pytest.raises(QueueFullError, match="await drain"):
            publisher.publish_uncommitted_nowait(to(ONE), {"v": 2, "x": "x" * (5 << 20)})
        assert not site.client.journals[ONE]
        await publisher.drain()
        publisher.publish_uncommitted_nowait(to(ONE), {"v": 2, "x": "x" * (5 << 20)})
    assert await committed(site.client) == [(ONE, 1)] * 3 + [(ONE, 2)]


async def test_abandoning_within_a_block_drops_what_it_holds(site: Site):
    publisher = site.publisher
    async with publisher.transaction(intents=site.log):
        await publisher.publish_uncommitted(to(ONE), {"v": 1})
        publisher.abandon()
        await publisher.publish_uncommitted(to(TWO), {"v": 2})
    assert await committed(site.client) == [(TWO, 2)]
    assert not site.client.journals[ONE]


async def test_publishers_of_one_log_take_turns(site: Site):
    other = site.publisher.view(json_adapter())
    separate = Publisher(site.appends, json_adapter())

    async def publish(publisher: Any, number: int) -> None:
        async with publisher.transaction(intents=site.log):
            for journal in JOURNALS:
                await publisher.publish_uncommitted(to(journal), {"v": number})

    chosen = (site.publisher, other, separate)
    await asyncio.gather(*(publish(chosen[n % 3], n) for n in range(30)))
    assert await site.numbers() == list(range(30))


async def test_a_publisher_that_waits_for_a_log_is_not_in_doubt_as_another_one_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    other = Publisher(site.appends, json_adapter())
    waiting: list[asyncio.Task[None]] = []

    async def publish_as_other() -> None:
        async with other.transaction(intents=site.log):
            await other.publish_uncommitted(to(ONE), {"v": 2})

    async def fail(*_args: Any) -> None:
        waiting.append(asyncio.create_task(publish_as_other()))
        await turns(3)
        monkeypatch.undo()
        raise StoreError("broker is gone")

    monkeypatch.setattr(commits, "append_intents", fail)
    with pytest.raises(StoreError, match="the transaction may commit") as raised:
        await site.publish(1)
    assert raised.value.outcome_unknown
    with pytest.raises(TransactionError, match=r"did not commit.* is in doubt") as refused:
        await waiting[0]
    assert not refused.value.outcome_unknown
    await publish_as_other()
    assert await committed(site.client) == [(ONE, 1), (ONE, 2), (TWO, 1)]


async def test_recovering_by_hand_does_not_interfere_with_commits(site: Site):
    async def recover() -> None:
        for _ in range(20):
            await site.log.recover(site.appends)
            await asyncio.sleep(0)

    async def publish() -> None:
        for number in range(20):
            await site.publish(number)

    await asyncio.gather(publish(), recover())
    assert await site.numbers() == list(range(20))


async def test_errors_are_those_of_the_package(site: Site, monkeypatch: pytest.MonkeyPatch):
    def broken(_uuid: Any) -> bytes:
        raise ValueError("no acknowledgement")

    monkeypatch.setattr(site.publisher.adapter, "acknowledgement", broken)
    ended = await asyncio.gather(site.publish(1), site.publish(2), return_exceptions=True)
    assert all(isinstance(error, GazetteError) for error in ended)
    assert "nothing of it becomes visible: no acknowledgement" in str(ended[0])
    monkeypatch.undo()
    await site.publish(3)
    assert await site.numbers() == [3]


async def test_logs_of_one_publisher_are_prepared_each(site: Site, tmp_path: Path):
    """A transaction that begins while another log is prepared waits for its own."""
    logs = [IntentLog(tmp_path / f"log {number}") for number in range(3)]

    async def publish(number: int) -> None:
        async with site.publisher.transaction(intents=logs[number % 3]) as transaction:
            assert logs[number % 3].is_ready
            if number < 3:
                assert transaction.state == {"log": number}
            for journal in JOURNALS:
                await site.publisher.publish_uncommitted(to(journal), {"v": number})

    for number, log in enumerate(logs):
        await log.persist([], {"log": number})
        await log.aclose()
    await asyncio.gather(*(publish(number) for number in range(2, 30)))
    assert await site.numbers() == list(range(2, 30))
    for log in logs:
        await log.aclose()


async def test_each_log_of_one_publisher_has_a_state(site: Site, tmp_path: Path):
    async with IntentLog(tmp_path / "other") as other:

        async def publish(log: IntentLog, number: int) -> None:
            async with site.publisher.transaction(intents=log) as transaction:
                transaction.state = {"number": number}
                await asyncio.sleep(0)

        await asyncio.gather(publish(site.log, 1), publish(other, 2))
        assert (site.log.state, other.state) == ({"number": 1}, {"number": 2})


async def test_transactions_are_freed_without_a_collection_of_garbage(site: Site):
    await site.publish(1)
    gc.collect()
    gc.disable()
    try:
        transaction = site.publisher.transaction(intents=site.log)
        async with transaction:
            await site.publisher.publish_uncommitted(to(ONE), {"v": 2})
        freed = weakref.ref(transaction._held)
        del transaction
        await eventually(lambda: freed() is None)
    finally:
        gc.enable()
