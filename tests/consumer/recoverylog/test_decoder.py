from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.recoverylog import (
    Content,
    Junk,
    LogDecoder,
    Operation,
    encode_operation,
)
from gazette_aio.message.framing import FIXED_FRAME_WORD
from gazette_aio.protocol import RecoveryError
from gazette_aio.protocol.recoverylog import RecordedOp

LOG = "recovery/log"


def frame(**fields: object) -> bytes:
    return encode_operation(RecordedOp(author=1, **fields))[1]


def write(content: bytes, **fields: object) -> bytes:
    return frame(write={"fnode": 1, "length": len(content)}, **fields) + content


def events_of(decoder: LogDecoder, *chunks: bytes) -> list[Operation | Content | Junk]:
    events = []
    for chunk in chunks:
        decoder.feed(chunk)
        while (event := decoder.next()) is not None:
            events.append(event)
    return events


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

    def decode(chunks: list[bytes]) -> tuple[list[RecordedOp], bytes, set[int], str]:
        decoder = LogDecoder(LOG, 100)
        events, error = [], ""
        try:
            for chunk in chunks:
                events += events_of(decoder, chunk)
            assert decoder.fed_offset == 100 + len(content)
        except RecoveryError as failure:
            error = str(failure)
        return (
            [event.op for event in events if isinstance(event, Operation)],
            b"".join(event.data for event in events if isinstance(event, Content)),
            {
                n
                for event in events
                if isinstance(event, Junk)
                for n in range(event.begin, event.end)
            },
            error,
        )

    def decode_writes(chunks: list[bytes]) -> tuple[list[RecordedOp], bytes, set[int], str]:
        """As above, with as much by `writes()` as that gives."""
        decoder = LogDecoder(LOG, 100)
        ops: list[RecordedOp] = []
        pieces: list[bytes] = []
        junk: set[int] = set()
        try:
            for chunk in chunks:
                decoder.feed(chunk)
                while True:
                    for op, payload, message, piece, begin, end in decoder.writes():
                        assert op.SerializeToString() == payload
                        assert message == op.write
                        op.log, op.first_offset, op.last_offset = LOG, begin, end
                        ops.append(op)
                        pieces.append(bytes(piece))
                    if (event := decoder.next()) is None:
                        break
                    if isinstance(event, Operation):
                        ops.append(event.op)
                    elif isinstance(event, Content):
                        pieces.append(event.data)
                    else:
                        junk.update(range(event.begin, event.end))
        except RecoveryError as failure:
            return ops, b"".join(pieces), junk, str(failure)
        return ops, b"".join(pieces), junk, ""

    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)))) | {0, len(content)})
    chunks = [content[begin:end] for begin, end in itertools.pairwise(cuts)]
    whole = decode([content])
    assert decode(chunks) == whole
    assert decode_writes(chunks) == whole
    assert decode_writes([content]) == whole
    assert decode([content[n : n + 1] for n in range(len(content))]) == whole


def test_content_is_never_taken_for_operations() -> None:
    inner = frame(seq_no=99)
    decoder = LogDecoder(LOG, 10)
    first, *pieces, last = events_of(decoder, write(inner, seq_no=1) + frame(seq_no=2))
    assert isinstance(first, Operation)
    assert (first.op.seq_no, first.op.log, first.op.first_offset) == (1, LOG, 10)
    assert pieces == [Content(inner, 0)]
    assert isinstance(last, Operation)
    assert last.op.seq_no == 2
    assert first.op.last_offset == last.op.first_offset
    assert last.op.last_offset == decoder.offset == decoder.fed_offset
    assert decoder.end() is None


def test_content_comes_in_pieces() -> None:
    log = write(b"abcdef", seq_no=1)
    decoder = LogDecoder(LOG)
    head, *pieces = events_of(decoder, log[:-6], b"ab", b"cde")
    assert isinstance(head, Operation)
    assert pieces == [Content(b"ab", 0), Content(b"cde", 2)]
    assert not decoder.is_at_boundary
    with pytest.raises(RecoveryError, match=r"ends at .* within content of a write"):
        decoder.end(is_append_boundary=True)
    with pytest.raises(ValueError, match="can't skip"):
        decoder.skip_to(1000)
    with pytest.raises(RecoveryError, match=r"jumps .* within an operation"):
        decoder.jump(1000)
    assert events_of(decoder, b"f") == [Content(b"f", 5)]
    decoder.jump(1000)
    assert decoder.offset == decoder.fed_offset == 1000


def test_lengths_are_bounded() -> None:
    huge = FIXED_FRAME_WORD + (1 << 31).to_bytes(4, "little")
    decoder = LogDecoder(LOG)
    junk, op = events_of(decoder, huge + frame(seq_no=5))
    assert junk == Junk(0, 8)
    assert isinstance(op, Operation)
    small = LogDecoder(LOG, max_payload_bytes=4)
    assert all(isinstance(event, Junk) for event in events_of(small, frame(seq_no=1 << 40)))


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
    with pytest.raises(RecoveryError, match=f"{reason}.*, at 30 of {LOG}"):
        decoder.next()


def test_what_ends_a_log() -> None:
    torn = frame(seq_no=1)[:-1]
    decoder = LogDecoder(LOG)
    assert events_of(decoder, torn) == []
    with pytest.raises(RecoveryError, match="within an operation"):
        decoder.end(is_append_boundary=True)
    decoder = LogDecoder(LOG)
    assert events_of(decoder, b"xy") == []
    with pytest.raises(RecoveryError, match="within an operation"):
        decoder.end()
    assert decoder.end(is_append_boundary=True) == Junk(0, 2)
    assert decoder.end(is_append_boundary=True) is None


def test_only_recorded_fields_are_encoded() -> None:
    for field in ({"first_offset": 1}, {"last_offset": 1}, {"log": LOG}):
        with pytest.raises(ValueError, match="recorded without"):
            encode_operation(RecordedOp(seq_no=1, **field))
