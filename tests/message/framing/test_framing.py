"""Framings: splitting of content, by numbered cases and random chunking."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import (
    FIXED_FRAME_HEADER_LENGTH,
    FIXED_FRAME_WORD,
    CSVFraming,
    FixedFraming,
    Frame,
    Framing,
    NDJSONFraming,
    unpack_fixed_frame,
    unpack_line,
)
from gazette_aio.message.framing.csv import encode_record, parse_record
from gazette_aio.protocol.errors import (
    DesyncDetectedError,
    FrameTooLargeError,
    FramingError,
    GazetteError,
    UnexpectedEOFError,
    ValidationError,
)

FRAMINGS = [NDJSONFraming(), FixedFraming(), CSVFraming(), CSVFraming(lenient_eof=True)]


def events(decoder, chunks, *, batch=False):
    got = []

    def drain():
        while True:
            try:
                if batch:
                    frames = decoder.frames()
                    if frames is None:
                        return True
                    begin = frames.begin
                    for payload, end in zip(frames.payloads, frames.ends, strict=True):
                        got.append((begin, end, payload))
                        begin = end
                    continue
                frame = decoder.next_frame()
            except UnexpectedEOFError as error:
                got.append(str(error))
                return False
            except FramingError as error:
                got.append((error.begin, error.end, error.kind))
                continue
            if frame is None:
                return True
            got.append(tuple(frame))

    for chunk in chunks:
        decoder.feed(chunk)
        drain()
    decoder.end()
    if drain():
        got.append("EOF")
    return got


def cuts(data, sizes):
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: f.content_type)
@given(
    data=st.lists(
        st.sampled_from(
            [
                b"\n",
                b"\r\n",
                b'"',
                b",",
                b"a",
                b"bc",
                FIXED_FRAME_WORD,
                b"\x00\x00",
                b"\x02\x00\x00\x00",
                b"\x08",
            ]
        ),
        max_size=40,
    ).map(b"".join),
    sizes=st.lists(st.integers(1, 9), max_size=30),
    limit=st.sampled_from([6, 1 << 20]),
)
def test_chunking_makes_no_difference(framing, data, sizes, limit):
    if framing.content_type == FixedFraming.content_type:
        # Where garbage is cut depends on what's buffered: what's left out and the frames don't.
        def frames(got):
            return [e for e in got if isinstance(e, tuple) and e[2] != "desync"], got[-1]
    else:

        def frames(got):
            return got

    def make():
        return framing.decoder(1000, max_frame_bytes=limit)

    whole = events(make(), [data])
    assert frames(events(make(), cuts(data, sizes))) == frames(whole)
    assert frames(events(make(), [data[i : i + 1] for i in range(len(data))])) == frames(whole)
    assert events(make(), [data], batch=True) == whole
    assert events(make(), cuts(data, sizes), batch=True) == events(make(), cuts(data, sizes))
    at = 1000
    for event in whole:
        if isinstance(event, tuple):
            assert event[0] == at
            at = event[1]


def test_fixed_ends():
    frame = FixedFraming().encode(b"")
    assert len(frame) == FIXED_FRAME_HEADER_LENGTH
    decoder = FixedFraming().decoder()
    assert events(decoder, [frame + b"\n"]) == [(0, 8, b""), "EOF"]
    assert (decoder.offset, decoder.buffered) == (8, 1)
    assert (
        events(FixedFraming().decoder(), [b"\n\n"])[-1]
        == "Peek(FixedFrameHeaderLength): unexpected EOF"
    )


def test_fixed_lengths_are_bounded():
    decoder = FixedFraming().decoder(max_frame_bytes=100)
    decoder.feed(FIXED_FRAME_WORD + b"\xff\xff\xff\xff" + b"y" * 20 + FixedFraming().encode(b"x"))
    with pytest.raises(FrameTooLargeError):
        decoder.next_frame()
    with pytest.raises(DesyncDetectedError):
        decoder.next_frame()
    assert decoder.next_frame().payload == b"x"


def test_trickle_is_linear():
    decoder = NDJSONFraming().decoder()
    fixed = FixedFraming().decoder()
    frame = FixedFraming().encode(b"x" * 200_000)
    for i in range(0, 200_000, 10):
        decoder.feed(b"x" * 10)
        fixed.feed(frame[i : i + 10])
    assert decoder.next_frame() is None
    assert decoder.buffered == 200_000
    assert fixed.next_frame() is None
    decoder.feed(b"\n")
    fixed.feed(frame[200_000:])
    assert decoder.next_frame().end == 200_001
    assert fixed.next_frame().payload == b"x" * 200_000


def test_lines():
    decoder = NDJSONFraming().decoder(100)
    data = b"a line\n" + b"x" * 24 + b"\nextra"
    got = events(decoder, [data[:16], data[16:]])
    assert got == [(100, 107, b"a line"), (107, 132, b"x" * 24), "unexpected EOF"]
    assert (decoder.offset, decoder.buffered) == (132, 5)
    # What comes after an end goes on with the partial line.
    decoder.feed(b"\n")
    assert decoder.next_frame() == (132, 138, b"extra")
    assert decoder.next_frame() is None


def test_a_line_holds_no_newline():
    with pytest.raises(ValidationError, match="one line"):
        NDJSONFraming().encode(b'{"a":\n1}')


def test_lines_over_the_limit():
    for chunks in (
        [b"ab\n" + b"x" * 20 + b"\ncd\n"],
        [b"ab\n" + b"x" * 20, b"x" * 5 + b"\ncd\n"],
        [b"x" * 20, b"x", b"\ncd\n"],
    ):
        got = events(NDJSONFraming().decoder(max_frame_bytes=10), chunks)
        assert (got[-2][2], got[-1]) == (b"cd", "EOF")
        assert sum(e[2] == "too_large" for e in got if isinstance(e, tuple)) == 1
    assert events(NDJSONFraming().decoder(max_frame_bytes=10), [b"x" * 20]) == ["unexpected EOF"]


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: f.content_type)
@given(data=st.data(), limit=st.sampled_from([12, 16, 24]))
def test_what_is_too_large_is_the_same_in_any_chunks(framing, data, limit):
    """Also the span of its error, at the end of which reading can continue."""
    pieces = st.one_of(
        st.integers(0, 40).map(lambda size: framing.encode(b"x" * size)),
        st.integers(0, 40).map(lambda size: b"y" * size),
        st.sampled_from([b"\n", b"\r\n", b'"', b'"z\nz', b'\nz"\n', FIXED_FRAME_WORD]),
    )
    content = b"".join(data.draw(st.lists(pieces, max_size=12)))
    refused = [
        [
            event
            for event in events(framing.decoder(1000, max_frame_bytes=limit), chunks)
            if event[2] == "too_large"
        ]
        for chunks in (
            [content],
            [content[at : at + 1] for at in range(len(content))],
            cuts(content, data.draw(st.lists(st.integers(0, 30), max_size=12))),
        )
    ]
    assert refused[0] == refused[1] == refused[2]
    if framing.is_lines:
        for begin, end, _ in refused[0]:
            line = content[begin - 1000 : end - 1000]
            assert limit < len(line)
            assert line.index(b"\n") == len(line) - 1
            assert begin == 1000 or content[begin - 1001 : begin - 1000] == b"\n"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_records_of_several_lines_over_the_limit(size):
    # The limit is of whole records: no line of these is as long.
    content = b'"ab\ncd\nef\ngh\nij\n"kl","m\n."\n'
    chunks = [content[at : at + size] for at in range(0, len(content), size)]
    decoder = CSVFraming(same_width=False).decoder(max_frame_bytes=12)
    got = events(decoder, chunks)
    assert got == [(0, 13, "too_large"), (13, 16, b"ij"), (16, 27, b'"kl","m\n."'), "EOF"]
    # A record of exactly the limit, and one of a byte less and more.
    for limit, is_refused in ((6, True), (7, False), (8, False)):
        decoder = CSVFraming().decoder(max_frame_bytes=limit)
        decoder.feed(b'"ab\ncd\n')
        assert decoder.buffered == (0 if is_refused else 7)
    # The last line counts, and blank lines before the record don't.
    record = b'"ab\ncd"\n'
    for limit, event in ((7, (0, 11, "too_large")), (8, (0, 11, b'"ab\ncd"'))):
        content = b"\n\n\n" + record + b"e\n"
        chunks = [content[at : at + size] for at in range(0, len(content), size)]
        got = events(CSVFraming().decoder(max_frame_bytes=limit), chunks)
        assert got == [event, (11, 13, b"e"), "EOF"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_last_record_over_the_limit(size):
    for content in (b"a\n" + b"x" * 9, b'a\n"bc\nde\nf"'):
        for limit, refused in ((7, True), (8, True), (9, False)):
            decoder = CSVFraming(lenient_eof=True).decoder(max_frame_bytes=limit)
            chunks = [content[at : at + size] for at in range(0, len(content), size)]
            last = "too_large" if refused else content[2:]
            assert events(decoder, chunks) == [(0, 2, b"a"), (2, len(content), last), "EOF"]


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: f.content_type)
def test_jumps(framing):
    assert isinstance(framing, Framing)
    whole = framing.encode(b"abc")
    decoder = framing.decoder(-1)
    assert decoder.jump(50) == 0
    decoder.feed(whole[:-1])
    assert decoder.next_frame() is None
    assert decoder.jump(1000) == len(whole) - 1
    decoder.feed(whole)
    assert decoder.next_frame() == (1000, 1000 + len(whole), b"abc")


def test_helpers():
    assert unpack_line(b"ab\ncd") == b"ab\n"
    assert unpack_line(b"ab\ncd", 3) is None
    frame = FixedFraming().encode(b"abc")
    assert unpack_fixed_frame(b"x" + frame + b"y", 1) == frame
    assert unpack_fixed_frame(frame[:-1]) is unpack_fixed_frame(frame[:5]) is None
    with pytest.raises(DesyncDetectedError) as raised:
        unpack_fixed_frame(b"foobar" + frame)
    assert (raised.value.begin, raised.value.end) == (0, 6)


def test_strict_csv_ends():
    assert events(CSVFraming().decoder(), [b"uuid,bar,baz\n"]) == [(0, 13, b"uuid,bar,baz"), "EOF"]
    for cut in (b"a,b", b'a,"b\n', b'a,"b\nc'):
        assert events(CSVFraming().decoder(), [cut]) == ["unexpected EOF"]
    lenient = CSVFraming(lenient_eof=True)
    assert events(lenient.decoder(), [b"a,b"]) == [(0, 3, b"a,b"), "EOF"]
    assert events(lenient.decoder(), [b'a,"b\nc"']) == [(0, 7, b'a,"b\nc"'), "EOF"]
    assert events(lenient.decoder(), [b'a,"b\nc'])[0][2] == "decode"


def test_csv_field_counts():
    decoder = CSVFraming().decoder()
    decoder.feed(b"\n\r\na,b,c\r\n\nd,e\nf,g,h\n")
    assert decoder.next_frame() == (0, 10, b"a,b,c")
    with pytest.raises(FramingError) as raised:
        decoder.next_frame()
    assert str(raised.value) == "record on line 5: wrong number of fields"
    assert decoder.next_frame().payload == b"f,g,h"
    decoder = CSVFraming(same_width=False).decoder()
    decoder.feed(b'a"b\na,b,c\nd,e\n"f",g,h,i\n')
    with pytest.raises(FramingError, match="bare"):
        decoder.next_frame()
    assert [decoder.next_frame().payload for _ in range(3)] == [b"a,b,c", b"d,e", b'"f",g,h,i']


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r")),
        min_size=1,
        max_size=6,
    )
)
def test_csv_records_round_trip(fields):
    raw = [field.encode() for field in fields]
    record = encode_record(raw)
    if record:
        assert parse_record(record) == raw
        decoder = CSVFraming().decoder()
        decoder.feed(CSVFraming().encode(record))
        assert parse_record(decoder.next_frame().payload) == raw
    text = record.decode()
    if record and "\x00" not in text:
        assert next(csv.reader(io.StringIO(text + "\n", newline=""))) == fields


def test_not_one_record():
    for bad in (b'a,"b', b"a\nb", b'a"b', b'"a"b'):
        with pytest.raises(GazetteError):
            parse_record(bad)


def test_the_offset_follows_a_line_which_is_skipped_as_too_large():
    for framing in (CSVFraming(), NDJSONFraming()):
        decoder = framing.decoder(max_frame_bytes=24)
        fed = 0
        for size in (30, 8, 5):
            decoder.feed(b"x" * size)
            fed += size
            assert decoder.next_frame() is None
            assert (decoder.offset, decoder.buffered) == (0, fed)
        decoder.feed(b"rest\nuuid,1\n")
        with pytest.raises(FrameTooLargeError):
            decoder.next_frame()
        assert decoder.offset == 48
        assert decoder.next_frame() == Frame(48, 55, b"uuid,1")
