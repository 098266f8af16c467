from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.recoverylog import LogDecoder, encode_operation
from gazette_aio.message.framing import FIXED_FRAME_WORD
from gazette_aio.protocol import RecoveryError
from gazette_aio.protocol.recoverylog import RecordedOp

LOG = "recovery/log"


def frame(**fields: object) -> bytes:
    return encode_operation(RecordedOp(author=1, **fields))[1]


def write(content: bytes, **fields: object) -> bytes:
    return frame(write={"fnode": 1, "length": len(content)}, **fields) + content


class Part(NamedTuple):
    """A decoded part of a log, with its content copied."""

    op: Any
    payload: bytes
    content: bytes | None
    begin: int
    end: int


def parts_of(decoder: LogDecoder, *chunks: bytes) -> list[Part]:
    decoded = []
    for chunk in chunks:
        decoder.feed(chunk)
        for op, _, payload, content, begin, end in decoder:
            copy = None if content is None else bytes(content)
            decoded.append(Part(op, payload, copy, begin, end))
    return decoded


def junk(begin: int, end: int) -> Part:
    return Part(None, b"", None, begin, end)


# Content which looks like operations, and begins of words.
parts = st.one_of(
    st.builds(lambda n: frame(seq_no=n), st.integers(0, 1 << 40)),
    st.builds(write, st.one_of(st.binary(max_size=40), st.just(frame(seq_no=7)))),
    st.binary(min_size=1, max_size=30),
    st.sampled_from([FIXED_FRAME_WORD, FIXED_FRAME_WORD[:2], FIXED_FRAME_WORD + b"\xff" * 4]),
)


@given(st.lists(parts, max_size=8), st.data())
def test_chunks_make_no_difference(log: list[bytes], data: st.DataObject) -> None:
    content = b"".join(log)

    def decode(chunks: list[bytes]) -> tuple[list[Any], bytes, set[int], str]:
        decoder = LogDecoder(LOG, 100)
        decoded, error = list[Part](), ""
        try:
            for chunk in chunks:
                decoded += parts_of(decoder, chunk)
            assert decoder.fed_offset == 100 + len(content)
        except RecoveryError as failure:
            error = f"{failure} at {decoder.offset}"
        operations = [part for part in decoded if part.op is not None]
        assert all(part.op.SerializeToString() == part.payload for part in operations)
        return (
            [(part.op, part.begin, part.end) for part in operations],
            b"".join(part.content or b"" for part in decoded),
            {n for part in decoded if part.content is None for n in range(*part[3:])}
            - {n for part in operations for n in range(*part[3:])},
            error,
        )

    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)))) | {0, len(content)})
    chunks = [content[begin:end] for begin, end in itertools.pairwise(cuts)]
    whole = decode([content])
    assert decode(chunks) == whole
    assert decode([content[n : n + 1] for n in range(len(content))]) == whole


def test_content_is_never_taken_for_operations() -> None:
    inner = frame(seq_no=99)
    decoder = LogDecoder(LOG, 10)
    first, last = parts_of(decoder, write(inner, seq_no=1) + frame(seq_no=2))
    assert (first.op.seq_no, first.content, first.begin) == (1, inner, 10)
    assert (last.op.seq_no, last.content) == (2, b"")
    assert first.end == last.begin
    assert last.end == decoder.offset == decoder.fed_offset
    assert decoder.end() == 0


def test_content_comes_in_pieces() -> None:
    log = write(b"abcdef", seq_no=1)
    decoder = LogDecoder(LOG)
    end = len(log)
    head, *pieces = parts_of(decoder, log[:-6], b"ab", b"cde")
    assert (head.op.seq_no, head.content, head.begin, head.end) == (1, b"", 0, end)
    assert pieces == [
        Part(None, b"", b"ab", end - 6, end - 4),
        Part(None, b"", b"cde", end - 4, end - 1),
    ]
    assert not decoder.is_at_boundary
    with pytest.raises(RecoveryError, match=r"ends at .* within content of a write"):
        decoder.end(is_append_boundary=True)
    with pytest.raises(ValueError, match="can't skip"):
        decoder.skip_to(1000)
    with pytest.raises(RecoveryError, match=r"jumps .* within an operation"):
        decoder.jump(1000)
    assert parts_of(decoder, b"f") == [Part(None, b"", b"f", end - 1, end)]
    decoder.jump(1000)
    assert decoder.offset == decoder.fed_offset == 1000


def test_lengths_are_bounded() -> None:
    huge = FIXED_FRAME_WORD + (1 << 31).to_bytes(4, "little")
    before, part = parts_of(LogDecoder(LOG), huge + frame(seq_no=5))
    assert before == junk(0, 8)
    assert part.op.seq_no == 5


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "decoding an operation"),
        (RecordedOp(write={"fnode": 1, "length": -1}).SerializeToString(), "negative"),
        (RecordedOp(write={"fnode": 1, "offset": -1}).SerializeToString(), "negative"),
        (
            RecordedOp(
                write={"fnode": 1, "offset": (1 << 63) - 1, "length": 1}
            ).SerializeToString(),
            "beyond 2",
        ),
        (RecordedOp(create={"path": "/a"}, unlink={"path": "/a"}).SerializeToString(), "one kind"),
        (b"\x22\x03\x0a\x01\xff", "decoding an operation"),
    ],
)
def test_unsound_operations(payload: bytes, reason: str) -> None:
    decoder = LogDecoder(LOG, 30)
    decoder.feed(FIXED_FRAME_WORD + len(payload).to_bytes(4, "little") + payload)
    with pytest.raises(RecoveryError, match=reason):
        list(decoder)
    assert decoder.offset == 30


def test_what_ends_a_log() -> None:
    torn = frame(seq_no=1)[:-1]
    decoder = LogDecoder(LOG)
    assert parts_of(decoder, torn) == []
    with pytest.raises(RecoveryError, match="within an operation"):
        decoder.end(is_append_boundary=True)
    decoder = LogDecoder(LOG)
    assert parts_of(decoder, b"xy") == []
    with pytest.raises(RecoveryError, match="within an operation"):
        decoder.end()
    assert decoder.end(is_append_boundary=True) == 2
    assert decoder.end(is_append_boundary=True) == 0


def test_only_recorded_fields_are_encoded() -> None:
    for field in ({"first_offset": 1}, {"last_offset": 1}, {"log": LOG}):
        with pytest.raises(ValueError, match="recorded without"):
            encode_operation(RecordedOp(seq_no=1, **field))
