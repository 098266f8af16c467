"""Transactions that write to many journals."""

from __future__ import annotations

import asyncio

from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from tests.consumer.transactions.clocked import Clocked, ClockLoop, run_clocked
from tests.loop_steps import SLICE_CALLS, counted_calls, longest_step
from tests.waiting import eventually

INTENT = b'{"_meta":{"uuid":"00000000-0000-1000-8000-aaaaaaaaaaaa","ack":true}}\n'


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
