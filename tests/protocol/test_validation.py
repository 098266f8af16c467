"""Validation: rules one by one, structure only, and which messages it knows."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer
from gazette_aio.protocol.validation import rules as validation
from tests.protocol.support import error_of

OK = pb.Status.OK
SECOND = 10**9


def header() -> pb.Header:
    return pb.Header(
        process_id=pb.ProcessSpec.ID(zone="zone", suffix="suffix"),
        route=pb.Route(primary=-1),
        etcd=pb.Header.Etcd(cluster_id=1, member_id=2, revision=3, raft_term=4),
    )


def fragment(**fields: Any) -> pb.Fragment:
    given = {
        "journal": "a/journal",
        "begin": 10,
        "end": 20,
        "compression_codec": pb.CompressionCodec.SNAPPY,
    }
    return pb.Fragment(**(given | fields))


def spec() -> pb.JournalSpec:
    return pb.JournalSpec(
        name="a/journal",
        replication=3,
        labels=pb.label_set("content-type", "text/csv", "env", "prod"),
        fragment=pb.JournalSpec.Fragment(
            length=1 << 18,
            compression_codec=pb.CompressionCodec.SNAPPY,
            stores=["s3://bucket/path/", "gs://other-bucket/path/"],
            refresh_interval=pb.duration_proto(5 * 60 * SECOND),
            retention=pb.duration_proto(365 * 24 * 3600 * SECOND),
            flush_interval=pb.duration_proto(24 * 3600 * SECOND),
            path_postfix_template="{{ .Spool.Begin }}",
        ),
        flags=pb.JournalSpec.O_RDWR,
        max_append_rate=1 << 18,
        suspend=pb.JournalSpec.Suspend(level=pb.JournalSpec.Suspend.PARTIAL, offset=5),
    )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"labels": pb.label_set("content-type", "a=b/c")},
            "Labels: parsing content-type: mime: expected slash after first token",
        ),
        (
            {"fragment": {"compression_codec": 9999}},
            "Fragment.CompressionCodec: invalid value (9999)",
        ),
        ({"fragment": {"stores": ["invalid"]}}, "Fragment.Stores[0]: not absolute (invalid)"),
        (
            {"fragment": {"stores": ["file:///root/"], "compression_codec": 5}},
            (
                "Fragment: GZIP_OFFLOAD_DECOMPRESSION is incompatible with file:// stores "
                "(file:///root/)"
            ),
        ),
        (
            {"fragment": {"refresh_interval": pb.duration_proto(25 * 3600 * SECOND)}},
            "Fragment: invalid RefreshInterval (25h0m0s; expected 1s <= interval <= 24h0m0s)",
        ),
        (
            {"fragment": {"path_postfix_template": "{{ bad template"}},
            "Fragment.PathPostfixTemplate: unclosed '{{ bad template'",
        ),
        # Brokers know which templates they evaluate.
        (
            {"fragment": {"path_postfix_template": "}}{{ range $l := .Labels }}{{ $l }}{{ end }}"}},
            None,
        ),
    ],
)
def test_journal_specs(fields: dict[str, Any], error: str | None):
    changed = spec()
    pb.validate(changed)
    changed.ClearField("labels")
    changed.fragment.ClearField("stores")
    changed.MergeFrom(pb.JournalSpec(**fields))
    assert error_of(pb.validate, changed) == error
    listed = pb.ListResponse(
        header=header(),
        journals=[{"spec": changed, "mod_revision": 1, "route": {"primary": -1}}],
    )
    assert (error_of(pb.validate, listed) is None) == (error is None)
    # A listing isn't refused as a whole for what one specification holds.
    pb.validate(listed, strict=False)


def test_responses_of_a_newer_broker_pass_in_structure():
    newer = fragment(journal="bad name", compression_codec=99, path_postfix="/x")
    strange = header()
    strange.process_id.zone = "z" * 100
    responses = [
        pb.ReadResponse(status=99, header=strange),
        pb.ReadResponse(header=strange, offset=10, write_head=20, fragment=newer),
        pb.AppendResponse(
            header=strange, commit=newer, registers=pb.LabelSet(labels=[pb.Label(name="?")])
        ),
        pb.AppendResponse(status=99, header=strange),
        pb.ApplyResponse(status=99, header=strange),
        pb.ListResponse(header=strange, journals=[{"mod_revision": 1, "route": {"primary": -1}}]),
        pb.FragmentsResponse(header=strange, fragments=[{"spec": newer}]),
        pb.FragmentStoreHealthResponse(status=99, header=strange),
    ]
    for response in responses:
        pb.validate(response, strict=False)
        pb.validate(response, strict=False, expect_header=True)
        assert error_of(pb.validate, response) is not None


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (
            pb.ReadResponse(offset=5, write_head=20, fragment=fragment()),
            "invalid Offset (5; expected 10 <= offset < 20)",
        ),
        (
            pb.ReadResponse(offset=20, write_head=20, fragment=fragment()),
            "invalid Offset (20; expected 10 <= offset < 20)",
        ),
        (
            pb.ReadResponse(offset=15, write_head=19, fragment=fragment()),
            "invalid WriteHead (19; expected >= 20)",
        ),
        (
            pb.ReadResponse(offset=15, write_head=20, fragment=fragment(begin=30)),
            "Fragment: expected Begin <= End (have 30, 20)",
        ),
        (pb.ReadResponse(write_head=-1), "invalid WriteHead (-1; expected >= 0)"),
        (pb.ReadResponse(offset=1), "unexpected Offset without Fragment or Content (1)"),
        (
            pb.ReadResponse(content=b"x", offset=(1 << 63) - 1),
            "invalid Offset of Content (9223372036854775807)",
        ),
        (
            pb.ReadResponse(content=b"x", write_head=1),
            "unexpected WriteHead with Content (1)",
        ),
        (
            pb.ReadResponse(content=b"x", status=pb.Status.WRONG_ROUTE),
            "unexpected Status with Content (WRONG_ROUTE)",
        ),
        (pb.AppendResponse(header=header()), "expected Commit"),
        (
            pb.AppendResponse(header=header(), commit=fragment()),
            "expected Registers",
        ),
        (
            pb.AppendResponse(header=header(), status=pb.Status.REGISTER_MISMATCH),
            "expected Registers",
        ),
        (
            pb.AppendResponse(header=header(), commit=fragment(begin=21), registers=pb.LabelSet()),
            "Commit: expected Begin <= End (have 21, 20)",
        ),
        (
            pb.ListResponse(header=header(), journals=[{"route": {"primary": -1}}]),
            "Journals[0]: invalid ModRevision (0; expected > 0)",
        ),
        (
            pb.ListResponse(header=header(), journals=[{"mod_revision": 1}]),
            "Journals[0].Route: invalid Primary (0; expected -1 <= Primary < 0)",
        ),
        (
            pb.ApplyResponse(header={"route": {"primary": -1, "endpoints": ["http://x"]}}),
            "Header.Route: len(Endpoints) != 0, and != len(Members) (1 vs 0)",
        ),
        (
            pb.FragmentsResponse(header=header(), fragments=[{"spec": fragment(begin=21)}]),
            "Fragments[0].Spec: expected Begin <= End (have 21, 20)",
        ),
        (
            pb.FragmentsResponse(
                header=header(), fragments=[{"spec": fragment(), "signed_url": "%zz"}]
            ),
            'Fragments[0].SignedUrl: parse "%zz": it has an invalid escape',
        ),
    ],
)
def test_structure_is_checked_in_any_case(response: Any, error: str):
    assert error_of(pb.validate, response, strict=False) == error


def listed_shard(**fields: Any) -> consumer.ListResponse.Shard:
    given = {"spec": {"id": "bad id"}, "mod_revision": 1, "route": {"primary": -1}}
    return consumer.ListResponse.Shard(**(given | fields))


def test_responses_of_a_newer_member_pass_in_structure():
    strange = header()
    strange.process_id.zone = "z" * 100
    newer = listed_shard(
        route={"members": [{"zone": "z" * 99, "suffix": "x"}], "primary": 0}, status=[{"code": 77}]
    )
    responses = [
        consumer.StatResponse(status=99, header=strange, read_through={"bad name": 1}),
        consumer.ListResponse(status=99, header=strange, shards=[newer]),
        consumer.ApplyResponse(status=99, header=strange),
        consumer.GetHintsResponse(status=99),
        consumer.UnassignResponse(status=99),
    ]
    for response in responses:
        pb.validate(response, strict=False)
        assert error_of(pb.validate, response) is not None


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (
            consumer.StatResponse(header=header(), read_through={"a/journal": -1}),
            "ReadThrough.Offsets[a/journal]: invalid offset (-1; expected >= 0)",
        ),
        (
            consumer.StatResponse(header=header(), publish_at={"a/journal": -1}),
            "PublishAt.Offsets[a/journal]: invalid offset (-1; expected >= 0)",
        ),
        (
            consumer.ListResponse(header=header(), shards=[listed_shard(mod_revision=0)]),
            "Shards[0]: invalid ModRevision (0; expected > 0)",
        ),
        (
            consumer.ListResponse(header=header(), shards=[listed_shard(status=[{}])]),
            "Shards[0]: length of Route.Members and Status are not equal (0 vs 1)",
        ),
        (
            consumer.ApplyResponse(header={"route": {"primary": 0}}),
            "Header.Route: invalid Primary (0; expected -1 <= Primary < 0)",
        ),
        (
            consumer.GetHintsResponse(
                primary_hints={"hints": {"live_nodes": [{"segments": [{}]}]}}
            ),
            "primary hints.Segment: Author is zero",
        ),
    ],
)
def test_structure_of_answers_about_shards(response: Any, error: str):
    assert error_of(pb.validate, response, strict=False) == error


def test_the_header_of_a_first_response():
    for response in (
        pb.ReadResponse(status=pb.Status.JOURNAL_NOT_FOUND),
        pb.ListResponse(header={"route": {"primary": -1}}),
        pb.ApplyResponse(header={"route": {"primary": -1}}),
    ):
        pb.validate(response, strict=False)
        error = error_of(pb.validate, response, strict=False, expect_header=True)
        assert error == "expected Header"
        response.header.CopyFrom(header())
        pb.validate(response, strict=False, expect_header=True)


def test_signatures_of_urls_are_not_told():
    signed = "http://host/%zz?X-Amz-Signature=secret"
    responses = [
        pb.ReadResponse(offset=15, write_head=20, fragment=fragment(), fragment_url=signed),
        pb.ReadResponse(fragment_url=signed),
        pb.ReadResponse(content=b"x", fragment_url=signed),
        pb.FragmentsResponse(
            header=header(), fragments=[{"spec": fragment(), "signed_url": signed}]
        ),
    ]
    for response in responses:
        error = error_of(pb.validate, response)
        assert error is not None
        assert "host" in error
        assert "secret" not in error


def test_requests_are_always_checked_in_full():
    request = pb.ReadRequest(journal="/bad")
    assert error_of(pb.validate, request, strict=False) == "Journal: cannot begin with '/' (/bad)"


def messages_of(descriptors: list[Descriptor]) -> set[str]:
    names: set[str] = set()
    for descriptor in descriptors:
        names |= {descriptor.full_name} | messages_of(list(descriptor.nested_types))
    return names


def test_every_message_has_rules():
    files = [pb.ReadRequest.DESCRIPTOR.file, consumer.StatRequest.DESCRIPTOR.file]
    every = {
        name
        for file in files
        for name in messages_of(list(file.message_types_by_name.values()))
        # Maps are messages too.
        if not name.endswith("Entry")
    }
    # Private: nothing else tells which messages have rules.
    known = {
        kind.DESCRIPTOR.full_name
        for table in (validation._REQUESTS_AND_PARTS, validation._RESPONSES)
        for kind in table
    }
    without = {"Checkpoint", "Checkpoint.ProducerState", "Checkpoint.Source"}
    assert every - known == {"protocol.SHA1Sum"} | {f"consumer.{name}" for name in without}
    assert known - every == {"recoverylog.FSMHints", "recoverylog.Segment"}


def test_other_messages_have_no_rules():
    with pytest.raises(TypeError, match="no rules for messages of type Checkpoint"):
        pb.validate(consumer.Checkpoint())


def test_errors_tell_their_context():
    with pytest.raises(pb.ValidationError) as caught:
        pb.validate(pb.ApplyRequest(changes=[{"upsert": {"name": "/x"}}]))
    error = caught.value
    assert error.context == ("Changes[0]", "Upsert", "Name")
    assert error.text == "invalid length (2; expected 4 <= length <= 512)"
    assert str(error) == f"Changes[0].Upsert.Name: {error.text}"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(1 << 62, 0), (-(1 << 62), 0), (1, -1), (-1, 1), (0, 10**9), (0, -(10**9))],
)
@pytest.mark.parametrize(
    ("message", "part", "context"),
    [
        (spec(), "fragment.refresh_interval", "Fragment.RefreshInterval"),
        (spec(), "fragment.retention", "Fragment.Retention"),
        (spec(), "fragment.flush_interval", "Fragment.FlushInterval"),
        (consumer.ShardSpec(id="a-shard"), "min_txn_duration", "MinTxnDuration"),
        (consumer.ShardSpec(id="a-shard"), "max_txn_duration", "MaxTxnDuration"),
        (pb.FragmentsRequest(journal="a/journal"), "signatureTTL", "SignatureTTL"),
    ],
)
def test_durations_that_peers_cannot_parse(
    message: Message, part: str, context: str, seconds: int, nanos: int
):
    changed = type(message)()
    changed.CopyFrom(message)
    duration = operator.attrgetter(part)(changed)
    duration.seconds, duration.nanos = seconds, nanos
    assert error_of(pb.validate, changed) == (
        f"{context}: invalid duration (seconds {seconds}, nanos {nanos})"
    )


@pytest.mark.parametrize(
    ("field", "name", "most"),
    [
        ("hint_backups", "HintBackups", 127),
        ("hot_standbys", "HotStandbys", 127),
        ("ring_buffer_size", "RingBufferSize", 1 << 24),
        ("read_channel_size", "ReadChannelSize", 1 << 24),
    ],
)
def test_numbers_of_shards_that_become_loops_or_allocations(field: str, name: str, most: int):
    spec = consumer.ShardSpec(id="a-shard", **{field: most})
    spec.max_txn_duration.seconds = 1
    pb.validate(spec)
    setattr(spec, field, most + 1)
    change = consumer.ApplyRequest.Change(upsert=spec)
    assert (
        error_of(pb.validate, change) == f"Upsert: invalid {name} ({most + 1}; expected <= {most})"
    )
