"""Records of a commit journal, and what they come to."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.adapters.csv import csv_adapter
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.adapters.protobuf import protobuf_adapter
from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.uuid import ACK_TXN, ProducerID, build_uuid
from gazette_aio.protocol._generated.consumer_pb2 import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError, ValidationError
from gazette_aio.spark.sink import commit_records, commit_rules
from gazette_aio.spark.sink.commit_records import (
    HEADER,
    AckTemplate,
    CommitKind,
    CommitRecord,
    Refused,
    SinkKey,
    Span,
    TaskMessage,
    ack_template,
    commit_record,
    decode_line,
    decode_lines,
    encode_record,
)
from gazette_aio.spark.sink.commit_rules import (
    Acknowledge,
    Append,
    CommitState,
    Republish,
    Return,
    RollBack,
    SinkState,
    Use,
)
from tests.spark.journals import KEY, TEMPLATE

A, B, C = (ProducerID(b"\x01pppp" + bytes([n])) for n in range(3))
OTHER = SinkKey("query", "other")


def message(batch, producer, ack, journals=("j/one",), *, key=KEY):
    forms = tuple((journal, TEMPLATE) for journal in journals)
    return TaskMessage(key, batch, producer, ack, 5, forms, (ack - 10,) * len(forms))


def commit(batch, *producers, nonce="n", ack=None):
    ack = 100 * (batch + 1) if ack is None else ack
    messages = [message(batch, producer, ack) for producer in producers]
    return commit_record(KEY, batch, messages, nonce=nonce)


def state(*records):
    result = SinkState()
    for record in records:
        result = result.fold(record)
    return result


def retirement(batch, *producers):
    return CommitRecord(CommitKind.RETIRE, KEY, batch, spans=tuple(Span(p, 1) for p in producers))


# Records and lines


def test_a_commit_record_on_the_wire():
    record = commit_record(
        KEY,
        12,
        [message(12, A, 0x1F, ("j/one", "j/two")), message(12, B, (1 << 64) - 1, ("j/two",))],
        run="run",
        nonce="nonce",
    )
    line = encode_record(record)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "v": 1,
        "t": "commit",
        "q": "query",
        "s": "sink",
        "b": 12,
        "r": "run",
        "n": "nonce",
        "rows": 10,
        "j": ["j/one", "j/two"],
        "a": [["text", '{"_meta":{"uuid":"', '","ack":true}}\n']],
        "i": [0, 0],
        "p": [[A.hex(), "1f", [0, 1]], [B.hex(), "f" * 16, [1]]],
    }
    assert decode_line(line[:-1]) == record
    assert record.producers_of(["j/one"]) == {A}
    assert record.producers_of(["j/two", "j/none"]) == {A, B}


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
templates = st.builds(AckTemplate, st.binary(max_size=9), st.binary(max_size=9), st.booleans())


@given(st.data())
def test_records_survive_their_lines(data):
    journals = data.draw(st.lists(names, min_size=1, max_size=4, unique=True))
    forms = data.draw(st.lists(templates, min_size=1, max_size=3))
    indices = st.integers(0, len(journals) - 1)
    producers = data.draw(st.lists(st.binary(min_size=6, max_size=6), min_size=1, unique=True))
    record = CommitRecord(
        CommitKind.COMMIT,
        SinkKey(data.draw(names), data.draw(names)),
        data.draw(st.integers(0, (1 << 63) - 1)),
        data.draw(names),
        data.draw(names),
        data.draw(st.integers(0, 1 << 40)),
        tuple(
            Span(
                ProducerID(producer),
                data.draw(st.integers(0, (1 << 64) - 1)),
                tuple(data.draw(st.lists(indices, min_size=1, unique=True))),
            )
            for producer in producers
        ),
        tuple(journals),
        tuple(forms),
        tuple(data.draw(st.integers(0, len(forms) - 1)) for _ in journals),
    )
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert decode_line(line[:-1]) == record


PATHS = ["uuid", "_meta.uuid", "a.b.c"]


@pytest.mark.parametrize(
    ("adapter", "content_type"),
    [(json_adapter(dict, uuid_path=path), "application/x-ndjson") for path in PATHS]
    + [
        (csv_adapter(columns=3, uuid_column=1), "text/csv"),
        (protobuf_adapter(Checkpoint.Source.ProducerEntry, "id"), "application/x-protobuf-fixed"),
        (json_adapter(dict), "application/x-protobuf-fixed"),
    ],
)
def test_acknowledgements_are_those_of_the_adapter(adapter, content_type):
    template = ack_template(adapter.acknowledgement, content_type)
    record = commit_record(KEY, 0, [TaskMessage(KEY, 0, A, 7, 1, (("j", template),), (1,))])
    restored = decode_line(encode_record(record)[:-1])
    expected = adapter.acknowledgement(build_uuid(A, 7, ACK_TXN))
    framed = framing_by_content_type(content_type).encode(expected)
    assert restored.acknowledgements() == {"j": framed}


def test_acknowledgements_which_depend_on_their_uuids_are_refused():
    with pytest.raises(ConfigurationError, match="differ in more than their UUIDs"):
        ack_template(lambda uuid: b'{"u":"%d"}' % uuid.int, "application/x-ndjson")


def test_acknowledgements_of_all_producers_by_journal():
    messages = [message(3, A, 5, ("j/one", "j/two")), message(3, B, 6, ("j/two",))]
    assert commit_record(KEY, 3, messages).acknowledgements() == {
        "j/one": TEMPLATE.frame(A, 5),
        "j/two": TEMPLATE.frame(A, 5) + TEMPLATE.frame(B, 6),
    }


def test_messages_which_a_record_can_not_be_made_of():
    assert commit_record(KEY, 3, []) is None
    assert commit_record(KEY, 3, [message(3, A, 5, ())]) is None
    other = AckTemplate(b"x", b"y", text=False)
    disagreeing = dataclasses.replace(message(3, B, 5), journals=(("j/one", other),))
    for text, messages in {
        "isn't of batch 3": [message(4, A, 5)],
        "isn't of batch": [message(3, A, 5, key=OTHER)],
        "two tasks published as": [message(3, A, 5), message(3, A, 6)],
        "tasks disagree": [message(3, A, 5), disagreeing],
    }.items():
        with pytest.raises(ValidationError, match=text):
            commit_record(KEY, 3, messages)


def test_bounds_of_records(monkeypatch):
    record = commit(3, A, B)
    line = encode_record(record)
    monkeypatch.setattr(commit_records, "MAX_ACK_BYTES", 100)
    with pytest.raises(ValidationError, match="acknowledgements of"):
        commit(3, A, B)
    assert isinstance(decode_line(line[:-1]), Refused)
    monkeypatch.setattr(commit_records, "MAX_LINE_BYTES", 50)
    with pytest.raises(ValidationError, match="record of"):
        encode_record(record)
    assert decode_line(b" " * 50).key is None


def edited(**changes):
    document = json.loads(encode_record(commit(3, A, B)))
    document.update(changes)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "line",
    [
        HEADER[:-1],
        b"",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b"{}",
        b'{"v":1}',
        b'{"v":1',
        b"[" * 100_000,
        b'{"v":true,"t":"commit","q":"query","s":"sink"}',
        b'{"v":"1","t":"commit","q":"query","s":"sink"}',
        edited(t="of-a-later-release"),
        edited(t=""),
        edited(t=["commit"]),
        edited(t={"commit": 1}),
        edited(q=None),
        edited(q=5),
    ],
)
def test_lines_which_are_passed_over(line):
    assert decode_line(line) is None


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (None, b'{"v":2,"t":"header"}'),
        (None, b'{"v":-7}'),
        (KEY, edited(v=2, p="of another form")),
        (KEY, edited(b=-1)),
        (KEY, edited(b=1 << 63)),
        (KEY, edited(b="3")),
        (KEY, edited(b=None)),
        (KEY, edited(j=["same", "same"], i=[0, 0])),
        (KEY, edited(j=[""])),
        (KEY, edited(i=[])),
        (KEY, edited(i=[1])),
        (KEY, edited(a=[["text", "é", "☃"]])),
        (KEY, edited(a=[["number", "", ""]])),
        (KEY, edited(p=[])),
        (KEY, edited(p=[[A.hex(), "5", []]])),
        (KEY, edited(p=[[A.hex(), "5", [0, 0]]])),
        (KEY, edited(p=[[A.hex(), "5", [7]]])),
        (KEY, edited(p=[[A.hex(), "5", [0]], [A.hex(), "6", [0]]])),
        (KEY, edited(p=[["0x" + "1" * 10, "5", [0]]])),
        (KEY, edited(p=[[A.hex(), "+5", [0]]])),
        (KEY, edited(p=[[A.hex(), "1_0", [0]]])),
        (KEY, edited(p=[[A.hex(), "1" * 17, [0]]])),
        (KEY, edited(p=[[A.hex(), "", [0]]])),
        (KEY, b'{"v":1,"t":"commit","q":"query","s":"sink"}'),
    ],
)
def test_lines_which_are_refused(key, line):
    refused = decode_line(line)
    assert isinstance(refused, Refused)
    assert refused.key == key


@given(st.binary(max_size=80))
def test_no_line_does_harm(line):
    decode_line(line)
    decode_line(b'{"v":1,"t":"commit","q":"q","s":"s",' + line)


# What records come to


def test_refused_lines_stop_their_sinks_only():
    commits = CommitState()
    commits.fold(commit(1, A))
    commits.fold(Refused(OTHER, "a record of version 2"))
    assert commits.of(KEY).decided == 1
    with pytest.raises(StoreError, match="version 2"):
        commits.of(OTHER)
    commits.fold(Refused(None, "a record of version 3"))
    with pytest.raises(StoreError, match="version 3"):
        commits.of(KEY)


def test_only_lines_of_a_sink_are_refused_by_it_alone():
    state = CommitState()
    state.fold(Refused(OTHER, "a damaged record"))
    assert state.refuses(OTHER)
    assert not state.refuses(KEY)
    state.fold(Refused(None, "a line"))
    assert not state.refuses(OTHER)  # It's not its own affair any more.


def test_a_state_of_one_sink_keeps_no_others():
    commits = CommitState(KEY)
    commits.fold(dataclasses.replace(commit(1, A), key=OTHER))
    commits.fold(Refused(OTHER, "a record of version 2"))
    commits.fold(commit(2, A))
    assert list(commits) == [KEY]
    assert commits.of(KEY).decided == 2


def test_the_first_record_of_a_batch_counts():
    folded = state(commit(1, A), commit(1, B, nonce="late"), commit(0, C, nonce="later"))
    assert folded.last == commit(1, A)


def test_a_plan_lists_recent_producers_which_are_not_retired():
    folded = state(commit(1, A, B), commit(2, B, C), retirement(2, C))
    plan = pickle.loads(pickle.dumps(folded.plan(KEY)))
    assert (plan.key, plan.decided) == (KEY, 2)
    assert plan.clean == {A: Use(1, 200), B: Use(2, 300)}
    assert SinkState().plan(KEY).decided == -1


def test_old_batches_are_forgotten():
    folded = state(commit(0, A), retirement(0, A))
    for batch in range(1, commit_rules.RECENT_RECORDS):
        folded = folded.fold(commit(batch, B))
    assert A in folded.retired
    folded = folded.fold(commit(commit_rules.RECENT_RECORDS, B))
    assert folded.retired == {}
    assert A not in folded.plan(KEY).clean
    assert len(folded.recent) == commit_rules.RECENT_RECORDS


# Decisions


@given(st.data())
def test_what_is_left_out_of_many_lines_makes_no_difference(data):
    """Batches of several sinks, some of which are decided late, retired, given up, or done."""
    lines, batches = [HEADER[:-1]], {KEY: 0, OTHER: 0}
    for number in range(data.draw(st.integers(0, 60))):
        key = data.draw(st.sampled_from([KEY, OTHER]))
        kind = data.draw(st.sampled_from([CommitKind.COMMIT] * 5 + list(CommitKind)))
        if kind is CommitKind.COMMIT:
            batches[key] += 1
        ago = 0 if kind is CommitKind.COMMIT else data.draw(st.integers(0, batches[key]))
        producer = data.draw(st.sampled_from([A, B, C]))
        record = dataclasses.replace(commit(batches[key] - ago, producer, ack=number), key=key)
        if kind is not CommitKind.COMMIT:
            record = CommitRecord(
                kind, key, record.batch, nonce="n", spans=(Span(producer, number),)
            )
        lines.append(encode_record(record)[:-1])
    whole, parts = CommitState(), CommitState()
    for line in lines:
        if (record := decode_line(line)) is not None:
            whole.fold(record)
    size = data.draw(st.integers(1, 40))
    for begin in range(0, len(lines), size):
        found = decode_lines(lines[begin : begin + size], commit_rules.RECENT_RECORDS)
        for record in found:
            parts.fold(record)
    for key in (KEY, OTHER):
        assert parts.of(key) == whole.of(key)
    assert list(parts) == list(whole)


def test_most_commit_records_are_not_decoded():
    lines = [encode_record(commit(batch, A))[:-1] for batch in range(100)]
    damaged = [line.replace(b'"p":[[', b'"p":[7,[') for line in lines]
    assert isinstance(decode_line(damaged[0]), Refused)
    found = decode_lines([*damaged[:50], b"no record", *damaged[50:92], *lines[92:]], 8)
    assert [record.batch for record in found] == list(range(92, 100))


def test_decide_a_batch():
    proposal = commit(3, A, nonce="own")
    before = state(commit(2, A, B))
    assert commit_rules.decide(before, 3, proposal) == Append(proposal)
    assert commit_rules.decide(before.fold(proposal), 3, proposal) == Acknowledge(proposal)
    assert commit_rules.decide(before, 3, None) == Return()


def test_a_batch_which_is_decided_is_acknowledged_by_its_record_once_that_is_retired():
    recorded = commit(3, A, B)
    for proposal in (None, commit(3, C, nonce="own")):
        folded = state(recorded)
        step = commit_rules.decide(folded, 3, proposal, "x")
        assert step.record.kind is CommitKind.RETIRE
        assert step.record.producers == {A, B}
        folded = folded.fold(step.record)
        assert commit_rules.decide(folded, 3, proposal) == Acknowledge(recorded)
        done = commit_rules.finish(folded, recorded)
        assert commit_rules.decide(folded.fold(done.record), 3, proposal) == Return()


def test_a_batch_behind_another_is_left():
    assert commit_rules.decide(state(commit(4, A)), 3, commit(3, B, nonce="own")) == Return()


def test_unusable_producers_are_refused():
    folded = state(commit(2, A, B, C), retirement(2, A))
    assert commit_rules.decide(folded, 3, commit(3, A, C, nonce="own")) == Republish(frozenset({A}))
    repeated = commit(3, B, nonce="own", ack=300)
    assert commit_rules.decide(folded, 3, repeated) == Republish(frozenset({B}))


def test_producers_are_retired_once_and_only_while_their_batch_is_the_latest():
    recorded = commit(3, A, B)
    step = commit_rules.retire(state(recorded, retirement(3, A)), recorded, [A, B])
    assert step.record.producers == {B}
    assert commit_rules.retire(state(recorded, commit(4, C)), recorded, [A]) == Return()


def test_an_abort_retires_before_it_rolls_back_and_leaves_what_is_decided():
    messages = [message(3, A, 350), message(3, B, 360)]
    step = commit_rules.abort(state(commit(2, A)), KEY, 3, messages)
    assert step.record.kind is CommitKind.ABORT
    folded = state(commit(2, A), step.record)
    assert commit_rules.abort(folded, KEY, 3, messages) == RollBack()
    late = commit_record(KEY, 3, messages)
    assert commit_rules.decide(folded, 3, late) == Republish(frozenset({A, B}))
    assert A not in folded.plan(KEY).clean
    for decided in (commit(3, C), commit(4, C)):
        assert commit_rules.abort(state(decided), KEY, 3, messages) == Return()
    assert commit_rules.abort(SinkState(), KEY, 3, []) == Return()


def test_only_the_latest_batch_is_done():
    recorded = commit(3, A)
    assert commit_rules.finish(state(recorded, commit(4, A)), recorded) == Return()
    done = commit_rules.finish(state(recorded), recorded).record
    assert not state(recorded, commit(4, A), done).done
    assert decode_line(encode_record(done)[:-1]) == done
