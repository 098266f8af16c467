"""Regions: the same frames and errors as decoders, whatever the chunks."""

from __future__ import annotations

from itertools import accumulate, pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.framing import (
    CSVFraming,
    FixedFraming,
    Framing,
    NDJSONFraming,
)
from gazette_aio.message.framing.regions import MAX_ROWS, Region, line_splitter
from gazette_aio.protocol.errors import (
    DesyncDetectedError,
    FrameTooLargeError,
    FramingError,
    UnexpectedEOFError,
)
from tests.message.framing.own_framings import OWN_FRAMINGS, SemicolonDecoder, SemicolonFraming

ALL = 1 << 30


FRAMINGS = [
    NDJSONFraming(),
    FixedFraming(),
    CSVFraming(),
    CSVFraming(lenient_eof=True),
    *OWN_FRAMINGS,
]


def rows_of(region: Region):
    assert region.rows == len(region.starts) == len(region.stops) > 0
    for column in (region.starts, region.stops, region.ends):
        assert column.dtype == np.int64
    begins = region.begins().tolist()
    for stop in region.stops.tolist():
        assert not region.line_feeds or region.data[stop : stop + 1] == b"\n"
    return list(zip(begins, region.ends.tolist(), region.payloads(), strict=True))


def error_of(error):
    where = (error.begin, error.end, error.kind) if isinstance(error, FramingError) else ()
    return (type(error), str(error), *where)


def drain_regions(splitter, limit):
    got = []
    while True:
        try:
            region = splitter.next_region(limit)
        except FramingError as error:
            got.append(error_of(error))
            continue
        except UnexpectedEOFError as error:
            return [*got, error_of(error)]
        if region is None:
            return got
        assert region.rows == 1 or region.ends[-1] - region.begin <= limit
        got += rows_of(region)


def drain_decoder(decoder):
    got = []
    while True:
        try:
            frames = decoder.frames()
        except FramingError as error:
            got.append(error_of(error))
            continue
        except UnexpectedEOFError as error:
            return [*got, error_of(error)]
        if frames is None:
            return got
        begins = [frames.begin, *frames.ends[:-1]]
        got += zip(begins, frames.ends, frames.payloads, strict=True)


PIECES = st.one_of(
    st.binary(max_size=20),
    st.binary(max_size=20).map(FixedFraming().encode),
    st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"") + b"\n"),
    st.sampled_from([
        b"a,b\n", b'"a\nb",c\n', b"\n", b"\n\n\n", b"x;y\n;", b"\x66\x33", b"\x66\x33\x93\x36",
        b"\x66\x33\x93\x36\xff\xff\xff\xff", b"\x66\x33\x93\x36\x00\x00\x00\x00", b"0123456789" * 9,
        b'"', b"\r\n",
    ]),
)  # fmt: skip
CONTENT = st.lists(PIECES, max_size=30).map(b"".join)
LIMITS = st.sampled_from([1, 10, 50, ALL])


@st.composite
def chunks_of(draw, content):
    cuts = draw(st.lists(st.integers(0, len(content)), max_size=12))
    return [content[a:b] for a, b in pairwise([0, *sorted(cuts), len(content)])]


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: type(f).__name__)
@given(data=st.data(), content=CONTENT, max_bytes=st.sampled_from([8, 24, 40, 1 << 30]))
def test_regions_are_what_the_decoder_hands_out(framing: Framing, data, content, max_bytes):
    decoder = framing.decoder(1000, max_frame_bytes=max_bytes)
    splitter = framing.splitter(1000, max_frame_bytes=max_bytes)
    expected, got = [], []
    at = 1000
    for chunk in data.draw(chunks_of(content)):
        at += len(chunk)
        decoder.feed(chunk)
        splitter.feed(chunk)
        if data.draw(st.booleans(), "drain"):
            expected += drain_decoder(decoder)
            got += drain_regions(splitter, data.draw(LIMITS, "limit"))
            assert splitter.offset == decoder.offset
            assert splitter.offset + splitter.buffered == at
    decoder.end()
    splitter.end()
    expected += drain_decoder(decoder)
    assert got + drain_regions(splitter, data.draw(LIMITS, "limit")) == expected
    assert splitter.offset == decoder.offset
    # An error of the end is raised by each call.
    assert drain_regions(splitter, ALL) == drain_decoder(decoder)


STEPS = st.one_of(
    PIECES.map(lambda chunk: ("feed", chunk)),
    st.integers(0, 5000).map(lambda offset: ("jump", offset)),
    LIMITS.map(lambda limit: ("drain", limit)),
    st.just(("end", None)),
)


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: type(f).__name__)
@given(steps=st.lists(STEPS, max_size=30), max_bytes=st.sampled_from([24, 1 << 30]))
def test_jumps_and_ends_are_as_those_of_the_decoder(framing: Framing, steps, max_bytes):
    decoder = framing.decoder(7, max_frame_bytes=max_bytes)
    splitter = framing.splitter(7, max_frame_bytes=max_bytes)
    for step, argument in [*steps, ("drain", ALL)]:
        if step == "feed":
            decoder.feed(argument)
            splitter.feed(argument)
        elif step == "jump":
            assert splitter.jump(argument) == decoder.jump(argument)
        elif step == "end":
            decoder.end()
            splitter.end()
        else:
            assert drain_regions(splitter, argument) == drain_decoder(decoder)
            assert splitter.offset == decoder.offset


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: type(f).__name__)
@given(count=st.integers(0, 9), data=st.data())
def test_next_content_is_expected_at_offset_and_buffered(framing: Framing, count, data):
    content = framing.encode(b"a,b") * count
    splitter = framing.splitter(50)
    at = 50
    for chunk in data.draw(chunks_of(content)):
        splitter.feed(chunk)
        at += len(chunk)
        assert splitter.offset + splitter.buffered == at
        if data.draw(st.booleans()):
            splitter.next_region(data.draw(LIMITS))
            assert splitter.offset + splitter.buffered == at


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: type(f).__name__)
def test_chunks_which_are_fed_before_make_one_region(framing: Framing):
    frames = [framing.encode(b"%d,%d" % (i, i)) for i in range(100)]
    content = b"".join(frames)
    splitter = framing.splitter(3)
    for at in range(0, len(content) - 1, 7):
        splitter.feed(content[at : min(at + 7, len(content) - 1)])
    region = splitter.next_region(ALL)
    assert region is not None
    assert region.begin == 3
    assert region.ends.tolist() == list(accumulate(map(len, frames), initial=3))[1:-1]
    assert splitter.next_region(ALL) is None
    splitter.feed(content[-1:])
    region = splitter.next_region(ALL)
    assert region is not None
    assert region.payloads() == [b"99,99"]


@pytest.mark.parametrize(
    "framing", [NDJSONFraming(), FixedFraming()], ids=lambda f: type(f).__name__
)
def test_a_single_chunk_is_not_copied(framing: Framing):
    chunk = b"".join(framing.encode(b"x" * 50) for _ in range(50)) + b"\x66\x33"
    splitter = framing.splitter()
    splitter.feed(chunk)
    first, second = splitter.next_region(200), splitter.next_region(ALL)
    assert first is not None
    assert second is not None
    assert first.data is chunk
    assert second.data is chunk
    assert first.rows + second.rows == 50


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda f: type(f).__name__)
def test_a_limit_is_kept_but_for_single_frames(framing: Framing):
    frames = [framing.encode(b"x" * size) for size in (10, 10, 200, 10, 10)]
    splitter = framing.splitter()
    splitter.feed(b"".join(frames))
    rows = []
    while (region := splitter.next_region(len(frames[0]) * 2)) is not None:
        rows.append(region.rows)
        assert splitter.offset == region.ends[-1]
    assert rows == [2, 1, 2]


def test_slices_are_views_with_their_own_begin():
    splitter = NDJSONFraming().splitter(100)
    splitter.feed(b"a\nbb\nccc\n")
    region = splitter.next_region(ALL)
    assert region is not None
    assert rows_of(region.slice(1)) == [(102, 105, b"bb"), (105, 109, b"ccc")]
    assert rows_of(region.slice(0, 1)) == [(100, 102, b"a")]
    assert rows_of(region.slice(1, 2)) == [(102, 105, b"bb")]
    assert region.slice(1).data is region.data
    assert np.shares_memory(region.slice(1).starts, region.starts)
    empty = region.slice(3)
    assert (empty.rows, empty.begin, empty.begins().tolist()) == (0, 109, [])
    assert region.slice(2).slice(1).begin == 109


def test_frames_before_any_error_of_a_decoder_are_handed_out():
    class Broken(SemicolonDecoder):
        def frames(self):
            frames = super().frames()
            if frames is not None and frames.payloads[0] == b"broken":
                raise KeyError("broken")
            return frames

    class BrokenFraming(SemicolonFraming):
        def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
            return Broken(offset, max_frame_bytes=max_frame_bytes)

    splitter = BrokenFraming().splitter(5)
    for chunk in (b"a;", b"b;", b"broken;", b"c;"):
        splitter.feed(chunk)
    assert rows_of(splitter.next_region(ALL)) == [(5, 7, b"a"), (7, 9, b"b")]
    with pytest.raises(KeyError, match="broken"):
        splitter.next_region(ALL)
    assert rows_of(splitter.next_region(ALL)) == [(16, 18, b"c")]


def test_lines_are_known_as_such():
    def region_of(framing, content):
        splitter = framing.splitter()
        splitter.feed(content)
        region = splitter.next_region(ALL)
        assert region is not None
        return region

    assert region_of(NDJSONFraming(), b"{}\n").line_feeds
    assert not region_of(FixedFraming(), FixedFraming().encode(b"x")).line_feeds
    assert region_of(CSVFraming(), b"a,b\nc,d\n").line_feeds
    assert not region_of(CSVFraming(), b'a,b\n"c\n",d\n').line_feeds
    assert region_of(SemicolonFraming(), b"a;b;").line_feeds
    assert not region_of(SemicolonFraming(), b"a\n;b;").line_feeds


def test_a_fixed_frame_which_is_too_large_is_refused_by_its_header():
    splitter = FixedFraming().splitter(10, max_frame_bytes=100)
    splitter.feed(FixedFraming().encode(b"ok") + b"\x66\x33\x93\x36\xff\xff\xff\xff")
    assert drain_regions(splitter, ALL)[0] == (10, 20, b"ok")
    splitter.feed(b"\x66\x33\x93\x36\xff\xff\xff\xff")
    with pytest.raises(FrameTooLargeError, match="frame of 4294967295 bytes is longer than 100"):
        splitter.next_region(ALL)
    assert splitter.buffered == 0


def test_garbage_is_skipped_up_to_the_next_frame_at_hand():
    splitter = FixedFraming().splitter()
    splitter.feed(b"foobar" + FixedFraming().encode(b"x") + b"abcdefghij")
    assert (splitter.offset, splitter.buffered) == (0, 25)
    with pytest.raises(DesyncDetectedError) as caught:
        splitter.next_region(ALL)
    assert (caught.value.begin, caught.value.end, caught.value.kind) == (0, 6, "desync")
    region = splitter.next_region(ALL)
    assert region is not None
    assert rows_of(region) == [(6, 15, b"x")]
    assert (splitter.offset, splitter.buffered) == (15, 10)
    with pytest.raises(DesyncDetectedError) as caught:
        splitter.next_region(ALL)
    assert (caught.value.begin, caught.value.end) == (15, 22)
    splitter.end()
    with pytest.raises(
        UnexpectedEOFError, match=r"^Peek\(FixedFrameHeaderLength\): unexpected EOF"
    ):
        splitter.next_region(ALL)


def test_a_line_which_is_too_large_is_skipped_to_its_end():
    splitter = NDJSONFraming().splitter(max_frame_bytes=10)
    splitter.feed(b"ok\n" + b"x" * 11)
    assert splitter.next_region(ALL) is not None
    splitter.feed(b"x" * 1000)
    assert (splitter.next_region(ALL), splitter.offset, splitter.buffered) == (None, 3, 1011)
    splitter.feed(b"x\nok\n")
    with pytest.raises(FrameTooLargeError, match="line is longer than 10 bytes") as raised:
        splitter.next_region(ALL)
    assert (raised.value.begin, raised.value.end) == (3, 1016)
    region = splitter.next_region(ALL)
    assert region is not None
    assert rows_of(region) == [(1016, 1019, b"ok")]


def test_regions_of_tiny_frames_are_bounded_in_rows():
    splitter = NDJSONFraming().splitter()
    splitter.feed(b"\n" * (3 * MAX_ROWS))
    sizes = []
    while (region := splitter.next_region(ALL)) is not None:
        sizes.append(region.rows)
    assert sum(sizes) == 3 * MAX_ROWS
    assert max(sizes) <= 2 * MAX_ROWS
    splitter = FixedFraming().splitter()
    splitter.feed(FixedFraming().encode(b"") * (MAX_ROWS + 1))
    got = [splitter.next_region(ALL) for _ in range(3)]
    assert [region and region.rows for region in got] == [MAX_ROWS, 1, None]


# What follows takes minutes if it isn't linear.


@pytest.mark.parametrize(
    "framing", [NDJSONFraming(), FixedFraming()], ids=lambda f: type(f).__name__
)
def test_a_trickle_is_linear(framing: Framing):
    frame = framing.encode(b"x" * (1 << 20))
    splitter = framing.splitter()
    for at in range(0, len(frame) - 1, 16):
        splitter.feed(frame[at : min(at + 16, len(frame) - 1)])
        assert splitter.next_region(ALL) is None
    splitter.feed(frame[-1:])
    region = splitter.next_region(ALL)
    assert region is not None
    assert region.ends.tolist() == [len(frame)]


def test_errors_are_linear():
    content = b"\x66\x33\x93\x36\xff\xff\xff\xff" * (1 << 13)
    splitter = FixedFraming().splitter()
    splitter.feed(content + FixedFraming().encode(b"x"))
    got = drain_regions(splitter, ALL)
    assert len(got) == (1 << 13) + 1
    assert got[-1] == (len(content), len(content) + 9, b"x")
    content = (b"x" * 20 + b"\nok\n") * (1 << 12)
    splitter = NDJSONFraming().splitter(max_frame_bytes=20)
    splitter.feed(content)
    # Private: nothing else counts the bytes which are scanned.
    with mock.patch.object(
        line_splitter, "_find_newlines", wraps=line_splitter._find_newlines
    ) as find:
        assert len(drain_regions(splitter, ALL)) == 2 << 12
    scanned = sum(stop - start for _, start, stop in (call.args for call in find.call_args_list))
    assert scanned < 200 * len(content)


def test_newlines_are_found_across_scanned_blocks(monkeypatch):
    monkeypatch.setattr(line_splitter, "SCAN_BYTES", 4)
    splitter = NDJSONFraming().splitter()
    splitter.feed(b"abc\nabcd\n\n\nabcdefghijk\nx\n")
    assert [row[2] for row in drain_regions(splitter, ALL)] == [
        b"abc", b"abcd", b"", b"", b"abcdefghijk", b"x",
    ]  # fmt: skip
