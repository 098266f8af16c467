"""Rows of a sink as messages: meaning of the columns, and encoding.

| column | meaning |
| --- | --- |
| `_value`, or `value` of STRING or BINARY | the whole message |
| `key`, or the column of the option `keyColumn` | key of the mapping |
| `journal` | journal of the row |
| `_journal`, `_begin`, … | columns of a source which describe a message: ignored |
| others | members of the message, by name; fields of CSV, by position |

`key` isn't a part of the message. The column of `keyColumn` is, as it names a member.

Columns of a source are accepted, so that loading and saving copies a journal. `_journal` thus
doesn't choose the journal of a row. UUIDs in messages are replaced.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from gazette_aio.message.adapters.csv import csv_adapter
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.adapters.protobuf import protobuf_adapter
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.records import VALUE_NAME
from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.publishing.routes import JournalState, Route
from gazette_aio.message.publishing.table_rows import TableRows
from gazette_aio.message.uuid import ZERO_UUID
from gazette_aio.protocol.errors import ConfigurationError, GazetteError, ValidationError
from gazette_aio.spark.sink.commit_records import AckTemplate, ack_template
from gazette_aio.spark.types import CORRUPT_COLUMN, RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.adapters.json import JSONAdapter
    from gazette_aio.message.adapters.protobuf import ProtobufAdapter
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.publishing.routes import Encoded
    from gazette_aio.message.uuid import Clock, Flags, ProducerID
    from gazette_aio.spark.options import SinkOptions

NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
PROTOBUF: Final = "application/x-protobuf-fixed"

_SLICE_ROWS: Final = 4096


class SinkColumns(NamedTuple):
    """Columns of rows, by meaning."""

    value: str | None
    """Column of whole messages, or None."""
    documents: tuple[str, ...]
    """Columns of members, if there's no column of whole messages."""
    key: tuple[str, ...]
    """Path of the column of keys; empty without one."""
    journal: str | None
    corrupt: str | None
    """Column with the texts of bad records of a source: such rows are refused."""
    reads_keys: bool = False
    """Whether keys are members of whole messages, which option `keyColumn` names."""


def classify_rows(schema: Schema, key_column: str | None = None) -> SinkColumns:
    """Return the meaning of columns by their exact names.

    Args:
        schema: Arrow schema of the rows.
        key_column: Option `keyColumn`: a column, a field of one, or a member of whole messages.

    Raises:
        ConfigurationError: There is no column to publish, columns contradict, or a type is wrong.
    """
    kinds: dict[str, Any] = dict(zip(schema.names, cast("Any", schema).types, strict=True))
    names = [name for name in schema.names if name not in RESERVED or name == VALUE_NAME]
    for name in names:
        if schema.names.count(name) > 1:
            raise ConfigurationError(f"there's more than one column {name!r}")
    usual_key = "key" if key_column is None else None
    special = {name: name for name in (usual_key, "journal", CORRUPT_COLUMN) if name in names}
    documents = [name for name in names if name not in special]
    value: str | None = None
    if VALUE_NAME in documents or ("value" in documents and is_text(kinds["value"])):
        value = VALUE_NAME if VALUE_NAME in documents else "value"
        if others := [name for name in documents if name not in (value, key_column)]:
            raise ConfigurationError(
                f"column {value!r} is the whole message, but there is also column {others[0]!r}:"
                f" drop it, or combine both by to_json(), or rename {value!r}"
            )
        documents = []
        if not is_text(kinds[value]):
            raise ConfigurationError(f"column {value!r} must be STRING or BINARY")
    elif not documents:
        raise ConfigurationError(
            "there's no column to publish: expected 'value', or columns of the message's members"
        )
    for name in special:
        if not is_text(kinds[name], binary=name == "key"):
            expected = "STRING or BINARY" if name == "key" else "STRING"
            raise ConfigurationError(f"column {name!r} must be {expected}")
    key: tuple[str, ...] = ("key",) if "key" in special else ()
    if key_column is not None:
        key = _key_path(schema, key_column)
        if not key and value is None:
            raise ConfigurationError(f"option 'keyColumn': rows have no column {key_column!r}")
    return SinkColumns(
        value,
        tuple(documents),
        key,
        special.get("journal"),
        special.get(CORRUPT_COLUMN),
        reads_keys=key_column is not None and not key,
    )


def _key_path(schema: Schema, key_column: str) -> tuple[str, ...]:
    """Return the path of the column that option `keyColumn` names, or none if there is none.

    Raises:
        ConfigurationError: Its type can't be a key.
    """
    path = (key_column,) if key_column in schema.names else tuple(key_column.split("."))
    if path[0] not in schema.names:
        return ()
    kind: Any = cast("Any", schema).field(path[0]).type
    for name in path[1:]:
        index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if index < 0:
            raise ConfigurationError(f"option 'keyColumn': rows have no column {key_column!r}")
        kind = kind.field(index).type
    if not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise ConfigurationError(
            f"option 'keyColumn': column {key_column!r} must be STRING, BINARY, BOOLEAN or of whole"
            " numbers"
        )
    return path


def is_text(kind: Any, *, binary: bool = True) -> bool:
    """Return whether a type of Arrow is text or, if `binary`, bytes."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return binary and bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def check_target(content_type: str, options: SinkOptions) -> None:
    """Raise ConfigurationError unless messages can be published to journals of a content type."""
    if content_type == PROTOBUF:
        if options.message_type is None:
            raise ConfigurationError(f"journals of {PROTOBUF} need option 'messageType'")
        return
    if content_type not in (NDJSON, CSV):
        raise ConfigurationError(
            f"can't publish to journals of content type {content_type!r}: expected {NDJSON},"
            f" {CSV} or {PROTOBUF}"
        )
    if content_type == NDJSON:
        _json_kind(options)
    if content_type == CSV and options.ack_template is not None:
        raise ConfigurationError("option 'ackTemplate' isn't for journals of CSV")
    if content_type == CSV and not (options.uuid or "0").isdecimal():
        raise ConfigurationError("option 'uuid' must be the index of a column for journals of CSV")


class _Kind(NamedTuple):
    """Adapter and acknowledgements of a content type."""

    adapter: Adapter[Any]
    acknowledgement: Callable[[UUID], bytes]


class RowEncoder:
    """Encodes and stamps the rows of one task.

    Args:
        columns: Columns of the rows.
        options: Options of the sink.
        message_type: Class of protobuf messages, if an option names it.
        producer: ID of the messages' producer.
    """

    def __init__(
        self, columns: SinkColumns, options: SinkOptions, message_type: Any, producer: ProducerID
    ) -> None:
        self._columns = columns
        self._producer = producer
        self._options = options
        self._message_type = message_type
        self._kinds: dict[str, _Kind] = {}
        self._routes: dict[Target, Route[Any]] = {}
        self._templates: dict[str, AckTemplate] = {}

    def encode(
        self, batch: RecordBatch, rows_of: dict[Target, range | list[int]]
    ) -> list[tuple[Target, list[Encoded]]]:
        """Return the encoded rows of a batch by target.

        Args:
            batch: The rows.
            rows_of: Indices of the rows of each target.

        Raises:
            ConfigurationError: The columns can't be encoded as messages of a target.
            ValidationError: A row can't be encoded, for example because it isn't a JSON object.
        """
        self._refuse_corrupt(batch)
        table = self._documents(batch)
        tables: dict[str, TableRows] = {}
        encoded: list[tuple[Target, list[Encoded]]] = []
        for target, indices in rows_of.items():
            content_type = target[1]
            kind = self._kind(content_type)
            rows = tables.get(content_type)
            if rows is None:
                rows = tables[content_type] = TableRows(table, kind.adapter)
            route = self._route(target, kind.adapter)
            parts: list[Encoded] = []
            for begin in range(0, len(indices), _SLICE_ROWS):
                some = indices[begin : begin + _SLICE_ROWS]
                try:
                    part = rows.encode(some)
                    route.check(part)
                except GazetteError:
                    raise
                except Exception as error:
                    # Message classes may raise any exception.
                    text = f"rows {some[0]} to {some[-1]}: {type(error).__name__}: {error}"
                    raise ValidationError(text) from error
                parts.append(part)
            encoded.append((target, parts))
        return encoded

    def stamp(self, target: Target, part: Encoded, clock: Clock, flags: Flags) -> tuple[int, bytes]:
        """Advance the clock by the number of rows, and return the first clock and the frames."""
        clock.update()
        return self._routes[target].stamp(part, clock, flags)

    def template(self, content_type: str) -> AckTemplate:
        """Return the template of acknowledgements of a content type for which rows were encoded."""
        template = self._templates.get(content_type)
        if template is None:
            acknowledgement = self._kind(content_type).acknowledgement
            template = self._templates[content_type] = ack_template(acknowledgement, content_type)
        return template

    def _route(self, target: Target, adapter: Adapter[Any]) -> Route[Any]:
        route = self._routes.get(target)
        if route is None:
            framing = framing_by_content_type(target[1], journal=target[0])
            state = JournalState(target[0], framing, self._producer)
            route = self._routes[target] = Route(state, adapter)
        return route

    def _refuse_corrupt(self, batch: RecordBatch) -> None:
        name = self._columns.corrupt
        if name is not None and batch.column(name).null_count < batch.num_rows:
            raise ValidationError(
                f"rows have {name!r}, which their source couldn't decode: filter them out"
            )

    def _documents(self, batch: Any) -> Any:
        columns = self._columns
        if columns.value is not None:
            return pa.table({VALUE_NAME: batch.column(columns.value)})
        return pa.Table.from_batches([batch.select(list(columns.documents))])

    def _kind(self, content_type: str) -> _Kind:
        kind = self._kinds.get(content_type)
        if kind is None:
            check_target(content_type, self._options)
            framing_by_content_type(content_type)
            kind = self._kinds[content_type] = self._make_kind(content_type)
        return kind

    def _make_kind(self, content_type: str) -> _Kind:
        uuid, constants = self._options.uuid, self._options.ack_template
        if content_type == CSV:
            columns = None if self._columns.value else len(self._columns.documents) + 1
            records = csv_adapter(columns=columns, uuid_column=int(uuid or 0))
            return _Kind(records, records.acknowledgement)
        if content_type == PROTOBUF:
            messages = protobuf_adapter(self._message_type, uuid or "uuid")
            return _Kind(messages, _protobuf_acknowledgement(messages, constants))
        return _json_kind(self._options)


def _json_kind(options: SinkOptions) -> _Kind:
    uuid = options.uuid
    documents = json_adapter(dict) if uuid is None else json_adapter(dict, uuid_path=uuid)
    return _Kind(documents, _json_acknowledgement(documents, options.ack_template))


def _json_acknowledgement(
    adapter: JSONAdapter[dict[str, Any]], constants: str | None
) -> Callable[[UUID], bytes]:
    if constants is None:
        return adapter.acknowledgement
    path = adapter.uuid_path
    message: dict[str, Any] = json.loads(constants)
    if len(path) > 1 and path[0] not in message:
        inner: dict[str, Any] = {"ack": True}
        for name in reversed(path[1:-1]):
            inner = {name: inner}
        message = {path[0]: inner, **message}
    try:
        adapter.encode(message, ZERO_UUID)
    except (ValidationError, msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ConfigurationError(f"option 'ackTemplate': {error}") from None
    return lambda uuid: adapter.encode(message, uuid)


def _protobuf_acknowledgement(
    adapter: ProtobufAdapter[Any], constants: str | None
) -> Callable[[UUID], bytes]:
    if constants is None:
        return adapter.acknowledgement
    try:
        message = adapter.message(json.loads(constants))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"option 'ackTemplate': {error}") from None
    return lambda uuid: adapter.encode(message, uuid)
