"""Functions called in the workers which read: by a data source, so in the very same processes."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

import gazette_aio.protocol as pb
from gazette_aio.spark import GazetteDataSource, bridge
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.sink.writers import GazetteStreamWriter, GazetteWriter
from tests.pyspark.streams import until

_TASKS = 2


class RegisteredSource(GazetteDataSource):
    """The source which is tested. Those which Spark finds by itself have workers of their own."""

    @classmethod
    def name(cls) -> str:
        return "registered"


class TalkativeSource(GazetteDataSource):
    """The source, in processes which log everything."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        talk()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "talkative"

    def reader(self, schema: StructType) -> DataSourceReader:
        return talkative(super().reader(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return talkative(super().writer(schema, overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's.
        return talkative(super().streamReader(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return talkative(super().streamWriter(schema, overwrite))


class Talk:
    """Has the process which unpickles it log everything."""

    def __reduce__(self) -> Any:
        return talk, ()


def talk() -> None:
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger(__name__).debug("process %s talks", os.getpid())


def talkative(reads_or_writes: Any) -> Any:
    reads_or_writes.talk = Talk()
    return reads_or_writes


class StumblingSource(GazetteDataSource):
    """A sink, the first attempt of each of whose tasks fails when it's published all of its rows."""

    @classmethod
    def name(cls) -> str:
        return "stumbling"

    def writer(self, schema: StructType, overwrite: bool) -> GazetteWriter:
        options = SinkOptions.parse(self.options, streaming=False)
        return StumblingWriter(schema, options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GazetteStreamWriter:  # noqa: N802
        options = SinkOptions.parse(self.options, streaming=True)
        return StumblingStreamWriter(schema, options, overwrite)


class StumblingWriter(GazetteWriter):
    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)
        stumble()
        return message


class StumblingStreamWriter(GazetteStreamWriter):
    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)
        stumble()
        return message


def stumble() -> None:
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt was to fail")


class ProbeSource(DataSource):
    """Has a row of what a function of this module returns in each of two tasks."""

    @classmethod
    def name(cls) -> str:
        return "probe"

    def schema(self) -> str:
        return "told STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ProbeReader(dict(self.options))


class ProbeReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        told = globals()[self.options["function"]](self.options)
        # Both tasks have to run at once, or one worker could do all.
        directory = Path(self.options["directory"])
        (directory / str(partition.value)).touch()
        until(lambda: len(list(directory.iterdir())) == _TASKS)
        # Private: nothing else tells whether a worker has read before.
        yield (json.dumps({"pid": os.getpid(), "has_read": bool(bridge._bridges), **told}),)


def count_resources(options: dict[str, str]) -> dict[str, int]:
    """Count what a worker holds."""
    threads = [thread.name for thread in threading.enumerate()]
    return {
        "loops": threads.count("gazette-spark"),
        # Private: nothing else counts the clients of all bridges.
        "clients": sum(len(found) for found in bridge._clients.values()),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def list_in_child(options: dict[str, str]) -> dict[str, int]:
    """Count journals by a client which isn't asynchronous, in a forked process."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, b"%d" % _count_journals(options["endpoint"]))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = int(answer.read() or -1)
    os.waitpid(child, 0)
    return {"found": found}


def _count_journals(endpoint: str) -> int:
    import grpc

    with grpc.insecure_channel(endpoint.removeprefix("http://")) as channel:
        call = channel.unary_stream(
            "/protocol.Journal/List",
            request_serializer=pb.ListRequest.SerializeToString,
            response_deserializer=pb.ListResponse.FromString,
        )
        return sum(len(each.journals) for each in call(pb.ListRequest(), timeout=100))
