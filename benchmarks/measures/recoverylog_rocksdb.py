"""RocksDB in recovery logs."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import Rdict, WriteBatch

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import served_journals
from gazette_aio.consumer.recoverylog import FSM, Author, Recorder
from gazette_aio.consumer.stores.rocksdb.capture import DirectoryCapture
from gazette_aio.consumer.stores.rocksdb.store import default_options
from gazette_aio.protocol.recoverylog import FSMHints

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

LOG = "bench/recoverylog/rocksdb"
KEYS = 100
BATCHES = 1500
TURN = 25
VALUE = b"v" * 100


@measure(
    "recoverylog.rocksdb",
    goal=0.7,
    unit="/s",
    about="batches of 100 keys that are written and recorded, whose appends follow, against the "
    "same batches written by rocksdict",
)
async def recording() -> AsyncGenerator[Subject]:
    async with served_journals(LOG) as client:
        with tempfile.TemporaryDirectory() as temporary:
            directory, plain = Path(temporary) / "recorded", Path(temporary) / "plain"
            directory.mkdir()
            fsm = FSM(FSMHints(log=LOG))
            options = default_options()
            options.set_recycle_log_file_num(0)
            recorder = await Recorder.open(client, LOG, fsm, Author(1), str(directory))
            async with recorder:
                capture = DirectoryCapture(directory, recorder)
                with Rdict(str(directory), options) as db, Rdict(str(plain), options) as other:
                    capture.capture()
                    # Both take turns within a round, as the database works in the background.
                    seconds = {"figure": 0.0, "yardstick": 0.0}
                    figures, others = batches(), batches()

                    async def figure() -> float:
                        seconds.update(figure=0.0, yardstick=0.0)
                        for _ in range(0, BATCHES, TURN):
                            begun = time.perf_counter()
                            for batch in itertools.islice(figures, TURN):
                                capture.commit(lambda batch=batch: db.write(batch))
                            between = time.perf_counter()
                            for batch in itertools.islice(others, TURN):
                                other.write(batch)
                            seconds["figure"] += between - begun
                            seconds["yardstick"] += time.perf_counter() - between
                            await asyncio.sleep(0)
                        await recorder.barrier()
                        return BATCHES / seconds["figure"]

                    async def yardstick() -> float:
                        return BATCHES / seconds["yardstick"]

                    yield Subject(figure, yardstick)
                capture.close()


def batches() -> Iterator[WriteBatch]:
    """Yield batches of random keys, the same for both sides."""
    keys = random.Random(1)
    while True:
        batch = WriteBatch(raw_mode=True)
        for _ in range(KEYS):
            batch.put(b"key%08d" % keys.randrange(1_000_000), VALUE)
        yield batch
