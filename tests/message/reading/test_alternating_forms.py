"""Messages are the same, and checkpoints exact, however iteration goes from one form to another."""

from __future__ import annotations

import asyncio
import logging
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.message import ReadCommittedIter, ReadUncommittedIter, Sequencer
from gazette_aio.protocol.errors import FramingError
from tests import extent
from tests.message.fakes import FakeClient
from tests.message.reading.test_iterators import Cancelling
from tests.message.reading.test_same_messages import ADAPTER, random_lines

NAMES = ["a/j", "b/j"]


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what is logged of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def client_of(contents, rng=None):
    chunk = 1 << 20 if rng is None else lambda *_: rng.choice((1, 100, 5000, 50_000))
    client = FakeClient(dict.fromkeys(contents, pb.CONTENT_TYPE_JSON_LINES), chunk=chunk)
    for journal, content in contents.items():
        client.append(journal, content)
    return client


def told(envelope):
    message = None if envelope.message is None else msgspec.to_builtins(envelope.message)
    return envelope.begin, envelope.end, envelope.uuid, message


async def in_order(iterator):
    """Return what a plain iteration delivers, by journal."""
    got = {name: [] for name in NAMES}
    async with iterator:
        while True:
            try:
                async for envelope in iterator:
                    got[envelope.journal].append(told(envelope))
            except FramingError:
                continue
            return got


class Walk:
    """Takes messages in random forms, with cancellations, checkpoints and restarts."""

    def __init__(self, rng, contents, options):
        self.rng, self.contents, self.options = rng, contents, options
        self.got = {name: [] for name in NAMES}

    def begun(self, checkpoint=None):
        known = {} if checkpoint is None else {"checkpoint": checkpoint}
        if checkpoint is not None and self.rng.random() < 0.3:
            buffer = self.rng.choice((2, 40, 8192))
            known = {"sequencer": Sequencer.from_checkpoint(checkpoint, buffer=buffer)}
        return ReadCommittedIter(
            NAMES, ADAPTER, client=client_of(self.contents, self.rng), **known, **self.options
        )

    async def step(self, iterator):
        """Take some messages, or none if the call is cancelled; return whether any may follow."""
        is_item = self.rng.random() < 0.5
        call = anext(iterator) if is_item else iterator.next_batch()
        at = self.rng.choice((-1, -1, -1, 0, 1, 3))
        try:
            taken = await Cancelling(call, at)
        except StopAsyncIteration:
            return False
        except (asyncio.CancelledError, FramingError):
            return True
        batch = [taken] if is_item else taken
        assert len({envelope.journal for envelope in batch}) == 1
        self.got[batch[0].journal] += map(told, batch)
        return True

    async def run(self):
        iterator = self.begun()
        restarts = self.rng.choice((0.0, 0.02, 0.2))
        while await self.step(iterator):
            if self.rng.random() < 0.2:
                checkpoint = iterator.checkpoint()
                if self.rng.random() < restarts:
                    await iterator.aclose()
                    assert iterator.checkpoint() == checkpoint
                    iterator = self.begun(checkpoint)
        await iterator.aclose()


@extent.examples(40)
@given(seed=st.integers(0, 2**32))
def test_committed_messages(seed):
    rng = random.Random(seed)
    contents = {name: b"".join(random_lines(rng)) for name in NAMES}
    options = {"skip_acks": rng.random() < 0.5, "on_error": rng.choice(("raise", "skip"))}

    async def compare():
        one_by_one = ReadCommittedIter(
            NAMES, ADAPTER, client=client_of(contents), sequencer=Sequencer(), **options
        )
        want = await in_order(one_by_one)
        walk = Walk(rng, contents, options)
        await walk.run()
        assert walk.got == want

    asyncio.run(compare())


@extent.examples(20)
@given(seed=st.integers(0, 2**32))
def test_uncommitted_messages(seed):
    rng = random.Random(seed)
    contents = {name: b"".join(random_lines(rng)) for name in NAMES}

    async def compare():
        client = client_of(contents)
        want = await in_order(ReadUncommittedIter(NAMES, ADAPTER, client=client))
        walk = Walk(rng, contents, {})
        async with ReadUncommittedIter(NAMES, ADAPTER, client=client_of(contents, rng)) as iterator:
            while await walk.step(iterator):
                continue
        assert walk.got == want

    asyncio.run(compare())
