"""Logs damaged at random: a clear error, or a state that once was, and never a wrong file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import PlaybackError
from gazette_aio.protocol.recoverylog import FSMHints
from tests import extent
from tests.consumer.recoverylog.player.logs import (
    LogWriter,
    create_log,
    files_of,
    is_there,
    recover,
)

Files = dict[str, bytes]


class Workload:
    """A log of operations at random, and the files after each of them.

    Args:
        seed: Seed of the operations.
        log: The log.
        count: How many operations.
    """

    def __init__(self, seed: int, log: str, count: int = 40) -> None:
        self.random = random.Random(seed)
        self.writer = LogWriter(log=log)
        self.states: list[Files] = [{}]
        self.hints: list[FSMHints] = [self.writer.hints]
        for _ in range(count):
            self._step()
        # Nothing after the last operation tells whether that one is damaged.
        self.writer.op()
        self._note()

    def _step(self) -> None:
        writer, choose = self.writer, self.random.choice
        paths = sorted(writer.fsm.links)
        kind = self.random.random()
        fresh = f"/{choose('abc')}{writer.fsm.next_seq_no}/{choose('xyz')}"
        if not paths or kind < 0.2:
            writer.create(fresh)
        elif kind < 0.7:
            path = choose(paths)
            length = len(writer.files[writer.fsm.links[path]])
            content = self.random.randbytes(self.random.randrange(1, 60))
            writer.write(path, content, self.random.randrange(length + 5))
        elif kind < 0.8:
            writer.link(choose(paths), fresh)
        elif kind < 0.9:
            writer.unlink(choose(paths))
        else:
            writer.set_property("/IDENTITY", fresh)
        self._note()

    def _note(self) -> None:
        live = self.writer.fsm.live_nodes
        self.writer.files = {
            fnode: file for fnode, file in self.writer.files.items() if fnode in live
        }
        self.states.append(self.writer.expected())
        self.hints.append(self.writer.hints)


def flipped(work: Workload) -> bytes:
    content = bytearray(work.writer.content)
    begin, _ = work.writer.ops[-1]
    for _ in range(work.random.choice((1, 1, 3))):
        content[work.random.randrange(begin)] ^= 1 << work.random.randrange(8)
    return bytes(content)


def cut_out(work: Workload) -> bytes:
    content = work.writer.content
    begin, end = sorted(work.random.sample(range(len(content)), 2))
    return content[:begin] + content[end:]


def cut_short(work: Workload) -> bytes:
    return work.writer.content[: work.random.randrange(len(work.writer.content))]


def cut_between(work: Workload) -> bytes:
    """Cut after an operation, or too early in the next one for a frame to have begun."""
    _, end = work.random.choice(work.writer.ops)
    return work.writer.content[: end + work.random.randrange(8)]


def swapped(work: Workload) -> bytes:
    content, ops = work.writer.content, list(work.writer.ops)
    first, second = work.random.sample(range(len(ops)), 2)
    ops[first], ops[second] = ops[second], ops[first]
    return b"".join(content[begin:end] for begin, end in ops)


def overwritten(work: Workload) -> bytes:
    content = bytearray(work.writer.content)
    begin, end = sorted(work.random.sample(range(work.writer.ops[-1][0]), 2))
    content[begin:end] = work.random.randbytes(end - begin)
    return bytes(content)


def cases() -> Iterator[tuple[Callable[[Workload], bytes], int]]:
    for damage in (flipped, cut_out, cut_short, cut_between, swapped, overwritten):
        for seed in extent.seeds(12):
            yield damage, seed


async def test_damage(client: JournalClient, directory: Path):
    outcomes = {"error": 0, "state": 0}
    for number, (damage, seed) in enumerate(cases()):
        log = f"recovery/{number}"
        work = Workload(seed, log)
        await create_log(client, log)
        await client.append(log, damage(work))
        hints = work.random.choice([work.hints[0], work.random.choice(work.hints)])
        into = directory / str(number)
        error = None
        try:
            await recover(client, into, hints)
        except PlaybackError as failure:
            error = failure
        if error is None:
            outcomes["state"] += 1
            assert files_of(into) in work.states, (damage, seed)
        else:
            outcomes["error"] += 1
            assert log in str(error), error
            assert (error.log, error.offset >= 0) == (log, True)
            assert not is_there(into)
    assert outcomes["error"] > outcomes["state"] > 0
