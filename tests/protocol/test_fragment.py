"""Fragments: names, paths and sums."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.fragment import codec_name
from tests import golden
from tests.protocol.support import (
    error_of,
    fragment,
)

NONE = pb.CompressionCodec.NONE
GZIP = pb.CompressionCodec.GZIP


def load(section: str) -> list[dict]:
    cases = golden.load("fragments.json")[section]
    assert cases
    return cases


def test_names():
    for case in load("names"):
        built = fragment(case)
        parts = [built.sum.part1, built.sum.part2, built.sum.part3]
        assert parts == case["sum_parts"]
        assert pb.content_length(built) == case["content_length"]
        assert pb.content_name(built) == case["content_name"]
        assert pb.content_path(built) == case["content_path"]


def test_parsing():
    for case in load("parse"):
        error = error_of(pb.parse_fragment, case["journal"], case["name"])
        assert error == case["error"], case
        if error is None:
            parsed = pb.parse_fragment(case["journal"], case["name"])
            assert parsed == fragment(case["fragment"])
            assert pb.content_path(parsed) == case["content_path"]


def test_extensions():
    for case in load("codec_extension"):
        assert pb.codec_extension(case["value"]) == case["extension"]
        assert codec_name(case["value"]) == case["codec"]
    for case in load("codec_from_extension"):
        error = error_of(pb.codec_from_extension, case["extension"])
        assert error == case["error"]
        if error is None:
            codec = pb.codec_from_extension(case["extension"])
            assert codec_name(codec) == case["codec"]
    with pytest.raises(pb.ValidationError, match=r"^invalid value \(INVALID\)$"):
        pb.codec_extension(0)
    with pytest.raises(pb.ValidationError, match=r"^invalid value \(77\)$"):
        pb.codec_extension(77)


def test_sums():
    for case in load("sha1"):
        total = pb.sha1_sum(bytes.fromhex(case["content"]))
        assert pb.sum_to_digest(total).hex() == case["digest"]
        assert (total.part1, total.part2, total.part3) == (
            case["part1"],
            case["part2"],
            case["part3"],
        )
        assert pb.sum_from_digest(bytes.fromhex(case["digest"])) == total
        assert pb.sum_is_zero(total) == case["is_zero"]
    assert pb.sum_is_zero(pb.SHA1Sum())
    with pytest.raises(pb.ValidationError, match=r"^invalid SHA1Sum length: 0102$"):
        pb.sum_from_digest(b"\x01\x02")


def test_sums_of_any_kind_of_buffer():
    total = pb.sha1_sum(b"foobar")
    assert pb.sha1_sum(memoryview(b"foobar")) == pb.sha1_sum(bytearray(b"foobar")) == total


journals = st.lists(
    st.text("abcdefgh0123-_+=%.é", min_size=4, max_size=12).filter(lambda part: part.strip(".")),
    min_size=1,
    max_size=4,
).map("/".join)
postfixes = st.just("") | journals
offsets = st.integers(0, (1 << 63) - 1)
codecs = st.sampled_from([number for number in pb.CompressionCodec.values() if number])


@given(journals, postfixes, st.tuples(offsets, offsets).map(sorted), st.binary(), codecs)
def test_names_round_trip(journal, postfix, bounds, content, codec):
    built = pb.Fragment(
        journal=journal,
        begin=bounds[0],
        end=bounds[1],
        sum=pb.sha1_sum(content),
        compression_codec=codec,
        path_postfix=postfix,
    )
    path = pb.content_path(built)
    assert path.startswith(f"{journal}/")
    assert pb.parse_fragment(journal, path[len(journal) + 1 :]) == built
    assert pb.sum_to_digest(built.sum) == hashlib.sha1(content).digest()


def test_content_path_of_an_unchecked_name_may_climb():
    climbing = pb.Fragment(journal="../../etc/passwd", compression_codec=NONE)
    path = pb.content_path(climbing)
    assert path.startswith("../../etc/passwd/")
    with pytest.raises(pb.ValidationError, match="leads out of its root"):
        pb.join_below("/var/lib/fragments", path)


def test_a_path_postfix_may_climb_into_another_journal():
    climbing = pb.Fragment(journal="a/journal", path_postfix="../other", compression_codec=NONE)
    pb.validate(climbing)
    assert pb.content_path(climbing).startswith("a/other/")
    parts = climbing.journal, climbing.path_postfix, pb.content_name(climbing)
    with pytest.raises(pb.ValidationError, match="leads out of its root"):
        pb.join_below("/var/lib/fragments", *parts)
    climbing.path_postfix = "date=1"
    joined = pb.join_below("/root", climbing.journal, "date=1", pb.content_name(climbing))
    assert joined == f"/root/{pb.content_path(climbing)}"


@pytest.mark.parametrize(
    "part",
    ["..", "../a", "a/../..", "a/../../b", "/etc/passwd", "/", "//a", "a\0b", "./../a", "a/../../"],
)
def test_joining_never_leaves_the_root(part: str):
    with pytest.raises(pb.ValidationError):
        pb.join_below("/root", part)
    with pytest.raises(pb.ValidationError):
        pb.join_below("", part)
    # Nor does a later part climb above its own start.
    with pytest.raises(pb.ValidationError):
        pb.join_below("/root", "deep/er", part)


def test_joining():
    assert pb.join_below("/root", "a/./b", "c/../d") == "/root/a/b/d"
    assert pb.join_below("/root", "", "a") == "/root/a"
    assert pb.join_below("", "a/b") == "a/b"
    assert pb.join_below("/root") == "/root"
    assert pb.join_below("/root", "..a/b..") == "/root/..a/b.."
