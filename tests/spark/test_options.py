"""Options of the source and the sink."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.protocol.selector import validate_label_selector
from gazette_aio.spark.options import (
    BrokerAccess,
    PartitionColumn,
    Selection,
    SinkOptions,
    SourceOptions,
    check_options,
)
from gazette_aio.spark.options.table import parsers_of

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"
BASE = {"brokers": "http://localhost:8080", "prefix": "a/"}


def source(streaming: bool = False, **options: str) -> SourceOptions:
    return SourceOptions.parse(BASE | options, streaming=streaming)


def sink(streaming: bool = False, **options: str) -> SinkOptions:
    return SinkOptions.parse(BASE | options, streaming=streaming)


def test_defaults_of_a_batch() -> None:
    found = source()
    assert found == SourceOptions(
        connection=BrokerAccess(brokers=("http://localhost:8080",)),
        selection=Selection(prefix="a/"),
    )
    assert (found.mode, found.starting, found.ending) == ("PERMISSIVE", "earliest", "latest")
    assert (found.max_split_bytes, found.batch_rows, found.batch_bytes) == (
        1 << 27,
        10_000,
        4 << 20,
    )
    assert (found.fetch_timeout, found.producer_horizon) == (120, 86_400)
    assert found.fail_on_data_loss
    assert not found.infer_schema
    assert (found.io, found.isolation) == ("auto", None)


@pytest.mark.parametrize("name", ["pushdown", "pushDown"])
@pytest.mark.parametrize("text", ["true", "false", ""])
def test_filters_are_not_pushed_down(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_options({"brokers": "http://b:1", "prefix": "a/", name: text})
    assert str(caught.value) == (
        f"option {name!r} isn't supported: choose journals by 'selector', times by"
        " 'startingTimestamp' and 'endingTimestamp', and bytes by 'startingOffsets' and"
        " 'endingOffsets'"
    )


def test_defaults_of_a_stream() -> None:
    found = source(streaming=True)
    assert (found.mode, found.starting) == ("FAILFAST", "latest")
    assert source(streaming=True, startingTimestamp="5").starting == "earliest"
    assert source(streaming=True, mode="permissive").mode == "PERMISSIVE"
    assert source(streaming=True, startingOffsets="EARLIEST").starting == "earliest"


def test_every_option_of_a_source() -> None:
    options = {
        "brokers": "https://a:1, unix://localhost/b.sock",
        "token": "s3cret",
        "tls.caFile": "ca.pem",
        "tls.certFile": "cert.pem",
        "tls.keyFile": "key.pem",
        "fileRoot": "/root",
        "journals": "a/one, a/two",
        "isolation": "Read-Committed",
        "uuid": "/meta/id",
        "format": "NDJSON",
        "mode": "DropMalformed",
        "columnNameOfCorruptRecord": "bad",
        "inferSchema": "TRUE",
        "startingOffsets": '{"a/one": 7, "a/two": -2}',
        "endingOffsets": '{"a/one": 7, "a/two": -1}',
        "failOnDataLoss": "false",
        "maxSplitBytes": "64m",
        "minPartitions": "12",
        "partitionColumns": "region = app/region, part, tags array< STRING >=app/tag",
        "io": "direct",
        "fetchTimeout": "1m30s",
        "batchRows": "500",
        "batchBytes": "1 MiB",
        "producerHorizon": "3600",
    }
    expected = SourceOptions(
        connection=BrokerAccess(
            brokers=("https://a:1", "unix://localhost/b.sock"),
            token="s3cret",
            ca_file="ca.pem",
            cert_file="cert.pem",
            key_file="key.pem",
            file_root="/root",
        ),
        selection=Selection(journals=("a/one", "a/two")),
        isolation="read-committed",
        uuid="meta.id",
        format="ndjson",
        mode="DROPMALFORMED",
        corrupt_column="bad",
        infer_schema=True,
        starting={"a/one": 7, "a/two": -2},
        ending={"a/one": 7, "a/two": -1},
        fail_on_data_loss=False,
        max_split_bytes=64 << 20,
        min_partitions=12,
        partition_columns=(
            PartitionColumn("region", "app/region"),
            PartitionColumn("part", "part"),
            PartitionColumn("tags", "app/tag", is_array=True),
        ),
        io="direct",
        fetch_timeout=90.0,
        batch_rows=500,
        batch_bytes=1 << 20,
        producer_horizon=3600.0,
    )
    assert SourceOptions.parse(options, streaming=False) == expected
    # Spark hands them over in lower case.
    lower = {name.lower(): text for name, text in options.items()}
    assert SourceOptions.parse(lower, streaming=False) == expected
    check_options(lower)
    assert pickle.loads(pickle.dumps(expected)) == expected


def test_rates_of_a_stream() -> None:
    assert source(streaming=True, maxBytesPerTrigger="2g").max_bytes_per_trigger == 2 << 30
    assert source(streaming=True, maxRowsPerTrigger="100").max_rows_per_trigger == 100
    delayed = source(streaming=True, minBytesPerTrigger="1m", maxTriggerDelay="90s")
    assert (delayed.min_bytes_per_trigger, delayed.max_trigger_delay) == (1 << 20, 90.0)
    both = source(streaming=True, minRowsPerTrigger="5", maxRowsPerTrigger="5")
    assert (both.min_rows_per_trigger, both.max_trigger_delay) == (5, 900.0)


def test_every_option_of_a_sink() -> None:
    options = BASE | {
        "tokenProvider": "my.tokens:Source.next",
        "mapping": "Rendezvous",
        "exactlyOnce": "true",
        "commitJournal": "commits/q",
        "sinkId": "one",
        "txnId": "2026-01-01",
        "uuid": "uuid",
        "ackTemplate": ' {"kind": "ack"} ',
        "messageType": "my.pb2:Message",
        "onMissingJournal": "IGNORE",
    }
    found = SinkOptions.parse(options, streaming=False)
    assert found == SinkOptions(
        connection=BrokerAccess(
            brokers=("http://localhost:8080",), token_provider="my.tokens:Source.next"
        ),
        selection=Selection(prefix="a/"),
        mapping="rendezvous",
        exactly_once=True,
        commit_journal="commits/q",
        sink_id="one",
        txn_id="2026-01-01",
        uuid="uuid",
        ack_template='{"kind": "ack"}',
        message_type="my.pb2:Message",
        on_missing_journal="ignore",
    )
    assert pickle.loads(pickle.dumps(found)) == found
    check_options(options)


def test_a_commit_journal_means_exactly_once() -> None:
    assert not sink().exactly_once
    assert sink(commitJournal="commits").exactly_once
    assert not sink(commitJournal="commits", exactlyOnce="false").exactly_once


def test_a_sink_needs_no_selection() -> None:
    brokers = {"brokers": "http://b:1"}
    assert not SinkOptions.parse(brokers, streaming=True).selection
    found = SinkOptions.parse(brokers | {"journal": "a/one"}, streaming=True)
    assert found.journal == "a/one"
    assert not found.selection


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("selector", "app=x,!old", "app=x,!old"),
        ("selector", " * ", ""),
        ("prefix", "a/", "name:prefix=a/"),
        ("journals", "b/two,a/one", "name in (a/one,b/two)"),
    ],
)
def test_a_selection_is_a_label_selector(option: str, value: str, expected: str) -> None:
    options = {"brokers": "http://b:1", option: value}
    found = SourceOptions.parse(options, streaming=False).selection
    assert found.label_selector() == pb.parse_label_selector(expected)


def test_what_spark_adds_is_passed_over() -> None:
    added = {
        "path": "/p",
        "paths": '["/p"]',
        "checkpointLocation": "/c",
        "queryname": "q",
        "provider": "gazette",
        "owner": "me",
        "option.brokers": "http://other",
    }
    assert source(**added) == source()
    assert sink(**added) == sink()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("broker", "did you mean 'brokers'?"),
        ("startingoffset", "did you mean 'startingOffsets'?"),
        ("STARTING_OFFSETS", "did you mean 'startingOffsets'?"),
        ("commit-journal", "did you mean 'commitJournal'?"),
        ("tls.ca", "did you mean 'tls.caFile'?"),
        ("zzzzzzzz", "options are brokers, "),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(name: str, suggestion: str) -> None:
    for parse in (source, sink):
        with pytest.raises(ConfigurationError) as caught:
            parse(**{name: "x"})
        assert str(caught.value).startswith(f"unknown option {name!r}: {suggestion}")
    with pytest.raises(ConfigurationError, match="unknown option"):
        check_options(BASE | {name: "x"})


MALFORMED = [
    ("brokers", "", "expected URLs of brokers"),
    ("brokers", "localhost:8080", "such as http://localhost:8080: missing host"),
    ("brokers", "ftp://h", "the scheme must be one of http, https, unix"),
    ("brokers", "http://a,http://a", "'http://a' occurs twice"),
    ("selector", "a=b=c", "expected a label selector"),
    ("selector", "", "it selects every journal: write * if that's meant"),
    ("selector", " ", "selector"),
    ("prefix", " ", "isn't empty"),
    ("prefix", "a b", "prefix of names of journals"),
    ("journals", "a,,b", "separated by commas"),
    ("journals", "a,/b", "expected the name of a journal"),
    ("journals", "name:prefix=a/", "a selector goes into option 'selector'"),
    ("journals", "a/one;b", "without metadata after"),
    ("journals", "../a", "cannot begin with '../'"),
    ("isolation", "committed", "expected read-committed or read-uncommitted"),
    ("includeAcks", "yes", "expected true or false"),
    ("uuid", "/", "expected a path such as /_meta/uuid"),
    ("uuid", "/a//b", "expected a path"),
    ("uuid", "a/b", "expected a path"),
    ("uuid", "/a.b", "names can't have any of"),
    ("uuid", "\u0663", "the index of a column"),
    ("format", "json", "expected raw or ndjson or csv or protobuf-fixed"),
    ("mode", "strict", "expected FAILFAST or"),
    ("columnNameOfCorruptRecord", "_VALUE", "another name than"),
    ("messageType", "module.Class", "expected module:name"),
    ("tokenProvider", "os:system('x')", "expected module:name"),
    ("startingOffsets", "first", "expected earliest, latest or JSON"),
    ("startingOffsets", "[1]", "expected earliest"),
    ("startingOffsets", '{"a/one": -3}', "offset -3 of 'a/one'"),
    ("startingOffsets", '{"a/one": 1.5}', "offset 1.5 of 'a/one'"),
    ("startingOffsets", '{"a/one": true}', "offset True of 'a/one'"),
    ("startingOffsets", '{"a/one": "%s"}' % ("x" * 5000), "of 'a/one'"),
    ("startingOffsets", '{"a/one": %s}' % ("9" * 4000), "of 'a/one'"),
    ("startingOffsets", '{"a/one": 9223372036854775808}', "of 'a/one'"),
    ("startingOffsets", '{"a/one": NaN}', "NaN isn't JSON"),
    ("startingOffsets", '{"a/one": 1, "a/one": 2}', "a name occurs twice"),
    ("startingOffsets", '{"/a": 1}', "'/a': expected the name of a journal"),
    ("startingOffsets", "[" * 100_000, "expected earliest"),
    ("startingTimestamp", "2026-13-01", "milliseconds since 1970"),
    ("endingTimestamp", "1969-12-31", "a time from then on such as 2013-01-01"),
    ("startingTimestamp", "-1", "milliseconds since 1970"),
    ("startingTimestamp", '{"a/one": "x"}', "time 'x' of 'a/one'"),
    ("startingTimestamp", '{"a/one": -2}', "time -2 of 'a/one'"),
    ("startingTimestamp", '{"/": 1}', 'such as {"a/journal": 1700000000000}'),
    ("startingTimestamp", '{"a/one": 1', 'such as {"a/journal": 1700000000000}'),
    ("startingTimestamp", "\u0663", "milliseconds since 1970"),
    ("failOnDataLoss", "", "expected true or false"),
    ("maxSplitBytes", "0", "positive number of bytes"),
    ("maxSplitBytes", "10x", "such as 1048576, 64m or 128 MiB"),
    ("maxSplitBytes", "99999999t", "positive number of bytes"),
    ("minPartitions", "0", "whole number of at least 1"),
    ("batchRows", "10k", "whole number of at least 1"),
    ("batchRows", "9" * 5000, "whole number of at least 1"),
    ("fetchTimeout", "0", "positive number of seconds"),
    ("fetchTimeout", "-5s", "positive number of seconds"),
    ("fetchTimeout", "soon", "90s or 1h30m"),
    ("io", "file", "expected auto or broker or direct"),
    ("partitionColumns", "a b=c", "expected columns of labels"),
    ("partitionColumns", "a,", "expected columns of labels"),
    ("partitionColumns", "a INT=c", "expected columns of labels"),
    ("partitionColumns", "_Journal=name", "column '_Journal' is reserved"),
    ("partitionColumns", "a=xx,A=yy", "column 'A' occurs twice"),
    ("partitionColumns", "a=b%c", "label 'b%c'"),
    ("journal", "a//b", "expected the name of a journal"),
    ("mapping", "hash", "expected modulo or rendezvous or partition or random"),
    ("ackTemplate", "[]", "expected a JSON object"),
    ("ackTemplate", "{", "expected a JSON object"),
    ("onMissingJournal", "skip", "expected fail or ignore"),
]


@pytest.mark.parametrize(("option", "value", "expected"), MALFORMED)
def test_a_malformed_value_is_refused(option: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_options(dict(BASE, **{option: value}))
    text = str(caught.value)
    assert text.startswith(f"option {option!r}: ")
    assert expected in text
    assert len(text) < 1000
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    ({"selector": "app=b"}, "options 'selector' and 'prefix' exclude each other"),
    ({"token": "t", "tokenProvider": "m:f"}, "exclude each other"),
    ({"brokers": "https://h", "tls.certFile": "c"}, "must be given together"),
    ({"tls.caFile": "c"}, "'tls.caFile' needs a broker of an https:// URL"),
    ({"journal": "a/one"}, "'journal' is for sinks only"),
    ({"commitJournal": "a/one"}, "'commitJournal' is for sinks only"),
    ({"maxBytesPerTrigger": "1"}, "'maxBytesPerTrigger' is for streams only"),
    ({"maxRowsPerTrigger": "1"}, "'maxRowsPerTrigger' is for streams only"),
    ({"minBytesPerTrigger": "1"}, "'minBytesPerTrigger' is for streams only"),
    ({"minRowsPerTrigger": "1"}, "'minRowsPerTrigger' is for streams only"),
    ({"maxTriggerDelay": "1"}, "'maxTriggerDelay' is for streams only"),
    ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
    ({"endingOffsets": "latest", "endingTimestamp": "1"}, "exclude each other"),
    ({"startingTimestamp": "2", "endingTimestamp": "1"}, "is before 'startingTimestamp'"),
    (
        {"startingTimestamp": '{"a/one": 0, "a/two": 2}', "endingTimestamp": "1"},
        "is before 'startingTimestamp'",
    ),
    (
        {"startingOffsets": '{"a/one": 2}', "endingOffsets": '{"a/one": 1}'},
        "is before 'startingOffsets'",
    ),
    ({"includeAcks": "true"}, "needs isolation=read-uncommitted"),
    ({"format": "csv", "messageType": "m:C"}, "no effect on messages of format csv"),
    ({"format": "raw", "inferSchema": "true"}, "no effect on messages of format raw"),
    ({"format": "csv", "uuid": "/a/b"}, "must be the index of a column"),
    ({"format": "protobuf-fixed", "uuid": "a.b"}, "must be a field's name"),
    ({"io": "broker", "fileRoot": "/x"}, "no effect with io=broker"),
    ({"partitionColumns": "_Corrupt_Record=app"}, "'_corrupt_record' is the column of bad records"),
    (
        {"partitionColumns": "region=app/region", "columnNameOfCorruptRecord": "Region"},
        "'Region' is the column of bad records",
    ),
]


@pytest.mark.parametrize(("options", "expected"), CONTRADICTIONS)
def test_contradictions_of_a_source_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        source(**options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endingOffsets": "latest"}, "is for batches only: streams have no end"),
        ({"endingTimestamp": "1"}, "is for batches only: streams have no end"),
        ({"maxBytesPerTrigger": "1", "maxRowsPerTrigger": "1"}, "exclude each other"),
        (
            {"isolation": "read-uncommitted", "maxRowsPerTrigger": "1"},
            "needs read-committed isolation",
        ),
        ({"format": "raw", "maxRowsPerTrigger": "1"}, "needs read-committed isolation"),
        ({"format": "raw", "minRowsPerTrigger": "1"}, "needs read-committed isolation"),
        ({"minBytesPerTrigger": "1", "minRowsPerTrigger": "1"}, "exclude each other"),
        ({"minBytesPerTrigger": "2", "maxBytesPerTrigger": "1"}, "is greater than"),
        ({"minRowsPerTrigger": "2", "maxRowsPerTrigger": "1"}, "is greater than"),
        ({"maxTriggerDelay": "1"}, "needs 'minBytesPerTrigger' or 'minRowsPerTrigger'"),
    ],
)
def test_contradictions_of_a_stream_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        source(streaming=True, **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("streaming", "options", "expected"),
    [
        (False, {"startingOffsets": "latest"}, "'startingOffsets' is for sources only"),
        (False, {"journal": "a/one"}, "options 'prefix' and 'journal' exclude each other"),
        (False, {"exactlyOnce": "true"}, "'exactlyOnce' needs 'commitJournal'"),
        (False, {"txnId": "x"}, "'txnId' needs 'commitJournal'"),
        (
            False,
            {"commitJournal": "commits", "txnId": "x", "exactlyOnce": "false"},
            "'txnId' contradicts exactlyOnce=false",
        ),
        (True, {"commitJournal": "commits", "txnId": "x"}, "'txnId' is for batches only"),
    ],
)
def test_contradictions_of_a_sink_are_refused(
    streaming: bool, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sink(streaming, **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize("target", [{"journal": "commits"}, {"journals": "a/one,commits"}])
def test_nothing_is_published_to_the_commit_journal(target: dict[str, str]) -> None:
    options = {"brokers": "http://b:1", "commitJournal": "commits"} | target
    with pytest.raises(ConfigurationError, match="'commits' can't also be a target of rows"):
        SinkOptions.parse(options, streaming=True)


def test_a_mapping_needs_journals() -> None:
    options = {"brokers": "http://b:1", "journal": "a/one", "mapping": "random"}
    with pytest.raises(ConfigurationError, match="'mapping' needs one of selector"):
        SinkOptions.parse(options, streaming=True)


def test_times_by_journal() -> None:
    found = source(startingTimestamp='{"a/one": 5, "a/two": 0}')
    assert [found.starting_ms(name) for name in ("a/one", "a/two", "b")] == [5, 0, None]
    assert source(startingTimestamp="7").starting_ms("b") == 7
    assert source().starting_ms("b") is None
    options = {
        "brokers": "http://b:1",
        "journals": "a/two",
        "startingTimestamp": '{"a/one": 2}',
    }
    with pytest.raises(ConfigurationError, match="has 'a/one', which isn't in option 'journals'"):
        SourceOptions.parse(options, streaming=False)


def test_offsets_are_of_selected_journals() -> None:
    options = {
        "brokers": "http://b:1",
        "journals": "a/one",
        "startingOffsets": '{"a/one": 1, "b/two": 1}',
    }
    with pytest.raises(ConfigurationError, match="has 'b/two', which isn't in option 'journals'"):
        SourceOptions.parse(options, streaming=False)


def test_what_is_missing_is_told() -> None:
    # Spark has no options of tables of SQL but those which each statement gives.
    text = r"option 'brokers' is missing: .* or INSERT INTO t WITH \(…\)"
    with pytest.raises(ConfigurationError, match=text):
        check_options({"prefix": "a/"})
    with pytest.raises(ConfigurationError, match="one of the options selector, journals"):
        SourceOptions.parse({"brokers": "http://b:1"}, streaming=False)


def test_an_option_is_given_once() -> None:
    with pytest.raises(ConfigurationError, match="'brokers' is given twice"):
        source(Brokers="http://b:2")


def test_a_value_is_a_text() -> None:
    options: Any = BASE | {"batchRows": 5}
    with pytest.raises(ConfigurationError, match="'batchRows': expected a text"):
        check_options(options)


def test_a_name_which_is_long_is_cut_short() -> None:
    with pytest.raises(ConfigurationError, match=r"^unknown option 'x{80}…': options") as caught:
        source(**{"x" * 100_000: "1"})
    assert len(str(caught.value)) < 1000


def test_the_scheme_of_a_broker_may_be_in_any_case() -> None:
    found = source(brokers="HTTPS://h:1", **{"tls.caFile": "ca.pem"})
    assert found.connection.ca_file == "ca.pem"


def test_secrets_are_never_told() -> None:
    found = source(token="s3cret")
    assert found.connection.token == "s3cret"
    assert "s3cret" not in repr(found)
    broker = "https://me:s3cret@host"
    for options in ({"token": " "}, {"brokers": broker}, {"brokers": f"{broker},{broker}"}):
        with pytest.raises(ConfigurationError, match="its value is invalid") as caught:
            check_options(BASE | options)
        assert "s3cret" not in str(caught.value)


@given(
    st.sampled_from(sorted(parsers_of(BrokerAccess, Selection, SourceOptions, SinkOptions))),
    st.text() | st.from_regex(r"[-+{}\[\]\":,.=<> 0-9a-z%/]{0,30}", fullmatch=True),
)
def test_any_text_is_a_value_or_a_mistake(option: str, text: str) -> None:
    selection = {} if option in ("selector", "journals", "journal") else {"prefix": "a/"}
    options = {"brokers": "https://localhost:8080"} | selection | {option: text}
    for parse in (SourceOptions.parse, SinkOptions.parse):
        try:
            found = parse(options, streaming=False)
        except ConfigurationError:
            continue
        assert pickle.loads(pickle.dumps(found)) == found
        if found.selection:
            validate_label_selector(found.selection.label_selector())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1357000000000", 1357000000000),
        ("2013-01-01", 1356998400000),
        (" 2013-01-01T00:00:00.5 ", 1356998400500),
        ("2013-01-01 02:00:00+02:00", 1356998400000),
        ("2013-01-01T00:00Z", 1356998400000),
        ("20130101", 20130101),
    ],
)
def test_times(text: str, expected: int) -> None:
    given = {"brokers": "http://a:1", "prefix": "a/", "endingTimestamp": text}
    assert SourceOptions.parse(given, streaming=False).ending_timestamp_ms == expected


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("Connection", [BrokerAccess]),
        ("Source", [Selection, SourceOptions]),
        ("Sink", [Selection, SinkOptions]),
    ],
)
def test_the_guide_has_all_options(title: str, kinds: list[type]) -> None:
    _, _, section = GUIDE.read_text("utf-8").partition(f"\n*{title}*\n")
    (table,) = re.findall(r"\A\n((?:\|.*\n)+)", section)
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(parsers_of(*kinds))
