"""Durations, quoted text, and layouts of times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.go import text as gotext
from gazette_aio.protocol.go import time as gotime
from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration, quote, unquote
from tests.protocol.support import error_of

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (1_500_000, "1.5ms"),
        (10**9, "1s"),
        (90 * 10**9, "1m30s"),
        (3600 * 10**9, "1h0m0s"),
        (25 * 3600 * 10**9, "25h0m0s"),
        (1234_567_000_000, "20m34.567s"),
        (-1, "-1ns"),
        (-90 * 10**9, "-1m30s"),
        ((1 << 63) - 1, "2562047h47m16.854775807s"),
        (-(1 << 63), "-2562047h47m16.854775808s"),
    ],
)
def test_durations(nanoseconds: int, text: str):
    assert format_duration(nanoseconds) == text
    assert pb.parse_duration(text) == nanoseconds


@given(INT64)
def test_durations_round_trip(nanoseconds):
    assert pb.parse_duration(format_duration(nanoseconds)) == nanoseconds
    assert duration_nanoseconds(pb.duration_proto(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("+5m", 300 * 10**9),
        ("1.5h", 5400 * 10**9),
        (".5s", 5 * 10**8),
        ("1.s", 10**9),
        ("1us1μs1µs", 3000),
        ("1h1h", 7200 * 10**9),
        ("0.0000000001s", 0),
    ],
)
def test_spellings_of_durations(text: str, nanoseconds: int):
    assert pb.parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "s",
        "1",
        "1d",
        ".s",
        "1.5",
        "1h ",
        "9e9s",
        "10000000h",
        "1" * 300 + "s",
        "--1s",
        "1\ns",
    ],
)
def test_invalid_durations(text: str):
    with pytest.raises(pb.ValidationError, match=r"^time: "):
        pb.parse_duration(text)


def test_durations_of_protobuf():
    negative = pb.duration_proto(-1_500_000_000)
    assert (negative.seconds, negative.nanos) == (-1, -500_000_000)
    assert pb.duration_proto(timedelta(days=-1, microseconds=1)) == pb.duration_proto(
        -86_399_999_999_000
    )


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", '""'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        ("\x00\x7f", '"\\x00\\x7f"'),
        ("é日\u00a0\u200b\U0001f600\U000e0001", '"é日\\u00a0\\u200b😀\\U000e0001"'),
        ("\ud800", '"\\ufffd"'),
        ("a\udcff", '"a\\xff"'),  # A byte of an environment that isn't UTF-8.
    ],
)
def test_quoting(text: str, quoted: str):
    assert quote(text) == quoted


@given(st.text())
def test_quoted_text_is_one_line(text):
    assert quote(text).isprintable()
    assert unquote(quote(text)) == text
    assert gotext.byte_length(text) == len(text.encode("utf-8"))


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        (r'"\x41b\101\u00e9\U0001f600\xc3\xa9"', "AbAé😀é"),
        (r'"\xff\377"', "\udcff\udcff"),
        ('"é\t\x7f"', "é\t\x7f"),
    ],
)
def test_literals(literal: str, text: str):
    assert unquote(literal) == text


@pytest.mark.parametrize(
    "literal",
    [
        *("", '"', "a", "'a'", '"a', 'a"', '"a"b"', '"a" "b"', '"\n"', r'"\'"', r'"\"', r'"\x4"'),
        *(
            r'"\400"',
            r'"\18"',
            r'"\ud800"',
            r'"\U00110000"',
            r'"\N{DIGIT ONE}"',
            r'"\d"',
            '"""a"""',
        ),
    ],
)
def test_no_literals(literal: str):
    with pytest.raises(pb.ValidationError):
        unquote(literal)


TIME = 1_700_000_000_123_450_000  # 2023-11-14 22:13:20.12345, a Tuesday.


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("2006-01-02T15:04:05Z07:00", "2023-11-14T22:13:20Z"),
        ("Mon, 02 Jan 2006 15:04:05 MST", "Tue, 14 Nov 2023 22:13:20 UTC"),
        ("Monday January _2 3:4:5PM pm 06", "Tuesday November 14 10:13:20PM pm 23"),
        ("03 002 __2 1 2", "10 318 318 11 14"),
        (".000 ,000000 .999 .999999999 .9999", ".123 ,123450 .123 .12345 .1234"),
        ("-0700 -07:00 -07 Z0700 Z07 -07:00:00 -070000", "+0000 +00:00 +00 Z Z +00:00:00 +000000"),
        ("year=2006/_2006", "year=2023/_2023"),
        ("Month Janet Money", "Month Janet Money"),
        (".0001 .0x", ".0011 .1x"),
        ("日 é", "日 é"),
    ],
)
def test_layouts(layout: str, text: str):
    assert gotime.format_time(TIME, layout) == text


def test_fractions_which_are_zero():
    assert gotime.format_time(0, "05.999|05.000|05,9") == "00|00.000|00"


def test_times():
    assert gotime.format_time(gotime.ZERO_TIME) == "0001-01-01 00:00:00 +0000 UTC"
    moment = datetime(2023, 11, 14, 23, 13, 20, 123450, tzinfo=timezone(timedelta(hours=1)))
    assert gotime.unix_nanoseconds(moment) == TIME
    assert gotime.unix_nanoseconds(datetime(2023, 11, 14, 22, 13, 20, 123450)) == TIME  # noqa: DTZ001
    assert gotime.unix_nanoseconds(TIME) == TIME
    for beyond in (gotime.ZERO_TIME - 1, 253_402_300_800 * 10**9):
        assert "out of range" in (error_of(gotime.format_time, beyond) or "")


@given(st.integers(gotime.ZERO_TIME // 10**9, 253_402_300_799))
def test_dates_are_those_of_the_library(seconds):
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    text = gotime.format_time(seconds * 10**9, "2006-01-02 15:04:05 002 Mon")
    names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert text == (
        f"{expected.year:04}-{expected.month:02}-{expected.day:02} {expected.time().isoformat()} "
        f"{expected.timetuple().tm_yday:03} {names[expected.weekday()]}"
    )
