"""Order, progress and checkpoints of the messages that transactions consume, whoever reads them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from gazette_aio.protocol.consumer import Checkpoint
from tests.consumer.transactions.clocked import A, B, ClockLoop, run_clocked
from tests.consumer.transactions.forms import FORMS, MAX, MIN, SIZE, Formed, Lines, Produced
from tests.consumer.transactions.world import read_through, shard_spec
from tests.waiting import turns

DAY = (24 * 3600 * 10**7) << 4
"""A day, in units of clocks."""

Form = Callable[..., Formed]
Test = Callable[[ClockLoop], Coroutine[Any, Any, None]]


def producers_of(checkpoint: Checkpoint) -> set[bytes]:
    return {each.id for source in checkpoint.sources.values() for each in source.producers}


def transaction(content: Lines, size: int) -> list[Any]:
    return [*(content.pending() for _ in range(size - 1)), content.ack()]


async def again(form: Form, loop: ClockLoop, world: Formed, checkpoint: Checkpoint) -> Formed:
    """Return an ended assignment, which began at a checkpoint, and got all messages."""
    later = form(loop, world.contents, world.shard.spec, checkpoint)
    async with later:
        await later.send(*world.content.messages)
    return later


@FORMS
def test_pending_messages_dont_begin_and_are_awaited_up_to_the_maximum(form: Form):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            content, commits = world.content, world.store.commits
            await world.send(content.pending(), content.pending())
            await world.send(content.pending())
            assert world.application.begun == 0
            await loop.advance(MAX)
            await world.send(content.ack())
            assert (world.application.begun, len(world.consumed)) == (1, 4)
            await world.send(content.pending())
            await loop.advance(MIN)
            assert commits == []
            await world.send(content.ack())
            assert (len(commits), len(world.consumed)) == (1, 6)
            await world.commit()
            await world.send(content.outside(), content.pending())
            await loop.advance(MAX - MIN)
            assert len(commits) == 1
            await loop.advance(MIN)
            assert len(commits) == 2
            await world.commit()
            # What was pending at the checkpoint before keeps no transaction open.
            await world.send(content.outside(B))
            await loop.advance(MIN)
            assert len(commits) == 3

    run_clocked(test)


@FORMS
def test_acks_may_not_be_waited_for(form: Form):
    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(min_ms=1, max_ms=10, disable_wait_for_ack=True)
        async with form(loop, spec=spec) as world:
            await world.send(world.content.outside(), world.content.pending())
            await loop.advance(MIN)
            assert len(world.store.commits) == 1

    run_clocked(test)


@FORMS
@pytest.mark.parametrize("is_dup", [True, False])
def test_duplicates_and_rollbacks_advance_progress(form: Form, is_dup: bool):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            content = world.content
            await world.send(content.outside(clock=5))
            await loop.advance(MIN)
            # While the transaction before is open, they extend what it will report.
            if is_dup:
                await world.send(content.outside(clock=5), content.pending(clock=4))
            else:
                await world.send(content.pending(clock=6), content.ack(clock=5))
            assert world.read_through == {"source/A": 0}
            stored = await world.commit()
            assert world.read_through == {"source/A": 3 * SIZE}
            assert read_through(stored) == {"source/A": SIZE}
            # While the shard is idle, they're reported at once.
            await world.send(content.outside(clock=3))
            assert world.read_through == {"source/A": 4 * SIZE}
            # Pending messages aren't reported: their acknowledgement will be.
            await world.send(content.pending(clock=9))
            assert world.read_through == {"source/A": 4 * SIZE}
            assert (world.application.begun, len(world.consumed)) == (1, 1)

    run_clocked(test)


@FORMS
def test_a_duplicate_follows_messages_without_and_with_a_clock(form: Form):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            content = world.content
            await world.send(content.ack(clock=0))
            await world.send(content.outside(clock=7), content.outside(clock=7))
            await world.send(content.outside(clock=7))
            assert world.consumed == [0, SIZE]
            # They're part of the transaction, whose checkpoint reports them.
            assert world.read_through == {"source/A": 0}
            await loop.advance(MIN)
            await world.commit()
            assert world.read_through == {"source/A": 4 * SIZE}

    run_clocked(test)


@FORMS
@pytest.mark.parametrize("by_defer", [True, False])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_transaction_ends_within_a_sequence(form: Form, by_defer: bool, is_at_once: bool):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            content, application = world.content, world.application
            rows = transaction(content, 4)
            places = [row.begin for row in rows]
            if by_defer:
                application.defers_at = 1
            else:
                application.seconds_each = MAX
            for sent in [rows] if is_at_once else [[row] for row in rows]:
                await world.send(*sent)
            if by_defer:
                assert world.consumed == places[:1]
                await loop.advance(MIN)
            application.seconds_each = 0
            checkpoint = world.store.commits[0][0]
            assert read_through(checkpoint) == {"source/A": 3 * SIZE}
            assert world.read_through == {"source/A": 0}
            await world.commit()
            if by_defer:
                assert world.consumed == places
                await loop.advance(MIN)
                assert read_through(await world.commit()) == {"source/A": content.head}
        assert (await again(form, loop, world, checkpoint)).consumed == places[1:]

    run_clocked(test)


@FORMS
def test_a_message_is_not_started_after_the_maximum(form: Form):
    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(min_ms=0, max_ms=10)
        async with form(loop, spec=spec) as world:
            world.application.seconds_each = MAX / 4
            await world.send(*(world.content.outside() for _ in range(10)))
            assert len(world.consumed) == 8
            [(checkpoint, _, _)] = world.store.commits
            assert read_through(checkpoint) == {"source/A": 4 * SIZE}

    run_clocked(test)


@FORMS
def test_a_transaction_that_began_late_consumes_its_first_message(form: Form):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            world.application.begin_seconds = world.application.seconds_each = 2 * MAX
            await world.send(world.content.outside(), world.content.outside())
            [(checkpoint, _, _)] = world.store.commits
            assert read_through(checkpoint) == {"source/A": SIZE}

    run_clocked(test)


@FORMS
def test_a_minimum_beyond_the_maximum_elapses_with_it(form: Form):
    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(min_ms=10, max_ms=1)
        async with form(loop, spec=spec) as world:
            await world.send(world.content.outside())
            await loop.advance(MIN)
            assert world.store.commits == []
            await world.send(world.content.outside())
            await loop.advance(MAX - MIN)
            [(checkpoint, _, _)] = world.store.commits
            assert read_through(checkpoint) == {"source/A": 2 * SIZE}

    run_clocked(test)


def test_messages_may_have_any_offsets_and_uuids():
    async def test(loop: ClockLoop) -> None:
        async with Produced(loop) as world:
            content, queue = world.content, world.application.queue
            rows = [content.pending(), content.outside(B), content.outside(B, clock=0)]
            rows += [content.pending(), content.ack(), content.outside(B)]
            rows[1].explicit_uuid = UUID(int=7)
            committed = [rows[at] for at in (1, 2, 5, 0, 3, 4)]
            queue.put_nowait([*rows[:3], rows[5], rows[3], rows[4]])
            await turns(40)
            consumed = world.application.consumed
            assert len(consumed) == len(rows)
            assert all(one is other for one, other in zip(consumed, committed, strict=True))
            await loop.advance(MIN)
            assert read_through(await world.commit()) == {"source/A": rows[4].end}

    run_clocked(test)


def test_a_message_of_no_bytes_fails():
    async def test(loop: ClockLoop) -> None:
        async with Produced(loop) as world:
            row = world.content.outside()
            row.end = row.begin
            world.application.queue.put_nowait([row])
            text = "read_messages(): message of source/A at offset 0 ends at 0"
            assert str(await world.failure()) == text

    run_clocked(test)


def test_messages_that_arent_consumed_are_freed():
    class Message(dict[str, int]):
        """A message that may be referred to weakly."""

    async def test(loop: ClockLoop) -> None:
        contents = {name: Lines(name) for name in ("source/A", "source/B")}
        spec = shard_spec(*contents, min_ms=1, max_ms=10, ring_buffer_size=6)
        async with Produced(loop, contents, spec) as world:
            a, b = contents.values()
            first = b.outside()
            evicted = [*(a.pending() for _ in range(5)), first]
            rolled_back = [b.pending(B) for _ in range(5)]
            rows = [*evicted, *rolled_back, b.ack(B, clock=1), b.ack(clock=first.clock)]
            for row in rows:
                row.message = Message(at=row.begin)
            weak = [weakref.ref(row.message) for row in rows]
            for content in contents.values():
                content.messages.clear()
            sent = [rows[:6], rows[6:11], rows[11:]]
            del rows, row, evicted, rolled_back, first, content
            while sent:
                world.application.queue.put_nowait(sent.pop(0))
                await turns(40)
            await loop.advance(MAX)
            world.application.consumed.clear()
            await world.commit()
            gc.collect()
            assert [ref() for ref in weak] == [None] * len(weak)

    run_clocked(test)


def test_a_replay_of_other_content_fails():
    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(min_ms=1, max_ms=10, ring_buffer_size=2)
        async with Produced(loop, spec=spec) as world:

            async def replay_range(*_: Any) -> Any:
                yield Lines("other").pending()

            world.application.replay_range = replay_range
            *pending, ack = transaction(world.content, 8)
            await world.send(*pending)
            await world.send(ack)
            assert "replay of wrong journal (other; expected source/A)" in str(
                await world.failure()
            )

    run_clocked(test)


@FORMS
def test_durations_are_those_of_the_start_of_the_commit_before(form: Form):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            await world.send(world.content.outside())
            world.shard.spec = shard_spec(min_ms=1000, max_ms=2000)
            await loop.advance(MIN)
            await world.commit()
            world.shard.spec = shard_spec(min_ms=0, max_ms=2000)
            await world.send(world.content.outside())
            await loop.advance(0.999)
            assert len(world.store.commits) == 1
            await loop.advance(0.001)
            assert len(world.store.commits) == 2

    run_clocked(test)


@FORMS
def test_checkpoints_forget_producers_of_the_day_before(form: Form):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            await world.send(world.content.pending(A, clock=1))
            await world.send(world.content.outside(B, clock=2 * DAY))
            await loop.advance(MAX)
            assert producers_of(await world.commit()) == {B}

    run_clocked(test)


@FORMS
def test_a_producer_whose_messages_are_being_consumed_isnt_forgotten(form: Form):
    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(min_ms=1, max_ms=10, ring_buffer_size=2)
        async with form(loop, spec=spec) as world:
            content = world.content
            world.application.defers_at = 3
            first = content.outside(B, clock=3 * DAY)
            rows = [content.pending(A, clock=clock) for clock in (1, 2, 3, 4)]
            rows.append(content.ack(A, clock=5))
            await world.send(first, *rows)
            await loop.advance(MIN)
            checkpoint = await world.commit()
            assert producers_of(checkpoint) == {A, B}
        later = await again(form, loop, world, checkpoint)
        assert later.consumed == [row.begin for row in rows[2:]]

    run_clocked(test)


@FORMS
def test_misbehaving_producers_are_logged(form: Form, caplog: pytest.LogCaptureFixture):
    async def test(loop: ClockLoop) -> None:
        async with form(loop) as world:
            content = world.content
            await world.send(content.outside(clock=5), content.ack(clock=3))
            await world.send(content.pending(clock=8), content.outside(clock=9))

    run_clocked(test)
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [vars(each)["journal"] for each in errors] == ["source/A"] * 2
    old, mixed = (each.getMessage() for each in errors)
    assert "exactly-once semantics are lost" in old
    assert "outside of transactions" in mixed
