"""Framings against golden data."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from google.protobuf import json_format

import gazette_aio.protocol as pb
from gazette_aio.message import csv_adapter, protobuf_adapter
from gazette_aio.message.framing import (
    CSVFraming,
    FixedFraming,
    NDJSONFraming,
    encode_fixed_frame,
)
from gazette_aio.message.framing.csv import encode_record, parse_record
from gazette_aio.protocol._generated import broker_pb2, consumer_pb2, recoverylog_pb2
from gazette_aio.protocol.errors import (
    DesyncDetectedError,
    GazetteError,
    UnexpectedEOFError,
    ValidationError,
)
from tests import golden, known_differences

MODULES = {"protocol": broker_pb2, "consumer": consumer_pb2, "recoverylog": recoverylog_pb2}


def feed_all(decoder, stream, chunks=None):
    """Feed `stream` in chunks and collect (kind, begin, end, payload or error)."""
    got = []
    pieces, at = [], 0
    for size in chunks or ():
        pieces.append(stream[at : at + size])
        at += size
    pieces.append(stream[at:])
    for piece in pieces:
        decoder.feed(piece)
        drain(decoder, got)
    return got


def drain(decoder, got):
    while True:
        try:
            frame = decoder.next_frame()
        except GazetteError as error:
            kind = {"desync": "desync"}.get(getattr(error, "kind", ""), "decode")
            got.append((kind, error.begin, error.end, str(error)))
            continue
        if frame is None:
            return
        got.append(("frame", frame.begin, frame.end, frame.payload))


def finish(decoder, got):
    decoder.end()
    while True:
        try:
            frame = decoder.next_frame()
        except UnexpectedEOFError as error:
            got.append(("unexpected_eof", decoder.offset, decoder.offset, str(error)))
            return
        except GazetteError as error:
            got.append(("decode", error.begin, error.end, str(error)))
            continue
        if frame is None:
            got.append(("eof", decoder.offset, decoder.offset, "EOF"))
            return
        got.append(("frame", frame.begin, frame.end, frame.payload))


def want_fixed(case):
    want = []
    for result in case["results"]:
        if "error" in result:
            want.append((result["kind"], result["offset"], result["error"]))
        else:
            want.append(("frame", result["offset"], bytes.fromhex(result["frame"])[8:]))
    return want


def test_fixed_unpack():
    for case in golden.load("framing_fixed.json")["unpack"]:
        stream = bytes.fromhex(case["stream"])
        decoder = FixedFraming().decoder()
        got = feed_all(decoder, stream)
        want = want_fixed(case)
        if case.get("end") is None:
            finish(decoder, got)
        else:
            # The source failed in place of its end. The partial frame stays buffered.
            assert want[-1][0] in {"reader_error", "unexpected_eof"}, case
            want.pop()
        # A partial frame stays whole in its decoder, where the reference may have taken its header.
        got_parts = [(k, e if k != "unexpected_eof" else 0, p) for k, _, e, p in got]
        assert got_parts == [(k, e if k != "unexpected_eof" else 0, p) for k, e, p in want]
        for frame, result in zip(got, case["results"], strict=False):
            if frame[0] in {"frame", "desync"}:
                assert stream[frame[1] : frame[2]].hex() == result["frame"]


def test_fixed_unpack_of_all_chunkings_and_buffers():
    data = golden.load("framing_fixed.json")
    for case in data["unpack"] + data["unpack_buffer_dependent"]:
        stream = bytes.fromhex(case["stream"])
        frames = [w for w in want_fixed(case) if w[0] == "frame"]
        chunkings = [case.get("chunks")]
        if len(stream) < 5000:
            chunkings.append([1] * (len(stream) - 1))
        for chunks in chunkings:
            decoder = FixedFraming().decoder()
            got = feed_all(decoder, stream, chunks)
            assert [(k, e, p) for k, _, e, p in got if k == "frame"] == frames
            # What was handed out covers all which was consumed, without a gap.
            at = 0
            for _, begin, end, _ in got:
                assert begin == at
                at = end
            assert at == decoder.offset


def test_fixed_encode():
    for case in golden.load("framing_fixed.json")["encode"]:
        payload, prefix = bytes.fromhex(case["payload"]), bytes.fromhex(case["prefix"])
        assert encode_fixed_frame(payload, bytearray(prefix)).hex() == case["bytes"]
        assert (prefix + FixedFraming().encode(payload)).hex() == case["bytes"]


def test_fixed_marshal_messages():
    for case in golden.load("framing_fixed.json")["marshal_messages"]:
        package, _, name = case["type"].partition(".")
        cls = MODULES[package]
        for part in name.split("."):
            cls = getattr(cls, part)
        message = json_format.ParseDict(case["json"], cls())
        want = bytes.fromhex(case["bytes"])
        frame = FixedFraming().encode(message.SerializeToString(deterministic=True))
        if frame != want:
            # Zero durations are on the wire but not in the JSON.
            again = cls.FromString(want[8:])
            assert json_format.MessageToDict(again) == json_format.MessageToDict(message)
            frame = FixedFraming().encode(again.SerializeToString(deterministic=True))
        assert frame == want


def test_fixed_unmarshal_labels():
    for case in golden.load("framing_fixed.json")["unmarshal_labels"]:
        decoder = FixedFraming().decoder()
        got = feed_all(decoder, bytes.fromhex(case["stream"]))
        finish(decoder, got)
        # The recording stops where a truncated payload looks like the end of the stream.
        assert len(got) >= len(case["results"])
        for (kind, _, end, payload), want in zip(got, case["results"], strict=False):
            if kind == "unexpected_eof":
                assert (kind, payload) == (want["kind"], want["error"])
                continue
            assert end == want["offset"]
            if kind != "frame":
                assert (kind, payload) == (want["kind"], want["error"])
            elif "error" in want:
                with pytest.raises(Exception, match=r"parsing|UTF-8|Label"):
                    pb.Label.FromString(payload)
            else:
                label = pb.Label.FromString(payload)
                assert (
                    json_format.MessageToDict(label, preserving_proto_field_name=True)
                    == want["json"]
                )


def test_ndjson_unpack():
    differences = set()
    decode = msgspec.json.decode
    for index, case in enumerate(golden.load("framing_ndjson.json")["unpack"]):
        stream = bytes.fromhex(case["stream"])
        for chunks in (case.get("chunks"), [1] * (len(stream) - 1)):
            if chunks is not None and len(chunks) > 20_000:
                continue
            decoder = NDJSONFraming().decoder()
            got = feed_all(decoder, stream, chunks)
            want = case["lines"]
            if case.get("end") is None:
                finish(decoder, got)
            else:
                want = want[:-1]
            assert len(got) == len(want), case["note"]
            for (kind, _begin, end, payload), result in zip(got, want, strict=True):
                if "error" in result:
                    assert (kind, payload) == (result["kind"], result["error"])
                    if kind == "eof":
                        assert end == result["offset"]
                else:
                    assert kind == "frame"
                    assert (payload + b"\n").hex() == result["line"]
                    assert end == result["offset"]
        for number, result in enumerate(case["decoded"]):
            if number >= len(got) or got[number][0] != "frame":
                continue
            try:
                value = decode(got[number][3])
            except (msgspec.DecodeError, UnicodeDecodeError):
                if result.get("kind") != "decode":
                    differences.add((index, number))
                continue
            assert result.get("kind") != "decode", (case["note"], got[number], result)
            assert value == result["value"]
    assert differences == set(known_differences.FRAMING_NDJSON_UNPACK)


def test_ndjson_marshal():
    escaped = 0
    for case in golden.load("framing_ndjson.json")["marshal"]:
        frame = NDJSONFraming().encode(msgspec.json.encode(case["value"]))
        assert json.loads(frame) == json.loads(bytes.fromhex(case["bytes"]))
        assert frame.endswith(b"\n")
        assert frame.count(b"\n") == 1
        escaped += frame.hex() != case["bytes"]
    assert escaped, known_differences.FRAMING_NDJSON_MARSHAL


def test_csv_unmarshal():
    adapter, differences = csv_adapter(), set()
    for index, case in enumerate(golden.load("framing_csv.json")["unmarshal"]):
        stream = bytes.fromhex(case["stream"])
        for chunks in (case.get("chunks"), [1] * (len(stream) - 1), []):
            decoder = CSVFraming(lenient_eof=True).decoder()
            got = feed_all(decoder, stream, chunks)
            finish(decoder, got)
            assert len(got) == len(case["results"]), (case["note"], got, case["results"])
            at = 0
            for number, ((kind, begin, end, payload), want) in enumerate(
                zip(got, case["results"], strict=True)
            ):
                if kind == "eof":
                    assert want["kind"] == "eof"
                    continue
                assert begin == at
                at = end
                if kind == "decode":
                    assert (want["kind"], want["error"]) == (kind, payload)
                    continue
                fields = parse_record(payload)
                try:
                    record = adapter.decode(payload)
                    uuid = adapter.uuid(record)
                except ValidationError as error:
                    assert (want["kind"], want["error"]) == ("decode", str(error))  # noqa: PT017
                    continue
                if [f.hex() for f in fields] != want["record_hex"]:
                    differences.add((index, number))
                    read_by_go = [f.replace(b"\r\n", b"\n") for f in fields]
                    assert [f.hex() for f in read_by_go] == want["record_hex"]
                assert [f.encode("utf-8", "surrogateescape") for f in record] == fields
                assert str(uuid) == str(adapter.uuid(want["record"]))
    assert differences == set(known_differences.FRAMING_CSV_UNMARSHAL)


def test_csv_marshal():
    for case in golden.load("framing_csv.json")["marshal"]:
        framing = CSVFraming()
        record = case["record"]
        encoded = encode_record([f.encode() for f in record])
        assert framing.encode(encoded).hex() == case["bytes"]
        adapter = csv_adapter(columns=len(record))
        if len(record[0]) == 36:
            assert (
                framing.encode(adapter.encode(record, adapter.uuid(record))).hex() == case["bytes"]
            )
        ack = framing.encode(adapter.acknowledgement(adapter.uuid([case["ack_uuid"]])))
        assert ack.hex() == case["ack_bytes"]


def test_fixed_desync_is_typed():
    decoder = FixedFraming().decoder(100)
    decoder.feed(b"foobar" + FixedFraming().encode(b"x"))
    with pytest.raises(DesyncDetectedError) as raised:
        decoder.next_frame()
    assert (raised.value.begin, raised.value.end, raised.value.kind) == (100, 106, "desync")
    frame = decoder.next_frame()
    assert frame == (106, 115, b"x")


def test_protobuf_adapter_of_any_class():
    entry = consumer_pb2.Checkpoint.Source.ProducerEntry
    adapter = protobuf_adapter(entry, uuid_field="id")
    uuid = adapter.uuid(entry(id=base64.b64decode("AAECAwQFBgcICQoLDA0ODw==")))
    message = entry()
    message.state.last_ack = 7
    encoded = adapter.encode(message, uuid)
    assert message.id == b""
    assert adapter.uuid(adapter.decode(encoded)) == uuid
    assert adapter.decode(encoded).state.last_ack == 7
