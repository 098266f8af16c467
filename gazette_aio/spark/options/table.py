"""Tables of options with their parsers, and checks for contradictions."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.protocol.suggestion import suggestion
from gazette_aio.spark.options import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Table: TypeAlias = Mapping[str, tuple[str, Callable[[str], Any]]]
    """Names of fields and parsers of their texts, by names of options."""

CONNECTION: Final[Table] = MappingProxyType(
    {
        "brokers": ("brokers", values.endpoints),
        "token": ("token", values.text),
        "tokenProvider": ("token_provider", values.reference),
        "tls.caFile": ("ca_file", values.text),
        "tls.certFile": ("cert_file", values.text),
        "tls.keyFile": ("key_file", values.text),
        "fileRoot": ("file_root", values.text),
    }
)
SELECTION: Final[Table] = MappingProxyType(
    {
        "selector": ("selector", values.selector),
        "journals": ("journals", values.journals),
        "prefix": ("prefix", values.prefix),
    }
)
MESSAGES: Final[Table] = MappingProxyType(
    {
        "uuid": ("uuid", values.uuid),
        "messageType": ("message_type", values.reference),
        "keyColumn": ("key_column", values.member),
    }
)
SOURCE: Final[Table] = MappingProxyType(
    {
        "isolation": ("isolation", values.choice("read-committed", "read-uncommitted")),
        "includeAcks": ("include_acks", values.boolean),
        "format": ("format", values.choice("raw", "ndjson", "csv", "protobuf-fixed")),
        "mode": ("mode", values.choice("FAILFAST", "DROPMALFORMED", "PERMISSIVE")),
        "columnNameOfCorruptRecord": ("corrupt_column", values.corrupt_column),
        "inferSchema": ("infer_schema", values.boolean),
        "startingOffsets": ("starting", values.offsets),
        "endingOffsets": ("ending", values.offsets),
        "startingTimestamp": ("starting_timestamp_ms", values.times),
        "endingTimestamp": ("ending_timestamp_ms", values.milliseconds),
        "maxClockSkew": ("max_clock_skew", values.seconds),
        "failOnDataLoss": ("fail_on_data_loss", values.boolean),
        "maxBytesPerTrigger": ("max_bytes_per_trigger", values.size),
        "maxRowsPerTrigger": ("max_rows_per_trigger", values.count),
        "minBytesPerTrigger": ("min_bytes_per_trigger", values.size),
        "minRowsPerTrigger": ("min_rows_per_trigger", values.count),
        "maxTriggerDelay": ("max_trigger_delay", values.seconds),
        "maxSplitBytes": ("max_split_bytes", values.size),
        "minPartitions": ("min_partitions", values.count),
        "partitionColumns": ("partition_columns", values.partition_columns),
        "io": ("io", values.choice("auto", "broker", "direct")),
        "fetchTimeout": ("fetch_timeout", values.seconds),
        "batchRows": ("batch_rows", values.count),
        "batchBytes": ("batch_bytes", values.size),
        "producerHorizon": ("producer_horizon", values.seconds),
    }
)
SINK: Final[Table] = MappingProxyType(
    {
        "journal": ("journal", values.journal),
        "mapping": ("mapping", values.choice("modulo", "rendezvous", "partition", "random")),
        "exactlyOnce": ("exactly_once", values.boolean),
        "commitJournal": ("commit_journal", values.journal),
        "sinkId": ("sink_id", values.text),
        "txnId": ("txn_id", values.text),
        "ackTemplate": ("ack_template", values.json_object),
        "onMissingJournal": ("on_missing_journal", values.choice("fail", "ignore")),
    }
)
_ALL: Final = {**CONNECTION, **SELECTION, **MESSAGES, **SOURCE, **SINK}
_NAMES: Final = {name.lower(): name for name in _ALL}

# Spark's own options: of readers and writers, and of CREATE TABLE.
_IGNORED: Final = frozenset(
    {
        *("path", "paths", "checkpointlocation", "queryname"),
        *("provider", "owner", "location", "comment", "collation", "external"),
        "is_managed_location",
    }
)
_IGNORED_PREFIX: Final = "option."
_REPLACED: Final = {
    "pushdown": "isn't supported: choose journals by 'selector', times by 'startingTimestamp' and"
    " 'endingTimestamp', and bytes by 'startingOffsets' and 'endingOffsets'"
}
"""What's said of options which there aren't, by their lower-case names."""
_MOST_SAID: Final = 80


def parse_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of options by their canonical names.

    Args:
        options: Texts by names in any case. Spark's own options are ignored.

    Raises:
        ConfigurationError: An option is unknown, malformed, or given twice.
    """
    given: dict[str, Any] = {}
    for key, text in options.items():
        lower = key.lower()
        if lower in _IGNORED or lower.startswith(_IGNORED_PREFIX):
            continue
        if (instead := _REPLACED.get(lower)) is not None:
            raise ConfigurationError(f"option {key!r} {instead}")
        if (name := _NAMES.get(lower)) is None:
            hint = suggestion(lower, _ALL) or f": options are {', '.join(_ALL)}"
            raise ConfigurationError(f"unknown option {_short(key)!r}{hint}")
        if name in given:
            raise ConfigurationError(f"option {name!r} is given twice, in different spellings")
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"option {name!r}: expected a text")
        try:
            given[name] = _ALL[name][1](text)
        except ValueError as error:
            said = _said(name, text)
            raise ConfigurationError(f"option {name!r}: {said} is invalid: {error}") from None
    return given


def _said(name: str, text: str) -> str:
    # Secret: the URL of a broker may have a password.
    if name == "token" or "@" in text:
        return "its value"
    return repr(_short(text))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SAID else text[:_MOST_SAID] + "…"


def fields_of(given: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return the values of a table's options by names of fields."""
    return {attribute: given[name] for name, (attribute, _) in table.items() if name in given}


def refuse(given: Mapping[str, Any], name: str, reason: str) -> None:
    """Raise ConfigurationError if an option is given."""
    if name in given:
        raise ConfigurationError(f"option {name!r} {reason}")


def refuse_table(given: Mapping[str, Any], table: Table, kind: str) -> None:
    """Raise ConfigurationError if an option of a table is given, whose options are for `kind`."""
    for name in table:
        refuse(given, name, f"is for {kind} only")


def refuse_together(given: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigurationError if more than one of the options is given."""
    found = [repr(name) for name in names if name in given]
    if len(found) > 1:
        raise ConfigurationError(f"options {' and '.join(found)} exclude each other")
