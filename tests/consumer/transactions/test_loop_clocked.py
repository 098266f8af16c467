"""The primary's loop, with time, commits and appends that the test controls."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.message import (
    ACK_TXN,
    Clock,
    Publisher,
    SequencerCheckpoint,
    get_clock,
    get_flags,
    json_adapter,
    parse_uuid,
)
from gazette_aio.message.uuid import TICK, clock_from_ns
from gazette_aio.protocol.errors import DependencyError, TransactionError
from gazette_aio.protocol.status_errors import JournalNotFoundError
from tests.consumer.transactions.clocked import Clocked, ClockLoop, run_clocked
from tests.consumer.transactions.world import OUT, read_through, shard_spec, to_out
from tests.loop_steps import SLICE_CALLS, counted_calls, longest_step
from tests.waiting import eventually, turns

MIN, MAX = 0.001, 0.010
UNIX_NS = 1_700_000_000_000_000_000


class Kept:
    """A message which a weak reference may tell."""

    def __init__(self, value: object) -> None:
        self.value = value


def clocked(test: Any) -> Callable[[], None]:
    """Run a test in a loop whose time it controls."""

    def run() -> None:
        run_clocked(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@clocked
async def test_a_transaction_from_its_first_message_to_its_acknowledgement(loop: ClockLoop):
    delta = timedelta(hours=1)
    world = Clocked(loop, clock_ns=lambda: UNIX_NS, publish_clock_delta=lambda: delta)
    async with world:
        content, events = world.content, world.application.events
        await world.send(content.outside())
        assert events == ["begin", "consume"]
        expected = clock_from_ns(UNIX_NS + 3600 * 10**9) + TICK
        published = json_adapter().decode(world.appends.messages[0])
        assert get_clock(parse_uuid(published["_meta"]["uuid"])) == expected
        await loop.advance(MIN / 2)
        assert events == ["begin", "consume"]
        await world.send(content.pending(), content.ack())
        await loop.advance(MIN)
        assert events[2:] == ["consume", "consume", "finalize", ("finished", "committing")]
        checkpoint, wait_for, _ = world.store.commits[0]
        assert read_through(checkpoint) == {"source/A": 30}
        assert list(checkpoint.ack_intents) == [OUT]
        assert wait_for == set()
        [ack] = world.appends.held
        assert (ack.journal, ack.content) == (OUT, checkpoint.ack_intents[OUT])
        uuid = parse_uuid(json_adapter().decode(ack.content)["_meta"]["uuid"])
        assert get_flags(uuid) == ACK_TXN
        await loop.advance(0.5)
        await world.committed()
        assert world.progress.progress.read_through == {"source/A": 0}
        await loop.advance(1)
        await world.acked()
        assert world.progress.progress.read_through == {"source/A": 30}
        assert world.progress.progress.publish_at == {OUT: 1000 + len(ack.content)}
        [report] = world.observer.reports
        assert (report.messages, report.size_bytes) == (3, 30)
        phases = report.phase_seconds()
        assert phases["committing"] == pytest.approx(0.5)
        assert phases["acknowledging"] == pytest.approx(1)


@clocked
async def test_the_next_transaction_consumes_meanwhile_and_stalls(loop: ClockLoop):
    async with Clocked(loop) as world:
        content, events = world.content, world.application.events
        await world.send(content.outside())
        await loop.advance(MIN)
        events.clear()
        await world.send(content.outside())
        await loop.advance(MAX)
        await world.send(content.outside())
        assert events == ["begin", "consume"]
        await loop.advance(1)
        await world.committed()
        assert events == ["begin", "consume"]
        await world.acked()
        assert events[2:4] == ["finalize", ("finished", "committing")]
        assert len(world.store.commits) == 2
        assert read_through(world.store.commits[1][0]) == {"source/A": 20}
        assert events[4:] == ["begin", "consume"]
        await world.committed()
        await world.acked()
        phases = world.observer.reports[1].phase_seconds()
        assert phases["stalled"] == pytest.approx(1)
        assert phases["consuming"] == pytest.approx(MAX)


@clocked
async def test_acknowledgements_depend_on_the_commit_and_the_commit_on_appends(loop: ClockLoop):
    async with Clocked(loop, recovery_log="recovery/log") as world:
        append = await world.appends.start_append("raw/journal")
        world.appends.pending = {append}
        world.appends.held.clear()
        await world.send(world.content.outside())
        await loop.advance(MIN)
        _, wait_for, operation = world.store.commits[0]
        assert wait_for == {append}
        assert world.appends.excepted == "recovery/log"
        assert world.appends.held[0].dependencies == [operation]


@clocked
async def test_the_end_of_reading_commits_and_restores_the_checkpoint(loop: ClockLoop):
    async with Clocked(loop) as world:
        await world.send(world.content.outside())
        await world.end()
        assert world.store.commits == []
        await loop.advance(MIN)
        assert world.store.restored == 0
        world.store.checkpoint = world.store.commits[0][0]
        await world.committed()
        assert world.store.restored == 0
        await world.acked()
        assert world.store.restored == 1
        assert world.application.checkpoints[1] is world.store.checkpoint
        # The acknowledgement of this assignment isn't appended again.
        assert world.appends.held == []
        await world.send(world.content.outside())
        assert world.application.events[-2:] == ["begin", "consume"]
        await world.end()
        world.store.restore_error = ValueError("no checkpoint")
        await loop.advance(MIN)
        await world.committed()
        await world.acked()
        assert str(await world.failure()) == "restore_checkpoint(): ValueError: no checkpoint"


@clocked
async def test_readings_without_messages_dont_spin(loop: ClockLoop):
    async with Clocked(loop) as world:
        await world.end()
        for number, pause in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0), 1):
            await world.end()
            await loop.advance(pause - 0.01)
            assert world.store.restored == number
            await loop.advance(0.02)
            assert world.store.restored == number + 1
        # A message ends the row.
        restored = world.store.restored
        await world.send(world.content.outside())
        await world.end()
        await loop.advance(MIN)
        await world.committed()
        await world.acked()
        assert world.store.restored == restored + 1
        await world.end()
        assert world.store.restored == restored + 2


INTENT = b'{"_meta":{"uuid":"00000000-0000-1000-8000-aaaaaaaaaaaa","ack":true}}\n'


@clocked
async def test_recovered_acknowledgements_precede_the_first_begin(loop: ClockLoop):
    intents = {OUT: INTENT, "does/not/exist": INTENT}
    world = Clocked(loop, checkpoint=SequencerCheckpoint({"source/A": 5}).to_proto(intents))
    async with world:
        assert {each.journal: each.content for each in world.appends.held} == intents
        await world.send(world.content.outside())
        assert world.application.events == []
        missing, known = sorted(world.appends.held, key=lambda each: each.journal)
        assert known.dependencies == []
        known.resolve()
        await turns()
        assert world.application.events == []
        missing.resolve(JournalNotFoundError())
        await turns()
        assert world.application.events == ["begin", "consume"]
        assert world.appends.cleared == ["does/not/exist"]
        assert world.progress.progress.publish_at == {}
        assert world.observer.reports == []


@clocked
async def test_intents_of_others_are_appended_again_after_a_restart(loop: ClockLoop):
    async with Clocked(loop) as world:
        world.store.checkpoint = SequencerCheckpoint().to_proto({OUT: INTENT})
        await world.end()
        assert [each.content for each in world.appends.held] == [INTENT]
        await world.send(world.content.outside())
        assert world.application.events == []
        await world.acked()
        assert world.application.events == ["begin", "consume"]


FAILURES = [
    ("begin", ValueError("an error"), "begin_txn(): ValueError: an error", False),
    (
        "consume",
        ValueError("an error"),
        r"source/A at offset 0 (UUID …): consume_message(): ValueError: an error",
        True,
    ),
    ("finalize", ValueError("an error"), "finalize_txn(): ValueError: an error", True),
    (
        "consume",
        DeferToNextTransaction(),
        "consumer transaction is empty, but application deferred the first message",
        True,
    ),
]


@pytest.mark.parametrize(("hook", "error", "text", "is_finished"), FAILURES)
def test_failures_of_hooks(hook: str, error: Exception, text: str, is_finished: bool):
    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:
            world.application.errors[hook] = error
            await world.send(world.content.outside())
            await loop.advance(MIN)
            failure = await world.failure()
            assert isinstance(failure, TransactionError)
            assert re.sub(r"UUID [^)]+", "UUID …", str(failure)) == text
            ends = [event for event in world.application.events if event[0] == "finished"]
            assert ends == [("finished", "failed")] * is_finished
            assert world.store.commits == []

    run_clocked(test)


async def send_one(world: Clocked) -> None:
    await world.send(world.content.outside())
    await world.loop.advance(MIN)


async def fail_to_start(world: Clocked) -> None:
    world.store.error = ERROR
    await send_one(world)
    assert world.application.events[-1] == ("finished", "failed")
    assert world.appends.held == []


async def start_no_future(world: Clocked) -> None:
    async def start_commit(*_: Any) -> None:
        raise AssertionError

    world.store.start_commit = start_commit
    await send_one(world)


async def fail_to_commit(world: Clocked) -> None:
    await send_one(world)
    await world.send(world.content.outside())
    await world.committed(ERROR)
    ends = [event for event in world.application.events if event[0] == "finished"]
    assert ends == [("finished", "committing"), ("finished", "failed")]
    assert world.progress.progress.read_through == {"source/A": 0}


async def fail_to_acknowledge(world: Clocked) -> None:
    await send_one(world)
    await world.committed()
    await world.acked(ERROR)


async def fail_to_read(world: Clocked) -> None:
    await world.send(world.content.outside())
    await world.end(ERROR)
    assert world.application.events[:2] == ["begin", "consume"]


async def fail_to_replay(world: Clocked) -> None:
    world.application.errors["replay"] = ERROR
    await world.send(*(world.content.pending() for _ in range(6)))
    await world.send(world.content.ack())


async def cancel_the_end(world: Clocked) -> None:
    world.application.errors |= {"consume": ERROR, "finished": asyncio.CancelledError()}
    await world.send(world.content.outside())


ERROR = ValueError("an error")
STEPS = [
    (fail_to_start, "start_commit(): ValueError: an error"),
    (start_no_future, "start_commit(): TypeError: it must return a future (not coroutine)"),
    (fail_to_commit, "commit of the store: ValueError: an error"),
    (fail_to_acknowledge, f"acknowledgement in {OUT}: ValueError: an error"),
    (fail_to_read, "read_messages(): ValueError: an error"),
    (fail_to_replay, "reading again: ValueError: an error"),
    (cancel_the_end, "consume_message(): ValueError: an error"),
]


@pytest.mark.parametrize(("fail", "text"), STEPS)
def test_failures_of_steps(fail: Callable[[Clocked], Any], text: str):
    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop, shard_spec(min_ms=1, max_ms=10, ring_buffer_size=2)) as world:
            await fail(world)
            assert str(await world.failure()).endswith(text)

    run_clocked(test)


@clocked
async def test_a_recovered_acknowledgement_fails(loop: ClockLoop):
    checkpoint = SequencerCheckpoint().to_proto({OUT: INTENT})
    async with Clocked(loop, checkpoint=checkpoint) as world:
        await world.acked(DependencyError("no space"))
        text = f"recovered acknowledgement in {OUT}: DependencyError: no space"
        assert str(await world.failure()) == text


@pytest.mark.parametrize("error", [None, ValueError("an error")])
def test_the_application_gets_the_commit_itself(error: Exception | None):
    commits: list[Any] = []

    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:
            world.application.finished_txn = lambda _, __, commit: commits.append(commit)
            await world.send(world.content.outside())
            await loop.advance(MIN)
            [(_, _, started)] = world.store.commits
            [commit] = commits
            assert commit is started
            assert not commit.done()
            await world.committed(error)
            assert commit.exception() is error

    run_clocked(test)


@clocked
async def test_a_commit_that_started_is_the_outcome_whatever_fails_then(loop: ClockLoop):
    commits: list[Any] = []

    async def refuse(*_: Any) -> Any:
        raise ValueError("no acknowledgements")

    async with Clocked(loop) as world:
        world.application.finished_txn = lambda _, __, commit: commits.append(commit)
        world.appends.start_append = refuse  # type: ignore[method-assign, assignment]
        await world.send(world.content.outside())
        await loop.advance(MIN)
        assert "no acknowledgements" in str(await world.failure())
        [(_, _, started)] = world.store.commits
        assert commits == [started]
        assert not started.done()


@clocked
async def test_progress_is_published_while_a_hook_waits(loop: ClockLoop):
    async with Clocked(loop) as world:
        await world.send(world.content.outside())
        await loop.advance(MIN)

        async def begin_txn(shard: Any, store: Any) -> None:
            while not world.progress.covers({"source/A": 10}):
                await world.progress.changed.wait()
            world.application.events.append("waited")

        world.application.begin_txn = begin_txn
        await world.send(world.content.outside())
        await world.committed()
        await world.acked()
        assert world.application.events[-2:] == ["waited", "consume"]


@clocked
async def test_the_loop_has_turns_every_5_ms(loop: ClockLoop):
    async with Clocked(loop, shard_spec(max_ms=10_000)) as world:
        content, slices = world.content, list[float]()

        async def consume_message(*_: Any) -> None:
            loop.now += 0.001

        def look() -> None:
            slices.append(loop.now)
            if loop.now < 1:
                loop.call_soon(look)

        world.application.consume_message = consume_message
        world.task.cancel()
        await turns()
        async with world:
            loop.call_soon(look)
            await world.send(*(content.outside() for _ in range(1000)))
            while loop.now < 1:
                await turns(1)
        longest = max(after - before for before, after in itertools.pairwise(slices))
        assert 0 < longest <= 0.006


@clocked
async def test_a_timer_that_rings_early_rings_again(loop: ClockLoop):
    async with Clocked(loop) as world:
        rung: list[float] = []
        call_at = loop.call_at

        def call_early(when: float, callback: Any, *args: Any, context: Any = None) -> Any:
            rung.append(when)
            return call_at(when - 0.0001 if len(rung) == 1 else when, callback, *args)

        loop.call_at = call_early  # type: ignore[method-assign]
        await world.send(world.content.outside())
        await loop.advance(MIN - 0.00005)
        assert world.store.commits == []
        assert len(rung) == 2
        await loop.advance(MIN)
        assert len(world.store.commits) == 1


@clocked
async def test_an_idle_shard_retains_no_messages(loop: ClockLoop):
    async with Clocked(loop, shard_spec(max_ms=10)) as world:
        rows = [world.content.outside() for _ in range(3)]
        world.content.messages.clear()
        for row in rows:
            row.message = Kept(row.begin)
        weak = [weakref.ref(row.message) for row in rows]
        await world.send(*rows)
        del rows, row
        await world.committed()
        await world.acked()
        gc.collect()
        assert [ref() for ref in weak] == [None] * 3


@clocked
async def test_publishing_without_waiting_is_part_of_the_transaction(loop: ClockLoop):
    async with Clocked(loop) as world:

        def finalize_txn(shard: Any, store: Any, publisher: Any) -> None:
            publisher.publish_uncommitted_nowait(
                lambda _: ("other/out", "application/x-ndjson"), {}
            )

        world.application.finalize_txn = finalize_txn
        world.appends.try_append = lambda *_: None
        await world.send(world.content.ack())
        await loop.advance(MIN)
        assert list(world.store.commits[0][0].ack_intents) == ["other/out"]


@pytest.mark.parametrize("hook", ["consume_message", "consume_batch"])
def test_plain_hooks_wait_for_a_busy_journal(hook: str):
    async def test(loop: ClockLoop) -> None:
        world = Clocked(loop)
        is_free, consumed = asyncio.Event(), list[int]()
        start = world.appends.start_append

        async def start_append(journal: str, dependencies: Any = ()) -> Any:
            await is_free.wait()
            append = await start(journal, dependencies)
            append.resolve()
            return append

        def consume(shard: Any, store: Any, given: Any, publisher: Any) -> Any:
            envelopes = [given] if hook == "consume_message" else given
            for envelope in envelopes:
                consumed.append(envelope.begin)
                publisher.publish_uncommitted_nowait(to_out, {"text": "x" * (5 << 20)})
            return None if hook == "consume_message" else len(envelopes)

        world.appends.start_append = start_append  # type: ignore[method-assign]
        world.appends.try_append = lambda *_: None  # type: ignore[method-assign, assignment, return-value]
        world.shard.publisher = Publisher(world.appends, json_adapter(), clock=Clock())
        setattr(world.application, hook, consume)
        async with world:
            await world.send(*(world.content.outside() for _ in range(5)))
            assert consumed == [0]  # Five of them would be more than can be queued.
            is_free.set()
            await turns()
            assert consumed == [0, 10, 20, 30, 40]
            assert not world.task.done()

    run_clocked(test)


def test_the_work_for_an_acknowledgement_does_not_grow_with_their_number() -> None:
    async def test(loop: ClockLoop) -> None:
        intents = {f"out/{number}": INTENT for number in range(1000)}
        async with Clocked(loop, checkpoint=SequencerCheckpoint().to_proto(intents)) as world:
            await world.send(world.content.outside())
            held, world.appends.held = world.appends.held, []
            with counted_calls() as calls:
                for append in held:
                    append.resolve()
                    await asyncio.sleep(0)
            assert len(held) == 1000
            assert calls.count < 200 * len(held)
            await world.acked()
            assert world.application.events == ["begin", "consume"]

    run_clocked(test)


def test_acknowledgements_of_many_journals_keep_nobody_from_the_loop() -> None:
    async def test(loop: ClockLoop) -> None:
        intents = {f"out/{number}": INTENT for number in range(2000)}
        world = Clocked(loop, checkpoint=SequencerCheckpoint().to_proto(intents))
        with longest_step() as longest:
            async with world:
                await eventually(lambda: len(world.appends.held) == len(intents))
        assert longest.calls < 3 * SLICE_CALLS, longest.step

    run_clocked(test)
