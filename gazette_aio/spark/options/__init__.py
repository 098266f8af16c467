"""Options of the source and the sink of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.options import values
from gazette_aio.spark.options.table import (
    fields_of,
    option,
    parse_options,
    parsers_of,
    refuse,
    refuse_others,
    refuse_together,
)
from gazette_aio.spark.types import CORRUPT_COLUMN, PartitionColumn

if TYPE_CHECKING:
    from gazette_aio.spark.options.values import Positions

__all__ = [
    "OF_STREAMS",
    "BrokerAccess",
    "PartitionColumn",
    "Selection",
    "SinkOptions",
    "SourceOptions",
    "check_options",
]

OF_STREAMS: Final = (
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "minBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
)
"""Names of source options that only streams have."""


def check_options(options: Mapping[str, str]) -> None:
    """Check options which may be a source's or a sink's.

    Args:
        options: Texts by names in any case. Spark's own options are ignored.

    Raises:
        ConfigurationError: An option is unknown or malformed, or brokers are missing, or several
            options select journals.
    """
    given = _parse(options)
    _connection(given)
    _selection(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """Addresses and credentials of brokers, and the place of fragment files."""

    brokers: tuple[str, ...] = option("brokers", values.endpoints, default=MISSING)
    """URLs of brokers."""
    token: str | None = option("token", values.text, is_secret=True)
    token_provider: str | None = option("tokenProvider", values.reference)
    """`module:callable` which returns a token."""
    ca_file: str | None = option("tls.caFile", values.text)
    cert_file: str | None = option("tls.certFile", values.text)
    key_file: str | None = option("tls.keyFile", values.text)
    file_root: str | None = option("fileRoot", values.text)
    """Directory of `file://` stores."""


def _connection(given: Mapping[str, Any]) -> BrokerAccess:
    if "brokers" not in given:
        raise ConfigurationError(
            "option 'brokers' is missing: expected URLs of brokers, separated by commas, such as"
            " http://localhost:8080; in SQL: CREATE TEMPORARY VIEW v USING gazette OPTIONS (brokers"
            " 'http://localhost:8080', prefix 'app/logs/'); as Spark forgets those of a table, give"
            " them by FROM t WITH (…) or INSERT INTO t WITH (…)"
        )
    refuse_together(given, "token", "tokenProvider")
    if ("tls.certFile" in given) != ("tls.keyFile" in given):
        raise ConfigurationError("options 'tls.certFile' and 'tls.keyFile' must be given together")
    if not any(broker.lower().startswith("https:") for broker in given["brokers"]):
        for name in ("tls.caFile", "tls.certFile"):
            refuse(given, name, "needs a broker of an https:// URL")
    return BrokerAccess(**fields_of(given, BrokerAccess))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of journals by one of three options, or by none if rows or `journal` name them."""

    selector: str | None = option("selector", values.selector)
    journals: tuple[str, ...] = option("journals", values.journals, default=())
    prefix: str | None = option("prefix", values.prefix)
    """Prefix of the names."""

    def __str__(self) -> str:
        """Return the option, and its value."""
        if self.selector is not None:
            return f"selector={self.selector or values.ALL_JOURNALS}"
        if self.prefix is not None:
            return f"prefix={self.prefix}"
        return f"journals={','.join(self.journals)}"

    def __bool__(self) -> bool:
        return self.selector is not None or bool(self.journals) or self.prefix is not None

    def label_selector(self) -> pb.LabelSelector:
        """Return the selector of these journals."""
        assert self
        if self.selector is not None:
            return pb.parse_label_selector(self.selector)
        if self.prefix is not None:
            labels = [pb.Label(name="name", value=self.prefix, prefix=True)]
        else:
            labels = [pb.Label(name="name", value=name) for name in sorted(self.journals)]
        return pb.LabelSelector(include=pb.LabelSet(labels=labels))


def _selection(given: Mapping[str, Any]) -> Selection:
    refuse_together(given, "selector", "journals", "prefix", "journal")
    return Selection(**fields_of(given, Selection))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a source. Sizes are in bytes, times in seconds unless named otherwise."""

    connection: BrokerAccess
    selection: Selection
    isolation: Literal["read-committed", "read-uncommitted"] | None = option(
        "isolation", values.choice("read-committed", "read-uncommitted")
    )
    """None: read-committed if messages have UUIDs."""
    include_acks: bool = option("includeAcks", values.boolean, default=False)
    uuid: str | None = option("uuid", values.uuid)
    """Place of UUIDs: names separated by dots, the index of a column, or a field."""
    format: Literal["raw", "ndjson", "csv", "protobuf-fixed"] | None = option(
        "format", values.choice("raw", "ndjson", "csv", "protobuf-fixed")
    )
    """None: the content type of each journal decides."""
    mode: Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"] = option(
        "mode", values.choice("FAILFAST", "DROPMALFORMED", "PERMISSIVE"), default="PERMISSIVE"
    )
    """Treatment of bad records. The default of `parse()` for streams is FAILFAST."""
    corrupt_column: str = option(
        "columnNameOfCorruptRecord", values.corrupt_column, default=CORRUPT_COLUMN
    )
    message_type: str | None = option("messageType", values.reference)
    """`module:Class` of protobuf messages."""
    key_column: str | None = option("keyColumn", values.member)
    """Member of messages which is their key: names separated by dots, or the index of a column."""
    infer_schema: bool = option("inferSchema", values.boolean, default=False)
    starting: Positions = option("startingOffsets", values.offsets, default="earliest")
    """The default of `parse()` for streams is the latest offset, unless they begin at a time."""
    ending: Positions = option("endingOffsets", values.offsets, default="latest")
    starting_timestamp_ms: int | Mapping[str, int] | None = option(
        "startingTimestamp", values.times
    )
    """One for all journals; or by names, where other journals begin at their earliest offset."""
    ending_timestamp_ms: int | None = option("endingTimestamp", values.milliseconds)
    max_clock_skew: float = option("maxClockSkew", values.seconds, default=300.0)
    """Time by which clocks of a journal may go back, and be ahead of its store's clock."""
    fail_on_data_loss: bool = option("failOnDataLoss", values.boolean, default=True)
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", values.size)
    max_rows_per_trigger: int | None = option("maxRowsPerTrigger", values.count)
    min_bytes_per_trigger: int | None = option("minBytesPerTrigger", values.size)
    min_rows_per_trigger: int | None = option("minRowsPerTrigger", values.count)
    max_trigger_delay: float = option("maxTriggerDelay", values.seconds, default=15 * 60.0)
    """Longest wait for the least size of a batch."""
    max_split_bytes: int = option("maxSplitBytes", values.size, default=128 << 20)
    min_partitions: int | None = option("minPartitions", values.count)
    partition_columns: tuple[PartitionColumn, ...] = option(
        "partitionColumns", values.partition_columns, default=()
    )
    io: Literal["auto", "broker", "direct"] = option(
        "io", values.choice("auto", "broker", "direct"), default="auto"
    )
    fetch_timeout: float = option("fetchTimeout", values.seconds, default=120.0)
    batch_rows: int = option("batchRows", values.count, default=10_000)
    batch_bytes: int = option("batchBytes", values.size, default=4 << 20)
    producer_horizon: float = option("producerHorizon", values.seconds, default=24 * 3600.0)

    def starting_ms(self, journal: str) -> int | None:
        """Return the time at which a journal begins, in milliseconds since 1970; or None."""
        starting = self.starting_timestamp_ms
        return starting.get(journal) if isinstance(starting, Mapping) else starting

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Return the options of a source.

        Args:
            options: Texts by names in any case. Spark's own options are ignored.
            streaming: Whether the source is a stream's.

        Raises:
            ConfigurationError: An option is unknown, malformed or missing, or contradicts another.
        """
        given = _parse(options)
        refuse_others(given, _OF_SOURCES, "sinks")
        connection, selection = _connection(given), _selection(given)
        if not selection:
            raise ConfigurationError("one of the options selector, journals and prefix is missing")
        _check_extent(given, streaming=streaming)
        _check_messages(given)
        if given.get("io") == "broker":
            refuse(given, "fileRoot", "has no effect with io=broker")
        defaults: dict[str, Any] = {}
        if streaming:
            starting = "earliest" if "startingTimestamp" in given else "latest"
            defaults = {"mode": "FAILFAST", "starting": starting}
        fields = defaults | fields_of(given, cls)
        return cls(connection=connection, selection=selection, **fields)


def _check_extent(given: Mapping[str, Any], *, streaming: bool) -> None:
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            refuse(given, name, "is for batches only: streams have no end")
    else:
        for name in OF_STREAMS:
            refuse(given, name, "is for streams only")
    refuse_together(given, "startingOffsets", "startingTimestamp")
    refuse_together(given, "endingOffsets", "endingTimestamp")
    _check_triggers(given)
    _check_offsets(given)
    begin, end = given.get("startingTimestamp"), given.get("endingTimestamp")
    begins = [*_by_journal(given, "startingTimestamp").values()]
    begins += [begin] if isinstance(begin, int) else []
    if end is not None and begins and max(begins) > end:
        raise ConfigurationError("option 'endingTimestamp' is before 'startingTimestamp'")


def _check_triggers(given: Mapping[str, Any]) -> None:
    refuse_together(given, "maxBytesPerTrigger", "maxRowsPerTrigger")
    refuse_together(given, "minBytesPerTrigger", "minRowsPerTrigger")
    is_raw = given.get("format") == "raw"
    if given.get("isolation", is_raw and "read-uncommitted") == "read-uncommitted":
        for name in ("maxRowsPerTrigger", "minRowsPerTrigger"):
            refuse(given, name, "needs read-committed isolation")
    if "minBytesPerTrigger" not in given and "minRowsPerTrigger" not in given:
        refuse(given, "maxTriggerDelay", "needs 'minBytesPerTrigger' or 'minRowsPerTrigger'")
    for unit in ("Bytes", "Rows"):
        least, most = f"min{unit}PerTrigger", f"max{unit}PerTrigger"
        if least in given and given[least] > given.get(most, given[least]):
            raise ConfigurationError(f"option {least!r} is greater than {most!r}")


def _check_offsets(given: Mapping[str, Any]) -> None:
    begins, ends = _by_journal(given, "startingOffsets"), _by_journal(given, "endingOffsets")
    times = _by_journal(given, "startingTimestamp")
    if journals := given.get("journals"):
        named = {"startingOffsets": begins, "endingOffsets": ends, "startingTimestamp": times}
        for option, offsets in named.items():
            if stray := sorted(offsets.keys() - set(journals)):
                raise ConfigurationError(
                    f"option {option!r} has {stray[0]!r}, which isn't in option 'journals'"
                )
    for journal, end in ends.items():
        if 0 <= end < begins.get(journal, end):
            raise ConfigurationError(
                f"option 'endingOffsets' of {journal!r} is before 'startingOffsets'"
            )


def _by_journal(given: Mapping[str, Any], name: str) -> Mapping[str, int]:
    positions: Positions | int = given.get(name, "latest")
    return {} if isinstance(positions, str | int) else positions


def _check_messages(given: Mapping[str, Any]) -> None:
    if given.get("includeAcks") and given.get("isolation") != "read-uncommitted":
        raise ConfigurationError("option 'includeAcks' needs isolation=read-uncommitted")
    form = given.get("format")
    if form not in (None, "protobuf-fixed"):
        refuse(given, "messageType", f"has no effect on messages of format {form}")
    if form == "raw" and given.get("inferSchema"):
        raise ConfigurationError("option 'inferSchema' has no effect on messages of format raw")
    corrupt: str = given.get("columnNameOfCorruptRecord", CORRUPT_COLUMN)
    if corrupt.lower() in [column.name.lower() for column in given.get("partitionColumns", ())]:
        raise ConfigurationError(
            f"option 'partitionColumns': {corrupt!r} is the column of bad records"
        )
    uuid: str | None = given.get("uuid")
    if uuid is not None and form == "csv" and not uuid.isdecimal():
        raise ConfigurationError("option 'uuid' must be the index of a column for format csv")
    if uuid is not None and form == "protobuf-fixed" and not uuid.isidentifier():
        raise ConfigurationError("option 'uuid' must be a field's name for format protobuf-fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of a sink."""

    connection: BrokerAccess
    selection: Selection
    """Journals from which a mapping chooses; none if `journal` or the rows name the journals."""
    journal: str | None = option("journal", values.journal)
    mapping: Literal["modulo", "rendezvous", "partition", "random"] | None = option(
        "mapping", values.choice("modulo", "rendezvous", "partition", "random")
    )
    """None: modulo if rows have keys, else random."""
    key_column: str | None = option("keyColumn", values.member)
    """Column of keys, or member of messages: names separated by dots, or the index of a column.
    None: the column `key`, which isn't a part of the message."""
    exactly_once: bool | None = option("exactlyOnce", values.boolean)
    """False: at least once. True: exactly once, the default of `parse()` with a commit journal.
    None: the driver commits at the end of a job, without a record of the decision."""
    commit_journal: str | None = option("commitJournal", values.journal)
    sink_id: str | None = option("sinkId", values.text)
    txn_id: str | None = option("txnId", values.text)
    uuid: str | None = option("uuid", values.uuid)
    """Place of UUIDs: names separated by dots, the index of a column, or a field."""
    ack_template: str | None = option("ackTemplate", values.json_object)
    """JSON object with the content of acknowledgements besides their UUIDs."""
    message_type: str | None = option("messageType", values.reference)
    """`module:Class` of protobuf messages."""
    on_missing_journal: Literal["fail", "ignore"] = option(
        "onMissingJournal", values.choice("fail", "ignore"), default="fail"
    )

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Return the options of a sink.

        Args:
            options: Texts by names in any case. Spark's own options are ignored.
            streaming: Whether the sink is a stream's.

        Raises:
            ConfigurationError: An option is unknown, malformed or missing, or contradicts another.
        """
        given = _parse(options)
        refuse_others(given, _OF_SINKS, "sources")
        connection, selection = _connection(given), _selection(given)
        commit_journal = given.get("commitJournal")
        if commit_journal is None:
            if given.get("exactlyOnce"):
                raise ConfigurationError("option 'exactlyOnce' needs 'commitJournal'")
            refuse(given, "txnId", "needs 'commitJournal'")
        elif commit_journal == given.get("journal") or commit_journal in selection.journals:
            raise ConfigurationError(
                f"option 'commitJournal': {commit_journal!r} can't also be a target of rows"
            )
        if given.get("exactlyOnce") is False:
            refuse(given, "txnId", "contradicts exactlyOnce=false")
        if streaming:
            refuse(given, "txnId", "is for batches only: batches of streams have numbers")
        if not selection:
            for name in ("mapping", "keyColumn"):
                refuse(given, name, "needs one of selector, journals and prefix")
        if given.get("mapping") in ("partition", "random"):
            refuse(given, "keyColumn", f"has no effect with mapping={given['mapping']}")
        fields: dict[str, Any] = {"exactly_once": commit_journal is not None or None}
        fields |= fields_of(given, cls)
        return cls(connection=connection, selection=selection, **fields)


_OF_SOURCES: Final = parsers_of(BrokerAccess, Selection, SourceOptions)
_OF_SINKS: Final = parsers_of(BrokerAccess, Selection, SinkOptions)


def _parse(options: Mapping[str, str]) -> dict[str, Any]:
    return parse_options(options, {**_OF_SOURCES, **_OF_SINKS})
