"""What the page shows."""

from __future__ import annotations

from typing import Any, cast

import gazette_aio.protocol as pb
from gazette_aio.console.views import fragments_by_store, journal_detail, journal_page, journal_row


def _listed(name: str) -> pb.ListResponse.Journal:
    return pb.ListResponse.Journal(spec=pb.JournalSpec(name=name, replication=1), mod_revision=7)


def _fragment(begin: int, end: int, store: str = "", mod_time: int = 0) -> pb.Fragment:
    return pb.Fragment(begin=begin, end=end, backing_store=store, mod_time=mod_time)


def test_pages_of_matching_journals():
    journals = [_listed(f"{kind}/{number:04}") for kind in ("a", "B") for number in range(5000)]
    page = journal_page(journals, "b/", 4990, 100)
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
    page = journal_page(cast("Any", journals), "", 5000, 100)
    assert (page.total, len(page.rows)) == (10_000, 100)
    assert set(looked) == {row.name for row in page.rows}


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


def test_sums_of_fragments():
    stored, kept = fragments_by_store(
        [_fragment(20, 30), _fragment(0, 10, "file:///", 5), _fragment(5, 20, "file:///", 9)]
    )[::-1]
    assert (kept.store, kept.fragments, kept.content_bytes) == ("", 1, "10")
    assert (stored.begin, stored.end, stored.content_bytes, stored.newest) == ("0", "20", "25", 9)


def test_offsets_beyond_numbers_of_javascript():
    end = (1 << 63) - 1
    detail = journal_detail(_listed("a/journal"), [_fragment(0, end), _fragment(3, 9)], end)
    assert detail.head == detail.covered == str(end)
