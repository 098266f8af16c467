"""Random and mutated input of decoders: each answers, or raises the error of its kind."""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from benchmarks.attacks import core_input
from benchmarks.soaks.invariant import BrokenInvariantError
from gazette_aio.broker.fragments.postfix import check_template
from gazette_aio.cli.journals.read_offsets import is_checkpoint
from gazette_aio.consumer.allocator.shard_group import group_decoder
from gazette_aio.consumer.keyspace.etcd.failures import too_old
from gazette_aio.consumer.keyspace.etcd.messages import key_text
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import KeyValue
from gazette_aio.consumer.recoverylog import FSM, LogDecoder, decode_hints
from gazette_aio.consumer.shardspace import load_shard_space
from gazette_aio.consumer.stores.state_file import decode_state_file
from gazette_aio.message import CSVFraming, FixedFraming, NDJSONFraming
from gazette_aio.message.publishing.intent_record import MAGIC, decode_record
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.labels import validate_label_set

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message import Framing

_CODECS = (
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.ZSTANDARD,
    pb.CompressionCodec.SNAPPY,
)
_SEEDS = (
    b"0000000000000000-0000000000000400-0123456789abcdef0123456789abcdef01234567.gz",
    b"s3://bucket/prefix/?endpoint=http://host:9000&find=a&replace=b",
    b"app.gazette.dev/a in (b,c), !d, e=f, name:prefix=a/",
    b"1h30m0.5s",
    b"name: a/\nchildren:\n  - name: a/b\n    replication: 1\n",
    b"common:\n  max_txn_duration: 1s\nshards:\n  - id: a-shard\n    sources: [{journal: a/b}]\n",
    b'{"log":"a/log","live_nodes":[{"fnode":"1","segments":[]}]}',
    b"\x66\x33\x93\x36\x0b\x00\x00\x00\x08\x01\x20\x01\x3a\x05\n\x03/a/",
    b"\x66\x33\x93\x36\x0c\x00\x00\x00\x08\x01\x20\x01\x52\x06\x08\x01\x10\x00\x18\x03abc",
    b"content-type=application/x-ndjson,name:prefix=a/b",
    b'{"a":1}\n{"b":"\\u00e9"}\n',
    b'a,"b\nc",d\n1,2,3\n',
    b"\x66\x33\x93\x36\x04\x00\x00\x00abcd",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    b"\x28\xb5\x2f\xfd\x04\x00\x09\x00\x00abc",
    b"\xff\x06\x00\x00sNaPpY",
    b"http://[::1]:8080/a",
    b'{{.Spec.Name}}/{{index .X 1}}/{{ .Spool.FirstAppendTime.Format "2006" }}',
    b'{"version":1,"offsets":{"a/b":"1"},"producers":[]}',
    b'{"intents":[{"journal":"a/b","intent":"YQ=="}],"state":{"json":[1]}}',
    b'{"a/b":1}\n{"a":[1]}\n{"sources":{"a/b":{"read_through":1}}}\n',
    b"/group/assign/shard#zone#member#1",
    b"/group/items/a-shard\x0a\x07a-shard",
    b"3.5.1",
    *core_input.SEEDS,
)

_LONG, _LONG_SHARE = 5000, 0.2


def mutated(rng: random.Random, sound: Sequence[bytes] = _SEEDS) -> bytes:
    """Return an input that is nearly one of those which decoders take."""
    data = bytearray(rng.choice(sound))
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 1:
                del data[place : place + rng.randrange(1, 9)]
            case 2 if rng.random() < _LONG_SHARE:
                # More digits, or nested brackets, than the interpreter takes.
                data[place:place] = data[place : place + 1] * _LONG
            case _ if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case _:
                data.extend(bytes(data))
    return bytes(data)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def _content(codec: pb.CompressionCodec.ValueType) -> Callable[[bytes], object]:
    return lambda data: sum(map(len, pb.decompress_all(codec, data)))


def _labels(data: bytes) -> None:
    parts = data.decode("utf-8", "replace").replace("=", ",").split(",")
    labels = pb.label_set(*parts[: len(parts) // 2 * 2])
    validate_label_set(pb.LabelSet.FromString(labels.SerializeToString()))


def _operations(data: bytes) -> None:
    decoder = LogDecoder("a/log", 1000)
    middle = len(data) // 2
    for chunk in (data[:middle], data[middle:]):
        decoder.feed(chunk)
        before = decoder.offset
        for _ in decoder:
            if not before < decoder.offset <= 1000 + len(data):
                raise AssertionError(f"at {decoder.offset} after {before}")
            before = decoder.offset


def _frames(framing: Framing) -> Callable[[bytes], object]:
    def split(data: bytes) -> None:
        decoder = framing.decoder(max_frame_bytes=64)
        decoder.feed(data)
        decoder.end()
        while decoder.offset < len(data):
            before = decoder.offset
            try:
                frame = decoder.next_frame()
            except pb.UnexpectedEOFError:
                return
            except pb.GazetteError:
                continue
            if frame is None:
                return
            if not before <= frame.begin < frame.end <= len(data):
                raise AssertionError(f"{frame} of {len(data)} bytes after {before}")

    return split


def _record_of_intents(body: bytes) -> object:
    return decode_record(b"%b %08x\n%b\n" % (MAGIC, zlib.crc32(body), body))


_decode_group_key = group_decoder(GroupKeys("/group"))


def _group_key(data: bytes) -> object:
    key, _, value = data.partition(b"\n")
    return _decode_group_key(KeyValue(key_text(key), value, 1, 1, 1))


DECODERS: dict[str, Callable[[bytes], object]] = {
    "fragment names": _text(lambda text: pb.parse_fragment("a/journal", text)),
    "stores": _text(pb.parse_fragment_store),
    "selectors": _text(pb.parse_label_selector),
    "durations": _text(pb.parse_duration),
    "journal spaces": _text(pb.load_journal_space),
    "shard spaces": _text(load_shard_space),
    "labels": _labels,
    "hints": lambda data: FSM(decode_hints(data)),
    "endpoints": _text(parse_endpoint),
    "templates of paths": _text(check_template),
    "checkpoints": SequencerCheckpoint.from_json,
    "records of intents": _record_of_intents,
    "files of states": decode_state_file,
    "offsets": _text(is_checkpoint),
    "keys of groups": _group_key,
    "versions": _text(too_old),
    "recorded operations": _operations,
    **{f"content {pb.CompressionCodec.Name(codec)}": _content(codec) for codec in _CODECS},
    "lines": _frames(NDJSONFraming()),
    "CSV": _frames(CSVFraming()),
    "fixed frames": _frames(FixedFraming()),
    **core_input.DECODERS,
}


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    end, count = time.monotonic() + duration, 0
    while time.monotonic() < end:
        data = mutated(rng)
        for name, decode in DECODERS.items():
            count += 1
            try:
                with contextlib.suppress(pb.GazetteError):
                    decode(data)
            except Exception as error:
                raise BrokenInvariantError(f"{name} of {data!r}: {error!r}") from error
    print(f"decoders: {count} inputs, intact", flush=True)
