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

            async def figure() -> float:
                begun = time.perf_counter()
                for number in range(PAGES):
                    recorder.record_write_at(fnode, PAGE, number % FILE_PAGES * len(PAGE))
                seconds = time.perf_counter() - begun
                await recorder.barrier()
                return PAGES / seconds

            async def yardstick() -> float:
                return bare(fnode)

            yield Subject(figure, yardstick)


def bare(fnode: int) -> float:
    """Return the writes in a second of the least that a recorder has to compute."""
    checksum = 0
    begun = time.perf_counter()
    for number in range(PAGES):
        op = RecordedOp(
            seq_no=number + 1,
            checksum=checksum,
            author=AUTHOR,
            write=RecordedOp.Write(
                fnode=fnode, offset=number % FILE_PAGES * len(PAGE), length=len(PAGE)
            ),
            content_checksum=google_crc32c.extend(0, PAGE),
        )
        checksum = google_crc32c.extend(checksum, op.SerializeToString())
    return PAGES / (time.perf_counter() - begun)
