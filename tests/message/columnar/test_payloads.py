"""Payloads of the rows which the columnar sequencer addresses."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.columnar.payloads import Payloads
from gazette_aio.message.framing.regions import Region
from tests import extent


def region_of(payloads: list[bytes], *, line_feeds: bool = True, header: bytes = b"") -> Region:
    """Return a region of `payloads`, each behind `header`."""
    data, starts, stops, ends = bytearray(), [], [], []
    for payload in payloads:
        data += header
        starts.append(len(data))
        data += payload
        stops.append(len(data))
        if line_feeds:
            data += b"\n"
        ends.append(len(data))
    return Region(
        bytes(data),
        0,
        np.array(starts, np.int64),
        np.array(stops, np.int64),
        np.array(ends, np.int64),
        line_feeds,
    )


def indices(*rows: int) -> np.ndarray:
    return np.array(rows, np.int64)


def lines_of(payloads: Payloads, rows: np.ndarray) -> list[bytes]:
    lines = payloads.take_lines(rows)
    data, offsets = lines.data.to_pybytes(), lines.offsets.tolist()
    assert lines.rows == len(rows)
    assert offsets[0] == 0
    assert offsets[-1] == len(data)
    return [data[begin:end] for begin, end in pairwise(offsets)]


payload_lists = st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=12)


@extent.examples(50)
@given(st.data(), st.booleans(), st.sampled_from([b"", b"\x66\x33\x93\x36abcd"]))
def test_rows_are_those_of_a_list(data, line_feeds, header):
    payloads, model = Payloads(), []
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 2))):
            added = data.draw(payload_lists)
            payloads.add(region_of(added, line_feeds=line_feeds, header=header))
            model += added
        assert payloads.rows == len(model)
        rows = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=20)) if model else []
        at = indices(*rows)
        taken = payloads.take(at)
        assert taken.type == pa.binary()
        taken.validate(full=True)
        assert taken.to_pylist() == [model[row] for row in rows]
        assert payloads.take_list(at) == [model[row] for row in rows]
        assert lines_of(payloads, at) == [model[row] + b"\n" for row in rows]
        # Of rows which are few enough, none is wanted twice.
        distinct = list(dict.fromkeys(rows))
        pieces = list(payloads.pieces(indices(*distinct), max_bytes=50))
        assert [row for piece in pieces for row in piece.tolist()] == distinct
        for piece in pieces:
            assert len(piece) == 1 or sum(len(model[row]) + 1 for row in piece) <= 50
        kept = sorted(data.draw(st.sets(st.integers(0, len(model) - 1)))) if model else []
        payloads.keep(indices(*kept))
        model = [model[row] for row in kept]
        live = sum(map(len, model)) + len(model) * line_feeds
        assert payloads.held_bytes <= 2 * live
    everything = np.arange(len(model))
    assert payloads.take(everything).to_pylist() == model


def test_one_row_does_not_pin_its_region():
    payloads = Payloads()
    payloads.add(region_of([b"x" * 1000] * 4000))
    assert payloads.held_bytes == 4000 * 1001
    payloads.keep(indices(1234))
    assert payloads.held_bytes == 1001
    assert payloads.take_list(indices(0)) == [b"x" * 1000]


def test_a_region_which_is_kept_is_not_copied():
    payloads, region = Payloads(), region_of([b"x" * 1000] * 2000)
    payloads.add(region)
    payloads.keep(np.arange(0, 2000))
    payloads.keep(np.arange(0, 1100))
    for count in range(1, 16):
        # A copy would hold the rows which are kept, and no others.
        assert payloads.held_bytes == count * len(region.data)
        payloads.add(region_of([b"y" * 1000] * 2000))
        payloads.keep(np.arange(payloads.rows))
    payloads.keep(np.arange(0, 900))
    assert payloads.held_bytes == 900 * 1001


def test_a_trickle_of_pending_rows_takes_few_buffers():
    payloads = Payloads()
    for row in range(600):
        payloads.add(region_of([b"%d" % row]))
        payloads.keep(np.arange(payloads.rows))
        buffers = int(re.search(r"(\d+) buffers", repr(payloads))[1])
        assert buffers <= 2 + payloads.held_bytes.bit_length()
    assert payloads.take_list(np.arange(600)) == [b"%d" % row for row in range(600)]


def test_a_run_of_lines_is_not_copied():
    payloads, region = Payloads(), region_of([b"a", b"bb", b"", b"cc"])
    payloads.add(region)
    address = pa.py_buffer(region.data).address
    lines = payloads.take_lines(indices(1, 2, 3))
    assert (lines.data.address, lines.data.size) == (address + 2, 7)
    assert lines.data.to_pybytes() == b"bb\n\ncc\n"
    for rows in (indices(0, 2), indices(1, 0), indices(1, 1), indices(0, 2, 1, 3)):
        assert payloads.take_lines(rows).data.address != address
    # Blank lines between frames, as CSV has, are none of theirs.
    gaps = Payloads()
    gaps.add(region_of([b"a", b"b"], header=b"\n"))
    assert lines_of(gaps, indices(0, 1)) == [b"a\n", b"b\n"]


def test_payloads_keep_their_own_line_feeds():
    payloads = Payloads()
    payloads.add(region_of([b"a\nb", b"c"], line_feeds=False, header=b"head"))
    payloads.keep(indices(0, 1))
    assert lines_of(payloads, indices(1, 0)) == [b"c\n", b"a\nb\n"]


def test_no_rows():
    payloads = Payloads()
    payloads.add(region_of([]))
    payloads.keep(indices())
    assert payloads.take(indices()).to_pylist() == []
    assert lines_of(payloads, indices()) == []
    assert list(payloads.pieces(indices())) == []
    assert (payloads.rows, payloads.held_bytes) == (0, 0)
    assert repr(payloads) == "<Payloads 0 rows, 0 buffers of 0 bytes>"


def test_more_than_arrow_can_hold_is_refused_and_can_be_cut():
    payloads, size = Payloads(), 1 << 20
    payloads.add(region_of([b"x" * size]))
    rows = np.zeros(2048, np.int64)
    with pytest.raises(OverflowError, match="too many for one array"):
        payloads.take(rows)
    with pytest.raises(OverflowError):
        payloads.take_lines(rows)
    assert [len(piece) for piece in payloads.pieces(rows)] == [1023, 1023, 2]
    assert [len(piece) for piece in payloads.pieces(rows[:3], size)] == [1, 1, 1]


def test_rows_of_a_buffer_which_is_too_large_are_copied(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.columnar.payloads.MAX_OFFSET", 100)
    messages = [bytes([97 + row]) * 30 for row in range(4)]
    for line_feeds in (True, False):
        region = region_of(messages, line_feeds=line_feeds, header=b"head")
        payloads = Payloads()
        for row in range(4):
            payloads.add(region.slice(row, row + 1))
            assert payloads.take_list(indices(row)) == [messages[row]]
            assert lines_of(payloads, indices(row)) == [messages[row] + b"\n"]
        assert payloads.held_bytes <= 4 * 31
        with pytest.raises(OverflowError, match="region of"):
            payloads.add(region)
