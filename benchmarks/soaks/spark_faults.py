"""A sink whose driver is killed, or whose tasks fail, at a given point of the protocol.

Workers of Spark import it. What it's to do is told by the environment, which they have from the
driver.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark import TaskContext

from gazette_aio.client import Appender, JournalClient
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.sink.commit_log import CommitLog
from gazette_aio.spark.sink.writers import GazetteStreamWriter
from gazette_aio.spark.source import GazetteDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "GAZETTE_SOAK_GROUP"
"""Process group of the driver."""
KILL = "GAZETTE_SOAK_KILL"
"""Points at which it's killed by commit journals, and the first batches: `{"a/b": "acks:3"}`."""
HOLD = "GAZETTE_SOAK_HOLD"
"""Directory, if the driver is to be killed by others: it has a file of each point which is reached,
and a file `killed` once the driver is."""
HOLD_SECONDS = 300.0
EXECUTOR = "GAZETTE_SOAK_EXECUTOR"
"""File which the first task that has appended creates, and then kills its executor."""
FAIL = "GAZETTE_SOAK_FAIL"
"""Share of the first attempts of tasks which fail behind their appends."""

POINTS = ("append", "record", "recorded", "acks", "done")
"""Behind an append of a task; before the record; behind it; amid acknowledgements; behind them."""


def kill(point: str) -> None:
    """Kill the driver with its JVM. This process stays behind."""
    if (name := os.environ.get(HOLD)) is None:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        return
    directory = Path(name)
    (directory / point).touch()
    deadline = time.monotonic() + HOLD_SECONDS
    while not (directory / "killed").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def die(point: str) -> None:
    """Kill the driver, its JVM and this process."""
    kill(point)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """Kill the JVM of this task, and this process, unless a task has done so before."""
    try:
        Path(os.environ[EXECUTOR]).touch(exist_ok=False)
    except FileExistsError:
        return
    # Of executors, Python workers are children of a daemon.
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text("utf-8")
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class FaultySource(GazetteDataSource):
    """The data source, with a sink which isn't to be relied upon."""

    @classmethod
    def name(cls) -> str:
        return "faulty_gazette"

    def streamWriter(  # noqa: N802
        self, schema: Any, overwrite: bool
    ) -> GazetteStreamWriter:
        return FaultyWriter(schema, SinkOptions.parse(self.options, streaming=True), overwrite)


class FaultyWriter(GazetteStreamWriter):
    """A writer with faults."""

    def is_due(self, point: str, batch: int) -> bool:
        """Return whether the driver is to be killed at a point of a batch."""
        points: dict[str, str] = json.loads(os.environ.get(KILL, "{}"))
        due, _, first = points.get(self.options.commit_journal or "", "").partition(":")
        return due == point and batch >= int(first)

    def write(self, iterator: Any) -> Any:
        context: Any = TaskContext.get()
        if self.is_due("append", int(context.getLocalProperty("streaming.sql.batchId"))):
            with behind(Appender, "close", partial(kill, "append")):
                return super().write(iterator)
        if EXECUTOR in os.environ:
            with behind(Appender, "close", kill_executor):
                return super().write(iterator)
        message = super().write(iterator)
        if context.attemptNumber() == 0 and random.random() < float(os.environ.get(FAIL, "0")):
            raise RuntimeError("this task was to fail")
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if self.is_due("record", batchId):
            die("record")
        with self.faults(batchId):
            super().commit(messages, batchId)
        if self.is_due("done", batchId):
            die("done")

    @contextmanager
    def faults(self, batch: int) -> Iterator[None]:
        """Have the driver killed within a commit, if that's due."""
        if not (self.is_due("recorded", batch) or self.is_due("acks", batch)):
            yield
            return
        acknowledge = CommitLog.acknowledge

        async def replaced(log: CommitLog, record: Any) -> None:
            if self.is_due("recorded", batch):
                die("recorded")
            with behind(JournalClient, "append", partial(die, "acks")):
                await acknowledge(log, record)

        with mock.patch.object(CommitLog, "acknowledge", replaced):
            yield


@contextmanager
def behind(owner: type, name: str, fault: Callable[[], None]) -> Iterator[None]:
    """Have something happen behind the first call of a coroutine function."""
    function = getattr(owner, name)

    async def replaced(*args: Any, **given: Any) -> Any:
        result = await function(*args, **given)
        fault()
        return result

    setattr(owner, name, replaced)
    try:
        yield
    finally:
        setattr(owner, name, function)
