"""Functions called in the workers which read: by a data source, so in the very same processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import gazette_aio.protocol as pb
from gazette_aio.spark import GazetteDataSource, bridge


class RegisteredSource(GazetteDataSource):
    """The source which is tested. Those which Spark finds by itself have workers of their own."""

    @classmethod
    def name(cls) -> str:
        return "registered"


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
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        told = globals()[self.options["function"]](self.options)
        # Both tasks have to run at once, or one worker could do all.
        time.sleep(0.2)
        yield (json.dumps({"pid": os.getpid(), "has_read": bool(bridge._bridges), **told}),)


def count_resources(options: dict[str, str]) -> dict[str, int]:
    """Count what a worker holds."""
    threads = [thread.name for thread in threading.enumerate()]
    return {
        "loops": threads.count("gazette-spark"),
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
        return sum(len(each.journals) for each in call(pb.ListRequest(), timeout=20))
