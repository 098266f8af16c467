"""Durations and quoted text."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.go import text as gotext
from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration, quote, unquote

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
