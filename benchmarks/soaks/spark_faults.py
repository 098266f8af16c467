"""A sink whose driver is killed, or whose tasks fail, at a given point of the protocol.

Workers of Spark import it. What it's to do is told by the environment, which they have from the
driver.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from gazette_aio.client import JournalClient
from gazette_aio.spark.appending import JournalAppends
from gazette_aio.spark.commit_log import CommitLog
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.sink import GazetteStreamWriter
from gazette_aio.spark.source import GazetteDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "GAZETTE_SOAK_GROUP"
"""Process group of the driver."""
KILL = "GAZETTE_SOAK_KILL"
"""Point at which it's killed, and the first batch in which it is: `acks:3`."""
FAIL = "GAZETTE_SOAK_FAIL"
"""Share of the first attempts of tasks which fail behind their appends."""

POINTS = ("append", "record", "recorded", "acks", "done")
"""Behind an append of a task; before the record; behind it; amid acknowledgements; behind them."""


def kill() -> None:
    """Kill the driver with its JVM. This process stays behind."""
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)


def die() -> None:
    """Kill the driver, its JVM and this process."""
    kill()
    os.kill(os.getpid(), signal.SIGKILL)


def is_due(point: str, batch: int) -> bool:
    """Return whether the driver is to be killed at a point of a batch."""
    due, _, first = os.environ.get(KILL, "").partition(":")
    return due == point and batch >= int(first)


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

    def write(self, iterator: Any) -> Any:
        context: Any = TaskContext.get()
        if is_due("append", int(context.getLocalProperty("streaming.sql.batchId"))):
            with behind(JournalAppends, "_append", kill):
                return super().write(iterator)
        message = super().write(iterator)
        if context.attemptNumber() == 0 and random.random() < float(os.environ.get(FAIL, "0")):
            raise RuntimeError("this task was to fail")
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if is_due("record", batchId):
            die()
        with self.faults(batchId):
            super().commit(messages, batchId)
        if is_due("done", batchId):
            die()

    @contextmanager
    def faults(self, batch: int) -> Iterator[None]:
        """Have the driver killed within a commit, if that's due."""
        if not (is_due("recorded", batch) or is_due("acks", batch)):
            yield
            return
        acknowledge = CommitLog.acknowledge

        async def replaced(log: CommitLog, record: Any) -> None:
            if is_due("recorded", batch):
                die()
            with behind(JournalClient, "append", die):
                await acknowledge(log, record)

        CommitLog.acknowledge = replaced  # type: ignore[method-assign]
        try:
            yield
        finally:
            CommitLog.acknowledge = acknowledge  # type: ignore[method-assign]


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
