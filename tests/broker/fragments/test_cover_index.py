"""The cover set of fragments, and reads which are answered from it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.cover_index import (
    OFFSET_JUMP_AGE_SECONDS,
    FragmentCover,
    IndexEntry,
    pack,
    query,
)


def span(begin: int, end: int, mod_time: int = 0) -> IndexEntry:
    return IndexEntry(pb.Fragment(begin=begin, end=end, mod_time=mod_time))


def spans(text: str) -> list[IndexEntry]:
    return [span(*map(int, part.split("-"))) for part in text.split(",") if part]


def cover_of(added: Iterable[IndexEntry]) -> FragmentCover:
    cover = FragmentCover()
    for each in added:
        cover.add(each)
    return cover


def shown(cover: Iterable[IndexEntry]) -> str:
    return ",".join(f"{each.begin}-{each.end}" for each in cover)


@pytest.mark.parametrize(
    ("added", "left"),
    [
        ("100-200,200-300,201-301", "100-200,200-300,201-301"),
        ("100-200,200-300,300-400,400-500,150-500", "100-200,150-500"),
        ("100-200,200-300,199-300", "100-200,199-300"),
        ("100-200,200-300,200-301", "100-200,200-301"),
        ("100-200,200-300,300-400,400-500,150-450", "100-200,150-450,400-500"),
        ("100-200,200-300,300-400,150-350", "100-200,150-350,300-400"),
        ("100-200,300-400,200-300", "100-200,200-300,300-400"),
        ("100-200,300-400,201-299", "100-200,201-299,300-400"),
        ("100-200,200-300,300-400,100-300", "100-300,300-400"),
        ("100-200,200-300,300-400,99-200", "99-200,200-300,300-400"),
        ("200-300,300-400,199-200", "199-200,200-300,300-400"),
        (
            "100-150,149-201,200-250,250-300,299-351,350-400,200-300,300-400,100-200",
            "100-200,149-201,200-300,299-351,300-400",
        ),
    ],
)
def test_add(added: str, left: str) -> None:
    assert shown(cover_of(spans(added))) == left


@pytest.mark.parametrize(
    ("span", "accepted"),
    [
        ("101-200", False),
        ("100-199", False),
        ("100-200", True),
        ("201-300", False),
        ("200-299", False),
        ("301-400", False),
        ("400-400", False),
    ],
)
def test_covered_members_are_refused(span: str, accepted: bool) -> None:
    cover = cover_of(spans("100-200,200-300,300-400"))
    assert cover.add(spans(span)[0]) is accepted
    assert shown(cover) == "100-200,200-300,300-400"


def test_an_equal_span_is_replaced() -> None:
    cover = cover_of([span(0, 10)])
    assert cover.add(span(0, 10, mod_time=5))
    assert [member.mod_time for member in cover] == [5]


def test_lookup() -> None:
    cover = cover_of(spans("100-200,149-201,200-250,250-300,299-351,350-400,500-600"))
    cover = cover_of(spans("100-200,149-201,200-300,299-351,300-400,500-600"))
    found = {0: 0, 100: 0, 148: 0, 149: 1, 199: 1, 200: 2, 298: 2, 299: 3, 300: 4, 399: 4}
    for offset, index in found.items():
        assert cover.lookup(offset) == (index, offset != 0)
    for offset, index in {400: 5, 401: 5, 499: 5, 600: 6}.items():
        assert cover.lookup(offset) == (index, False)
    assert cover.lookup(599) == (5, True)
    assert (FragmentCover().begin, FragmentCover().end) == (0, 0)


def test_without_covered() -> None:
    local = FragmentCover()
    for each in spans(
        "99-105,100-110,110-120,130-210,150-225,151-300,152-301,300-350,301-360,360-401,400-450"
    ):
        local.add(each)
    listed = cover_of(spans("100-200,150-225,225-250,250-300,301-400"))
    assert shown(local.without_covered(listed)) == "99-105,152-301,300-350,360-401,400-450"


_SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda t: span(t[0], t[0] + t[1])),
    max_size=24,
)


@given(_SPANS)
def test_a_naive_model_agrees(added: list[IndexEntry]) -> None:
    cover = FragmentCover()
    model: list[IndexEntry] = []
    for each in added:
        begin, end = each.begin, each.end
        inside = any(
            m.begin <= begin and end <= m.end and (m.begin, m.end) != (begin, end) for m in model
        )
        accepted = begin < end and not inside
        assert cover.add(each) is accepted
        if accepted:
            model = [m for m in model if not (begin <= m.begin and m.end <= end)]
            model = sorted([*model, each], key=lambda m: m.begin)
    assert list(cover) == model
    for offset in range(55):
        index, found = cover.lookup(offset)
        covering = [m for m in model if m.begin <= offset < m.end]
        assert found is bool(covering)
        if found:
            assert cover[index].end == max(m.end for m in covering)
        else:
            assert index == sum(m.begin <= offset for m in model)


@given(_SPANS, _SPANS)
def test_a_difference_keeps_what_is_not_covered(
    left: list[IndexEntry], right: list[IndexEntry]
) -> None:
    ours, theirs = cover_of(left), cover_of(right)
    offsets = {offset for m in theirs for offset in range(m.begin, m.end)}
    kept = list(ours.without_covered(theirs))
    assert kept == [m for m in ours if not set(range(m.begin, m.end)) <= offsets]


@given(_SPANS, st.integers(0, 40), st.integers(0, 12))
def test_members_inside_a_range_are_dropped(
    added: list[IndexEntry], begin: int, length: int
) -> None:
    cover = cover_of(added)
    members, end = list(cover), begin + length
    cover.drop_inside(begin, end)
    assert list(cover) == [m for m in members if not (begin <= m.begin and m.end <= end)]


@given(_SPANS, st.integers(0, 55))
def test_a_part_of_a_set_is_its_own(added: list[IndexEntry], offset: int) -> None:
    cover = cover_of(added)
    part = cover.members_from(offset)
    expected = [member for member in cover if member.begin >= offset]
    cover.drop_inside(0, 100)
    assert list(part) == expected
    assert part.last_mod_time == (expected[-1].mod_time if expected else 0)
    assert not len(cover)


def test_listed_fragments_are_packed() -> None:
    cover = FragmentCover("test/journal")
    listed: list[pb.Fragment] = []
    for number, url in enumerate(("file:///a/", "file:///b/")):
        fragment = pb.Fragment(
            journal="test/journal",
            begin=number * 10,
            end=number * 10 + 10,
            sum=pb.sha1_sum(url.encode()),
            compression_codec=pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
            backing_store=url,
            mod_time=-number,
            path_postfix="date=é/x" if number else "",
        )
        packed = pack(fragment, cover.begin_store(url))
        assert cover.insert(fragment.begin, fragment.end, fragment.mod_time, packed)
        listed.append(fragment)
    assert [entry.fragment for entry in cover] == listed
    local = IndexEntry(pb.Fragment(journal="test/journal", begin=20, end=30))
    cover.add(local)
    assert cover[2] is local
    assert (cover.begin, cover.end, cover.last_mod_time) == (0, 30, 0)


NOW = 1_700_000_000
_TIMED = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 9), st.sampled_from((0, -5, 5, 9, NOW))).map(
        lambda t: span(t[0], t[0] + t[1], t[2])
    ),
    max_size=24,
)


@given(_TIMED, st.integers(0, 40), st.sampled_from((0, 6, 10, NOW + 1)))
def test_reads_skip_as_one_by_one(
    added: list[IndexEntry], offset: int, begin_mod_time: int
) -> None:
    cover = cover_of(added)
    expected = offset
    hit: IndexEntry | None = None
    while hit is None:
        index, found = cover.lookup(expected)
        if index == len(cover):
            break
        member = cover[index]
        if not found and (not member.mod_time or (index and member.mod_time == NOW)):
            break
        expected = max(expected, member.begin)
        if member.mod_time and member.mod_time < begin_mod_time:
            expected = member.end
        else:
            hit = member
    found_hit, effective = query(cover, offset, begin_mod_time=begin_mod_time, now_seconds=NOW)
    assert effective == expected
    assert found_hit is hit


def _read(cover: FragmentCover, offset: int, begin_mod_time: int = 0, now: int = NOW) -> str:
    hit, effective = query(cover, offset, begin_mod_time=begin_mod_time, now_seconds=now)
    return f"{effective}" if hit is None else f"{hit.begin}@{effective}"


def test_reads_jump_to_the_first_persisted_fragment() -> None:
    assert _read(cover_of([span(100, 300)]), 0) == "0"
    assert _read(cover_of([span(100, 300, mod_time=NOW)]), 0) == "100@100"


def test_reads_jump_over_old_holes() -> None:
    cover = cover_of([span(100, 200, NOW), span(300, 400, NOW)])
    assert _read(cover, 250) == "250"
    assert _read(cover, 250, now=NOW + OFFSET_JUMP_AGE_SECONDS) == "250"
    assert _read(cover, 250, now=NOW + OFFSET_JUMP_AGE_SECONDS + 1) == "300@300"
    cover.add(span(200, 260))
    assert _read(cover, 250) == "200@250"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(50, 200), (150, 200), (200, 200), (350, 400), (400, 400), (500, 500)],
)
def test_fragments_modified_earlier_are_skipped(offset: int, expected: int) -> None:
    begin = NOW
    cover = cover_of(
        [
            span(100, 200, begin - 10),
            span(200, 300, begin),
            span(300, 400, begin - 1),
            span(400, 500, begin + 100),
            span(500, 600),
        ]
    )
    hit, effective = query(cover, offset, begin_mod_time=begin, now_seconds=NOW)
    assert hit is not None
    assert effective == expected
