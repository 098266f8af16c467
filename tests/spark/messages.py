"""Messages of journals in memory, and their rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from gazette_aio.message.uuid import build_uuid, clock_from_ns
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading.task import All, Task
from gazette_aio.spark.types import parse_schema
from tests.spark.memory import Memory

if TYPE_CHECKING:
    from gazette_aio.spark.types import Labels

NDJSON = "application/x-ndjson"
CSV = "text/csv"
FIXED = "application/x-protobuf-fixed"
PRODUCER = b"\x01\x23\x45\x67\x89\xab"
EPOCH_MS = 1_400_000_000_000


def source_options(**options: str) -> SourceOptions:
    given = {"brokers": "http://localhost:8080", "prefix": "a/"} | options
    return SourceOptions.parse(given, streaming=False)


def message_uuid(number: int, flags: int = 0) -> UUID:
    """Return the UUID of a message which was published so many milliseconds after EPOCH_MS."""
    return build_uuid(PRODUCER, clock_from_ns((EPOCH_MS + number) * 10**6), flags)


def line(number: int, members: str = "", flags: int = 0) -> bytes:
    """Return a line of JSON whose UUID is at the front."""
    behind = "," + members if members else ""
    return f'{{"_meta":{{"uuid":"{message_uuid(number, flags)}"}}{behind}}}\n'.encode()


def spark_schema(*fields: tuple[str, Any] | tuple[str, Any, bool]) -> pa.Schema:
    """Return the exact Arrow schema of columns of Spark: names, types, and whether nullable."""
    columns = [
        {"name": f[0], "type": f[1], "nullable": f[2] if len(f) == 3 else True, "metadata": {}}
        for f in fields
    ]
    return parse_schema(json.dumps({"type": "struct", "fields": columns}))


class Journal:
    """Rows of content as a reader of the whole journal makes them.

    Args:
        schema: Schema of the rows.
        content_type: Content type of the journal.
        labels: Labels of the journal.
        options: Options of the source.

    Raises:
        ConfigurationError: There can't be rows of the schema.
    """

    def __init__(
        self,
        schema: pa.Schema,
        content_type: str = NDJSON,
        labels: Labels = (),
        **options: str,
    ) -> None:
        self._schema = schema
        self._content_type = content_type
        self._labels = labels
        self._options = source_options(**options)
        self.batches: list[pa.RecordBatch] = []
        self.skipped: int = 0
        """Number of bad records which were dropped."""
        self.load(b"")

    def load(self, content: bytes, chunk: int = 1 << 20) -> list[pa.RecordBatch]:
        """Return the batches of content, which comes in chunks of a size, and keep them."""
        size = len(content)
        task = Task(
            "a/journal",
            0,
            size,
            self._content_type,
            self._labels,
            size,
            All(),
            size,
            is_aligned=True,
        )
        memory = Memory(content, lambda begin, end: range(begin, end, chunk))
        self.batches = memory.read(task, self._options, self._schema, step_bytes=chunk)
        self.skipped = memory.skipped
        return self.batches

    def read(self, content: bytes, chunk: int = 1 << 20) -> list[dict[str, Any]]:
        """Return the rows of content, and keep their batches."""
        return [row for batch in self.load(content, chunk) for row in batch.to_pylist()]


def _flight_class() -> type:
    proto = descriptor_pb2.FileDescriptorProto(name="spark_messages.proto", syntax="proto3")
    proto.package = "spark_messages"
    proto.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    kind = descriptor_pb2.FieldDescriptorProto
    state = proto.enum_type.add(name="State")
    state.value.add(name="PLANNED", number=0)
    state.value.add(name="LATE", number=1)
    empty = proto.message_type.add(name="Nothing")
    flight = proto.message_type.add(name="Flight")
    entry = flight.nested_type.add(name="DelaysEntry")
    entry.options.map_entry = True

    def add(
        message: Any,
        name: str,
        number: int,
        type_: int,
        of: str | None = None,
        *,
        many: bool = False,
    ) -> None:
        label = kind.LABEL_REPEATED if many else kind.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, type=type_, label=label)
        if of is not None:
            field.type_name = of

    add(entry, "key", 1, kind.TYPE_STRING)
    add(entry, "value", 2, kind.TYPE_INT32)
    airport = proto.message_type.add(name="Airport")
    add(airport, "code", 1, kind.TYPE_STRING)
    add(airport, "next", 2, kind.TYPE_MESSAGE, ".spark_messages.Flight")
    add(flight, "number", 2, kind.TYPE_SFIXED32)
    add(flight, "stamp", 1, kind.TYPE_BYTES)
    add(flight, "other", 3, kind.TYPE_BYTES)
    add(flight, "serial", 4, kind.TYPE_UINT64)
    add(flight, "seats", 5, kind.TYPE_UINT32)
    add(flight, "ratio", 6, kind.TYPE_FLOAT)
    add(flight, "state", 7, kind.TYPE_ENUM, ".spark_messages.State")
    add(flight, "origin", 8, kind.TYPE_MESSAGE, ".spark_messages.Airport")
    add(flight, "stops", 9, kind.TYPE_MESSAGE, ".spark_messages.Airport", many=True)
    add(flight, "delays", 10, kind.TYPE_MESSAGE, ".spark_messages.Flight.DelaysEntry", many=True)
    add(flight, "at", 11, kind.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    add(flight, "nothing", 12, kind.TYPE_MESSAGE, f".spark_messages.{empty.name}")
    add(flight, "on_time", 13, kind.TYPE_BOOL)
    pool = descriptor_pool.DescriptorPool()
    for each in (descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), proto):  # fmt: skip
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("spark_messages.Flight"))


FLIGHT: Any = _flight_class()
"""A message whose UUID is the field `stamp`, of number 1."""
FLIGHT_TYPE = f"{__name__}:FLIGHT"
