"""What the page shows."""

from __future__ import annotations

from typing import Any, cast

import gazette_aio.protocol as pb
from gazette_aio.console.views import (
    FolderRow,
    FragmentSums,
    JournalPage,
    ListWanted,
    journal_detail,
    journal_page,
    journal_row,
)
from tests.loop_steps import SLICE_CALLS, counted_calls


def _listed(name: str) -> pb.ListResponse.Journal:
    return pb.ListResponse.Journal(spec=pb.JournalSpec(name=name, replication=1), mod_revision=7)


def paged(journals: Any, *, offset: int = 0, limit: int = 100, **wanted: Any) -> JournalPage:
    """Return a part of a list, which is made in many steps."""
    steps = journal_page(journals, ListWanted(offset=offset, limit=limit, **wanted))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("JournalPage", end.value)


def _fragment(begin: int, end: int, store: str = "", mod_time: int = 0) -> pb.Fragment:
    return pb.Fragment(begin=begin, end=end, backing_store=store, mod_time=mod_time)


def test_pages_of_matching_journals():
    journals = [_listed(f"{kind}/{number:04}") for kind in ("a", "B") for number in range(5000)]
    page = paged(journals, text="b/", offset=4990)
    assert (page.total, page.matched, page.offset) == (10000, 5000, 4990)
    assert [row.name for row in page.rows] == [f"B/{number}" for number in range(4990, 5000)]


def test_a_page_looks_at_the_rows_that_it_shows():
    looked: list[str] = []

    class Listed:
        def __init__(self, name: str) -> None:
            self._listed = _listed(name)

        @property
        def spec(self) -> pb.JournalSpec:
            return self._listed.spec

        @property
        def route(self) -> pb.Route:
            looked.append(self._listed.spec.name)
            return self._listed.route

    journals = [Listed(f"a/{number:05}") for number in range(10_000)]
    page = paged(cast("Any", journals), offset=5000)
    assert (page.total, len(page.rows)) == (10_000, 100)
    assert set(looked) == {row.name for row in page.rows}


def _shown(page: JournalPage) -> list[str]:
    return [
        f"{row.folder} {row.journals}" if isinstance(row, FolderRow) else row.name
        for row in page.rows
    ]


_NAMES = (
    *("a/b-c", "a/b.c", "a/b/one/x", "a/b/one/y", "a/b/two", "a/bb", "a/c/d/e/1", "a/c/d/e/2"),
    *("b/only/one", "top"),
)


def test_folders():
    journals = [_listed(name) for name in sorted(_NAMES)]
    top = paged(journals, in_folders=True)
    assert _shown(top) == ["a/ 8", "b/only/one", "top"]
    assert (top.total, top.matched, top.entries) == (10, 10, 3)
    inner = paged(journals, in_folders=True, folder="a/")
    assert _shown(inner) == ["a/b-c", "a/b.c", "a/b/ 3", "a/bb", "a/c/d/e/ 2"]
    assert (inner.total, inner.matched, inner.entries) == (10, 8, 5)
    assert _shown(paged(journals, in_folders=True, folder="a/b/")) == ["a/b/one/ 2", "a/b/two"]
    assert _shown(paged(journals, in_folders=True, folder="a/", offset=2, limit=2)) == [
        "a/b/ 3",
        "a/bb",
    ]
    assert _shown(paged(journals, in_folders=True, folder="a/missing/")) == []


def test_a_text_looks_into_all_folders_below():
    journals = [_listed(name) for name in sorted(_NAMES)]
    found = paged(journals, in_folders=True, folder="a/", text="ONE")
    assert _shown(found) == ["a/b/one/x", "a/b/one/y"]
    assert (found.total, found.matched, found.entries) == (10, 2, 2)


def test_long_lists_are_looked_at_in_short_steps():
    journals = [_listed(f"a/{number // 10:04}/{number:05}") for number in range(10_000)]
    for wanted in (
        ListWanted(0, 100, "a/", in_folders=True),
        ListWanted(0, 100, "a/", "999"),
        ListWanted(0, 100),
    ):
        steps = journal_page(journals, wanted)
        count = 0
        with counted_calls() as calls:
            most = before = 0
            for _ in steps:
                count += 1
                most = max(most, calls.count - before)
                before = calls.count
        assert count > 10
        assert most < SLICE_CALLS


def test_the_primary_is_first():
    journal = _listed("a/journal")
    for suffix in ("one", "two"):
        journal.route.members.add(zone="here", suffix=suffix)
    journal.route.primary = 1
    assert journal_row(journal).members == ("here/two", "here/one")


def test_journals_without_primary():
    journal = _listed("a/journal")
    journal.route.members.add(zone="here", suffix="one")
    journal.route.primary = -1
    assert journal_row(journal).members == ("here/one",)


def _sums(*fragments: pb.Fragment) -> FragmentSums:
    sums = FragmentSums()
    for fragment in fragments:
        sums.add(fragment)
    return sums


def test_sums_of_fragments():
    sums = _sums(
        _fragment(0, 10, "file:///", 9), _fragment(5, 20, "file:///", 5), _fragment(20, 30)
    )
    kept, stored = sums.rows()
    assert (kept.store, kept.fragments, kept.content_bytes) == ("", 1, "10")
    assert (stored.begin, stored.end, stored.content_bytes, stored.newest) == ("0", "20", "25", 9)
    assert sums.covered == 30
    assert FragmentSums().rows() == ()


def test_offsets_beyond_numbers_of_javascript():
    end = (1 << 63) - 1
    detail = journal_detail(_listed("a/journal"), _sums(_fragment(0, end), _fragment(3, 9)), end)
    assert detail.head == detail.covered == str(end)
