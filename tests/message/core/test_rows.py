"""The core's side of publishing: stamps, and columns as documents."""

from __future__ import annotations

import math
import random
import struct
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.core import FORM, Stamper, count_objects, table_lines
from gazette_aio.message.uuid import build_uuid

PRODUCER = b"\x01\x02\x03\x04\x05\x06"

clocks = st.one_of(
    st.integers(0, 2**64 - 1),
    # Spans of clocks end here, within which UUIDs differ in their first bytes only.
    st.integers(0, 40).map(lambda n: (7 << 36) - 160 * n),
)
steps = st.sampled_from([160, 16, 1, 7, 0, 1 << 36, 1 << 62])


def uuids(first: int, step: int, count: int) -> list[Any]:
    return [build_uuid(PRODUCER, (first + n * step) % 2**64, 3) for n in range(count)]


@given(clocks, steps, st.integers(0, 30), st.booleans(), st.booleans())
def test_messages_have_uuids_of_consecutive_clocks(
    first: int, step: int, count: int, text: bool, shared: bool
) -> None:
    heads = [b"h"] * count if shared else [b"h%d" % n for n in range(count)]
    rests = [b"r%d" % n for n in range(count)]
    stamper = Stamper(b"h", b"-", PRODUCER, 3, text=text)

    stamped = stamper.messages(None if shared else heads, rests, first, step)

    raw = [str(uuid).encode() if text else uuid.bytes for uuid in uuids(first, step, count)]
    parts = zip(heads, raw, rests, strict=True)
    assert stamped == [b"%b%b-%b" % part for part in parts]


@pytest.mark.parametrize("heads", [[b"h"], [b"h"] * 3])
def test_messages_have_a_head_each(heads: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)|heads"):
        Stamper(b"", b"-", PRODUCER, 3).messages(heads, [b"r"] * 2, 1, 1)


@given(clocks, steps, st.integers(0, 30), st.booleans())
def test_lines_have_uuids_of_consecutive_clocks(
    first: int, step: int, count: int, text: bool
) -> None:
    documents = [b'{"n":%d}' % n for n in range(count)]
    lines = b"".join(document + b"\n" for document in documents)
    stamper = Stamper(b'{"uuid":"', b'",', PRODUCER, 3, text=text)

    stamped = stamper.lines(lines, first, step)

    assert count_objects(lines, False) == count
    wanted = [
        b'{"uuid":"%b","n":%d}\n' % (str(uuid).encode() if text else uuid.bytes, n)
        for n, uuid in enumerate(uuids(first, step, count))
    ]
    assert stamped == b"".join(wanted)
    numbers = [(first + n * step) % 2**64 for n in range(count)]
    assert list(map(stamper.line, documents, numbers, repeat(False))) == wanted


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"", b"7", b' {"a":1}'])
def test_other_lines_are_not_objects_with_members(line: bytes) -> None:
    assert count_objects(b'{"a":1}\n' + line + b"\n", True) is None
    assert Stamper(b"", b"", PRODUCER, 0).line(line, 1, True) is None


def test_a_line_ends_with_a_newline() -> None:
    assert count_objects(b'{"a":1}\n{"b":2}', True) is None
    assert Stamper(b"", b"", PRODUCER, 0).line(b'{"a":\n1}', 1, True) is None


def test_nulls_are_refused_or_not() -> None:
    line = Stamper(b"{", b",", PRODUCER, 0).line
    for document in (b'{"a":null}', b'{"a":"null"}'):
        assert count_objects(document + b"\n", False) is None
        assert count_objects(document + b"\n", True) == 1
        assert line(document, 1, False) is None
        assert line(document, 1, True) is not None


def singles() -> list[float]:
    numbers = [sign * 10.0**power for power in range(-45, 39) for sign in (1, -1)]
    numbers += [0.0, -0.0, 9.9999998e9, 1.0000001e10, 9.9e-7, 123456790.0, 3.4028235e38, 1e-45]
    numbers += [struct.unpack("<f", struct.pack("<I", n * 7919 << 12))[0] for n in range(100)]
    return [struct.unpack("<f", struct.pack("<f", n))[0] for n in numbers if math.isfinite(n)]


def doubles() -> list[float]:
    """Return floats around those that are whole millionths, and some of any length."""
    rng = random.Random(8)
    found = [1e-4, 0.0000999, 0.000101, 1e9, 999999999.999999, 999999999.9999999, 0.29, 0.1 + 0.2]
    for digits in range(9):
        for size in (1e-5, 1e-3, 1.0, 1e3, 1e8, 1e9, 1e10):
            found += [round(rng.uniform(-size, size), digits) for _ in range(50)]
    near = [math.nextafter(value, toward) for value in found for toward in (-math.inf, math.inf)]
    return found + near + [rng.uniform(-1e9, 1e9) for _ in range(500)]


def arrays() -> list[Any]:
    pa = pytest.importorskip("pyarrow")
    days = pa.array([-719528, -1, 0, 59, 11016, 2932896, None], pa.int32())
    seconds = pa.array([-62167219200, -1, 0, 951782400, 253402300799, None], pa.int64())
    small = pa.array([-(2**63) + 1, -1, 0, 1, 2**63 - 1, None], pa.int64())
    texts = pa.array(['"\\/\b\f\n\r\t', "\x00\x1f\x7f", "é€😀", "", None, "plain"])
    decimals = pa.array([0, 1, -15, 12345, 10**12, None]).cast(pa.decimal128(38, 0))
    found: list[Any] = [
        pa.array([True, None, False] * 5),
        pa.array(singles(), pa.float32()),
        pa.array([0.0, -0.0, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, None, 0.1]),
        pa.array(doubles(), pa.float64()),
        texts,
        texts.cast(pa.large_string()),
        texts.dictionary_encode(),
        days.view(pa.date32()),
        pa.array([0, 86_399, None], pa.int32()).view(pa.time32("s")),
        pa.array([1, 86_399_999, None], pa.int32()).view(pa.time32("ms")),
        pa.array([1, 86_399_999_999, None], pa.int64()).view(pa.time64("us")),
        pa.array([1, 86_399_999_999_999, None], pa.int64()).view(pa.time64("ns")),
    ]
    for bits in (8, 16, 32, 64):
        for signed in (True, False):
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            kind = f"{'' if signed else 'u'}int{bits}"
            found.append(pa.array([low, high, 0, None], getattr(pa, kind)()))
    for zone in (None, "UTC", "+03:00"):
        found += [seconds.view(pa.timestamp("s", zone)), small.view(pa.timestamp("ns", zone))]
    for scale in (0, 3, 7, 8, 38, -2):
        buffers = decimals.buffers()
        found.append(pa.Array.from_buffers(pa.decimal128(38, scale), 6, buffers))
    lists = [pa.ListArray, pa.LargeListArray]
    found += [
        cls.from_arrays(pa.array([0, 2, None, 2, 6], kind), texts)
        for cls, kind in zip(lists, (pa.int32(), pa.int64()), strict=True)
    ]
    members = [texts, seconds.view(pa.timestamp("s"))]
    mask = pa.array([False, True] * 3)
    found.append(pa.StructArray.from_arrays(members, ["ü", "b"], mask=mask))
    return found


def test_columns_are_encoded_as_their_values() -> None:
    from gazette_aio.message.publishing import arrow_values

    for array in arrays():
        for start in range(3):
            part = array.slice(start)
            column = arrow_values.column_of("é", part)
            assert (column[1] == "json") == (FORM == "plain"), part.type
            wanted = table_lines([arrow_values.encoded("é", part)])
            assert table_lines([column]) == wanted, part.type
            assert wanted is not None
            assert wanted.count(b"\n") == len(part)


def test_large_rows_before_many_small_ones_take_their_own_memory() -> None:
    pa = pytest.importorskip("pyarrow")
    from gazette_aio.message.publishing import arrow_values

    texts = pa.array(["x" * (1 << 18)] * 64 + [None] * 1_000_000)

    lines = table_lines([arrow_values.column_of("v", texts)])

    assert lines is not None
    assert len(lines) == 64 * ((1 << 18) + len('{"v":""}\n')) + 1_000_000 * len('{"v":null}\n')


SHORT: list[tuple[str, int, int, list[bytes], list[Any]]] = [
    ("other", 0, 1, [b""], []),
    ("int", 3, 1, [b"123"], []),
    ("int", 8, 2, [b"12345678"], []),
    ("bool", 1, 9, [b"\0"], []),
    ("text", 4, 1, [b"\0\0\0\0", b""], []),
    ("text", 4, 1, [struct.pack("<ii", 0, 4), b"abc"], []),
    ("text", 8, 2, [struct.pack("<qqq", 0, 2, 1), b"abc"], []),
    ("text", 8, 1, [struct.pack("<qq", -(2**63), 2**63 - 1), b"abc"], []),
    ("time", 10, 1, [b"12345678"], []),
    ("list", 4, 1, [struct.pack("<ii", 0, 2)], [(b"", "int", 1, 1, 0, None, [b"1"], [])]),
    ("struct", 0, 2, [], [(b'"x":', "int", 1, 1, 0, None, [b"1"], [])]),
    ("json", 0, 2, [b"1\n"], []),
]


@pytest.mark.skipif(FORM == "plain", reason="its columns are encoded values")
@pytest.mark.parametrize("column", SHORT)
def test_columns_with_too_short_buffers_are_refused(column: Any) -> None:
    kind, parameter, rows, buffers, children = column
    with pytest.raises(ValueError, match="described"):
        table_lines([(b'"x":', kind, parameter, rows, 0, None, buffers, children)])


@pytest.mark.skipif(FORM == "plain", reason="its columns are encoded values")
def test_columns_may_not_be_deeper_than_a_limit() -> None:
    column: Any = (b"", "int", 1, 1, 0, None, [b"1"], [])
    for _ in range(5000):
        column = (b"", "struct", 0, 1, 0, None, [], [column])
    with pytest.raises(ValueError, match="levels deep"):
        table_lines([column])
