"""Playing recovery logs: of large writes, of small ones, and of none."""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, constant, measure
from benchmarks.measures.events import JOURNAL, read_speed, served_journals
from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    Outcome,
    Player,
    Recorder,
    encode_operation,
    next_checksum,
)
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.message.framing import FIXED_FRAME_HEADER_LENGTH
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp
from gazette_aio.testing import StubShard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.client import JournalClient

LARGE_BYTES, LARGE_WRITES = 4 << 10, 32 << 10
SMALL_BYTES, SMALL_WRITES = 100, 100_000
FILES = 4
LOGS = [f"bench/recoverylog/empty/{number}" for number in range(100)]
EMPTY_MILLISECONDS = 100
RUN_WRITES = 16
"""Writes to a file before those to another one."""


def recorded(count: int, size: int) -> tuple[bytes, list[bytes]]:
    """Return a log of writes to a few files, and the frames of its operations."""
    source = random.Random(7)
    content = [source.randbytes(size) for _ in range(64)]
    sums = [next_checksum(0, each) for each in content]
    fsm = FSM(FSMHints(log=JOURNAL))
    log: list[bytes] = []
    frames: list[bytes] = []
    lengths = [0] * FILES

    def record(op: RecordedOp, data: bytes = b"") -> None:
        op.seq_no, op.checksum, op.author = fsm.next_seq_no, fsm.next_checksum, 1
        payload, frame = encode_operation(op)
        assert fsm.apply(op, payload) is Outcome.APPLIED
        frames.append(frame)
        log.extend((frame, data))

    for number in range(FILES):
        record(RecordedOp(create={"path": f"/{number}"}))
    for number in range(count):
        file = number // RUN_WRITES % FILES
        write = {"fnode": file + 1, "offset": lengths[file], "length": size}
        lengths[file] += size
        which = number % len(content)
        record(RecordedOp(write=write, content_checksum=sums[which]), content[which])
    return b"".join(log), frames


async def appended(client: JournalClient, log: bytes) -> int:
    """Append a log, and return its length."""
    for begin in range(0, len(log), 16 << 20):
        await client.append(JOURNAL, log[begin : begin + (16 << 20)])
    return len(log)


async def played(client: JournalClient) -> float:
    """Play the log into a directory, and return the seconds."""
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        player = Player()
        player.finish_at_write_head()
        begun = time.perf_counter()
        resolved = await player.play(FSMHints(log=JOURNAL), directory, client)
        elapsed = time.perf_counter() - begun
        assert len(resolved.fsm.links) == FILES
    return elapsed


@measure(
    "recoverylog.play",
    goal=0.5,
    unit="MB/s",
    about="a Player of a log of 32,768 writes of 4 KiB of a broker process, against client.read() "
    "of the same log",
)
async def large() -> AsyncGenerator[Subject]:
    """Compare a player with a reader of the same log."""
    async with served_journals(JOURNAL) as client:
        log, _ = recorded(LARGE_WRITES, LARGE_BYTES)
        head = await appended(client, log)
        del log

        async def figure() -> float:
            return head / await played(client) / 1e6

        yield Subject(figure, partial(read_speed, client, head))


@measure(
    "recoverylog.play.small",
    goal=0.5,
    unit="op/s",
    about="a Player of a log of 100,000 writes of 100 B of a broker process, against a loop that "
    "decodes each operation and applies it to an FSM",
)
async def small() -> AsyncGenerator[Subject]:
    """Compare a player with a loop over operations in memory."""
    async with served_journals(JOURNAL) as client:
        log, frames = recorded(SMALL_WRITES, SMALL_BYTES)
        await appended(client, log)
        del log

        async def figure() -> float:
            return len(frames) / await played(client)

        async def yardstick() -> float:
            fsm = FSM(FSMHints(log=JOURNAL))
            begun = time.perf_counter()
            for frame in frames:
                payload = frame[FIXED_FRAME_HEADER_LENGTH:]
                fsm.apply(RecordedOp.FromString(payload), payload)
            elapsed = time.perf_counter() - begun
            assert fsm.next_seq_no == len(frames) + 1
            return len(frames) / elapsed

        yield Subject(figure, yardstick)


@measure(
    "recoverylog.empty",
    goal=1.0,
    unit="ms",
    better="less",
    about="the fastest of ten recoveries of a shard whose log is empty: playing it, taking it "
    "over, and opening an SQLiteStore whose database is recorded, against what it may take",
)
async def empty() -> AsyncGenerator[Subject]:
    """Compare a recovery of nothing with a limit."""
    async with served_journals(*LOGS) as client:
        logs = iter(LOGS)

        async def figure() -> float:
            # It waits for other processes, so that most of it is up to what else the machine does.
            return min([await recovered(client, log) for log in itertools.islice(logs, 10)]) * 1e3

        yield Subject(figure, constant(EMPTY_MILLISECONDS))


async def recovered(client: JournalClient, log: str) -> float:
    """Recover a shard with an empty log, and return the seconds."""
    shard, author = StubShard("a-shard"), Author.random()
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        begun = time.perf_counter()
        player = Player()
        player.inject_handoff(author)
        played = await player.play(FSMHints(log=log), directory, client)
        async with await Recorder.open(client, log, played.fsm, author, directory) as recorder:
            store = SQLiteStore(recorder)
            await store.restore_checkpoint(shard)
            await recorder.barrier()
            elapsed = time.perf_counter() - begun
            await store.destroy()
    return elapsed
