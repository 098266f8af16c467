"""Recovery logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import google_crc32c

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import served_journals
from gazette_aio.consumer.recoverylog import FSM, Author, Recorder
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LOG = "bench/recoverylog/log"
PAGE = bytes(range(256)) * 16
PAGES = 4096
FILE_PAGES = 64
AUTHOR = Author(1234)


@measure(
    "recoverylog.record",
    goal=0.5,
    unit="/s",
    about="recording of writes of 4 KiB, whose appends follow, against encoding the same "
    "operations as protobuf and two checksums of each: of the operation, and of its content",
)
async def recording() -> AsyncGenerator[Subject]:
    async with served_journals(LOG) as client:
        head = (await client.append(LOG, b"")).commit.end
        assert not head, "the log is new"
        fsm = FSM(FSMHints(log=LOG))
        async with await Recorder.open(client, LOG, fsm, AUTHOR, "/recorded") as recorder:
            fnode = recorder.record_create("/recorded/file")

            # Both take turns within a round, so that what else the machine does is common to them.
            seconds = {"figure": 0.0, "yardstick": 0.0}

            async def figure() -> float:
                seconds.update(figure=0.0, yardstick=0.0)
                for _ in range(0, PAGES, FILE_PAGES):
                    begun = time.perf_counter()
                    for number in range(FILE_PAGES):
                        recorder.record_write_at(fnode, PAGE, number * len(PAGE))
                    between = time.perf_counter()
                    encode_bare(fnode)
                    seconds["figure"] += between - begun
                    seconds["yardstick"] += time.perf_counter() - between
                await recorder.barrier()
                return PAGES / seconds["figure"]

            async def yardstick() -> float:
                return PAGES / seconds["yardstick"]

            yield Subject(figure, yardstick)


def encode_bare(fnode: int) -> None:
    """Compute the least that a recorder has to, for a write of each page."""
    checksum = 0
    for number in range(FILE_PAGES):
        op = RecordedOp(
            seq_no=number + 1,
            checksum=checksum,
            author=AUTHOR,
            write=RecordedOp.Write(fnode=fnode, offset=number * len(PAGE), length=len(PAGE)),
            content_checksum=google_crc32c.extend(0, PAGE),
        )
        checksum = google_crc32c.extend(checksum, op.SerializeToString())
