"""Compression: golden files, damage, bounds, and random chunks."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import random
import tracemalloc
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.fragment import codec_name
from tests import extent, golden

NONE = pb.CompressionCodec.NONE
GZIP = pb.CompressionCodec.GZIP
ZSTANDARD = pb.CompressionCodec.ZSTANDARD
SNAPPY = pb.CompressionCodec.SNAPPY
OFFLOAD = pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
CODECS = [NONE, GZIP, ZSTANDARD, SNAPPY, OFFLOAD]

STREAM = b"\xff\x06\x00\x00sNaPpY"


def index(section: str) -> list[dict]:
    path = golden.directory() / "fragment_codecs" / "index.json"
    cases = json.loads(path.read_text("utf-8"))[section]
    assert cases
    return cases


def content_of(name: str) -> bytes:
    return (golden.directory() / "fragment_codecs" / name).read_bytes()


def compress(codec: int, content: bytes, step: int = 1 << 20) -> bytes:
    stream = pb.compressor(codec)
    pieces = [stream.compress(content[at : at + step]) for at in range(0, len(content), step)]
    return b"".join(pieces) + stream.finish()


def decompress(codec: int, data: bytes, step: int = 1 << 20, *limits: int) -> bytes:
    """Decompress by chunks of `step` bytes, into pieces of up to each limit in turn."""
    stream = pb.decompressor(codec, content_encoded=True)
    pieces = []
    limit = itertools.cycle(limits or (1 << 20,))
    for at in range(0, len(data), step):
        piece = stream.decompress(data[at : at + step], max_bytes=(max_bytes := next(limit)))
        while piece:
            assert len(piece) <= max_bytes
            pieces.append(piece)
            piece = stream.decompress(max_bytes=(max_bytes := next(limit)))
        assert stream.needs_input
    stream.finish()
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("step", "max_bytes"), [(1 << 20, 1 << 20), (1000, 70_000), (1 << 20, 100), (13, 1 << 20)]
)
def test_golden_files(step: int, max_bytes: int):
    for case in index("files"):
        codec = pb.CompressionCodec.Value(case["codec"])
        data, content = content_of(case["file"]), content_of(case["content"])
        assert decompress(codec, data, step, max_bytes) == content, case
        assert hashlib.sha1(content).hexdigest() == case["sha1"]


def test_golden_files_byte_by_byte():
    for case in index("files"):
        if case["size"] < 5000:
            codec = pb.CompressionCodec.Value(case["codec"])
            data = content_of(case["file"])
            assert decompress(codec, data, 1, 3) == content_of(case["content"])


def test_golden_names():
    for case in index("files"):
        journal = case["journal"]
        parsed = pb.parse_fragment(journal, case["file"].removeprefix(f"{journal}/"))
        assert (parsed.begin, parsed.end) == (case["begin"], case["end"])
        assert codec_name(parsed.compression_codec) == case["codec"]
        assert pb.sum_to_digest(parsed.sum).hex() == case["sha1"]


def test_golden_damage():
    plain = {case["codec"]: content_of(case["content"]) for case in index("files")}
    undetected = 0
    for case in index("damaged"):
        codec = pb.CompressionCodec.Value(case["codec"])
        data = content_of(case["file"])
        # The content of the frame below carries no checksum, so that only its sum can tell.
        if (case["codec"], case["note"]) == ("ZSTANDARD", "one byte damaged"):
            decoded = decompress(codec, data)
            assert len(decoded) == case["decoded_length"]
            assert decoded not in plain.values()
            undetected += 1
            continue
        with pytest.raises(pb.FragmentError):
            decompress(codec, data)
    assert undetected == 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
def test_round_trips(codec: int, size: int):
    content = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    data = compress(codec, content, step=10_007)
    assert decompress(codec, data, 5_003, 70_001) == content


@extent.examples(30)
@given(
    st.sampled_from(CODECS),
    st.binary(max_size=3000),
    st.integers(1, 50),
    st.integers(1, 700),
    st.integers(1, 700),
    st.lists(st.sampled_from([1, 5, 900, 20_000, 1 << 20]), min_size=1, max_size=4),
)
def test_any_chunks_round_trip(codec, seed, repeats, write_step, read_step, limits):
    content = seed * repeats
    data = compress(codec, content, step=write_step * 10)
    assert decompress(codec, data, read_step * 10, *limits) == content


@pytest.mark.parametrize("codec", [GZIP, ZSTANDARD, SNAPPY, OFFLOAD])
def test_every_cut_is_noticed(codec: int):
    content = random.Random(1).randbytes(300) * 20
    data = compress(codec, content)
    # Between chunks, a stream of Snappy may end anywhere.
    ends = {len(STREAM)} if codec == SNAPPY else set()
    for end in set(range(len(data))) - ends:
        with pytest.raises(pb.FragmentError):
            decompress(codec, data[:end])
    for end in ends:
        assert decompress(codec, data[:end]) == b""


@pytest.mark.parametrize("codec", [GZIP, ZSTANDARD, SNAPPY])
def test_a_flipped_bit_never_passes(codec: int):
    content = random.Random(2).randbytes(200) * 10
    data = compress(codec, content)
    flips = random.Random(3)
    for _ in range(400):
        damaged = bytearray(data)
        damaged[flips.randrange(len(data))] ^= 1 << flips.randrange(8)
        try:
            decoded = decompress(codec, bytes(damaged))
        except pb.FragmentError:
            continue
        # Some bits, as of the time in a header, mean nothing.
        assert decoded == content


def test_members_and_frames_may_follow_each_other():
    parts = [b"one" * 1000, b"", b"two" * 10, b"three"]
    whole = b"".join(parts)
    assert decompress(GZIP, b"".join(map(gzip.compress, parts))) == whole
    assert decompress(ZSTANDARD, b"".join(map(zstandard.compress, parts))) == whole
    assert decompress(SNAPPY, b"".join(compress(SNAPPY, part) for part in parts)) == whole


def test_zstandard_skips_frames_which_say_so():
    skippable = b"\x5a\x2a\x4d\x18" + (300_000).to_bytes(4, "little") + bytes(300_000)
    data = skippable + zstandard.compress(b"content") + skippable
    assert decompress(ZSTANDARD, data, step=999) == b"content"
    with pytest.raises(pb.FragmentError, match="unexpected end"):
        decompress(ZSTANDARD, data[:-1])


def test_snappy_skips_chunks_which_say_so():
    body = compress(SNAPPY, b"content" * 1000)
    padding = b"\xfe" + (200_000).to_bytes(3, "little") + bytes(200_000)
    reserved = b"\x80\x03\x00\x00abc"
    data = STREAM + padding + reserved + body + padding
    assert decompress(SNAPPY, data, step=4_001) == b"content" * 1000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x05\x00\x00abcde",
        b"\xff\x06\x00\x00sNaPpX",
        b"\xff\x07\x00\x00sNaPpYY",
        STREAM + b"\x02\x04\x00\x00abcd",
        STREAM + b"\x7f\x00\x00\x00",
        STREAM + b"\x00\x03\x00\x00abc",
        STREAM + b"\x01\x05\x00\x00\x00\x00\x00\x00a",
        # A chunk which says to hold 4 GiB, and one which is larger than any may be.
        STREAM + b"\x00\x0a\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0f\x00",
        STREAM + b"\x01\x05\x00\x01" + bytes(65_541),
    ],
)
def test_invalid_snappy_is_refused(data: bytes):
    with pytest.raises(pb.FragmentError):
        decompress(SNAPPY, data)


def test_a_block_of_plain_snappy_is_refused():
    with pytest.raises(pb.FragmentError, match="no stream identifier"):
        decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(b"content" * 10)))


@pytest.mark.parametrize("codec", [GZIP, ZSTANDARD, SNAPPY])
def test_output_of_a_call_is_bounded(codec: int):
    size = 64 << 20
    data = compress(codec, bytes(size))
    stream = pb.decompressor(codec)
    tracemalloc.start()
    try:
        total = 0
        piece = stream.decompress(data, max_bytes=1 << 20)
        while piece:
            assert len(piece) <= 1 << 20
            total += len(piece)
            piece = stream.decompress(max_bytes=1 << 20)
        stream.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == size
    assert peak < len(data) * 2 + (6 << 20)


def test_a_window_beyond_the_limit_is_refused():
    huge = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=26)
    )
    stream = huge.compressobj()
    data = stream.compress(b"content") + stream.flush()
    with pytest.raises(pb.FragmentError, match="exceeds the limit"):
        decompress(ZSTANDARD, data)
    allowed = pb.decompressor(ZSTANDARD, max_window=1 << 26)
    assert allowed.decompress(data) == b"content"
    # A frame of one segment is its own window.
    single = b"\x28\xb5\x2f\xfd\xa0" + (1 << 31).to_bytes(4, "little")
    with pytest.raises(pb.FragmentError, match="window of 2147483648 bytes exceeds the limit"):
        decompress(ZSTANDARD, single)


def test_content_before_damage_is_handed_out():
    intact = compress(GZIP, b"intact")
    stream = pb.decompressor(GZIP)
    assert stream.decompress(intact + b"garbage, which is no member") == b"intact"
    for _ in range(2):
        with pytest.raises(pb.FragmentError, match="corrupt gzip content"):
            stream.decompress()
    with pytest.raises(pb.FragmentError, match="corrupt gzip content"):
        stream.finish()


def test_finish_wants_all_content_handed_out():
    stream = pb.decompressor(GZIP)
    assert stream.decompress(compress(GZIP, bytes(1000)), max_bytes=10) == bytes(10)
    assert not stream.needs_input
    with pytest.raises(ValueError, match="before all content"):
        stream.finish()


def test_offloaded_content_passes_through():
    compressed = compress(OFFLOAD, b"content")
    assert zlib.decompress(compressed, wbits=31) == b"content"
    offloaded = pb.decompressor(OFFLOAD)
    assert offloaded.decompress(b"content") == b"content"
    offloaded.finish()
    encoded = pb.decompressor(OFFLOAD, content_encoded=True)
    assert encoded.decompress(compressed) == b"content"
    encoded.finish()


def test_whole_streams():
    content = b"content" * 500_000
    pieces = list(pb.decompress_all(SNAPPY, compress(SNAPPY, content)))
    assert b"".join(pieces) == content
    assert len(pieces) > 1
    with pytest.raises(pb.FragmentError):
        list(pb.decompress_all(SNAPPY, compress(SNAPPY, content)[:-1]))


@pytest.mark.parametrize("codec", [0, 6, -1])
def test_unsupported_codecs(codec: int):
    name = "INVALID" if codec == 0 else str(codec)
    with pytest.raises(pb.FragmentError, match=f"^unsupported codec {name}$"):
        pb.compressor(codec)
    with pytest.raises(pb.FragmentError, match=f"^unsupported codec {name}$"):
        pb.decompressor(codec)


@extent.examples(100)
@given(
    st.sampled_from([GZIP, ZSTANDARD, SNAPPY]),
    st.sampled_from([b"", b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", STREAM]),
    st.binary(max_size=200),
)
def test_arbitrary_bytes_only_raise_fragment_errors(codec, head, body):
    # Anything else than this error fails the test, as does a decoder which doesn't come to an end.
    with contextlib.suppress(pb.FragmentError):
        decompress(codec, head + body, 7, 1000)
