"""What the page shows."""

from __future__ import annotations

from typing import Any, cast

import pytest

import gazette_aio.protocol as pb
from gazette_aio.console.views import (
    FragmentSums,
    ListWanted,
    journal_detail,
    journal_page,
    journal_row,
    summary,
)


def _listed(name: str) -> pb.ListResponse.Journal:
    return pb.ListResponse.Journal(spec=pb.JournalSpec(name=name, replication=1), mod_revision=7)


def each_step(steps: Any) -> Any:
    """Iterate the steps of some work, and then its result."""
    yield (yield from steps)


def paged(journals: Any, *, offset: int = 0, limit: int = 100, **wanted: Any) -> dict[str, Any]:
    """Return a part of a list, which is made in many steps."""
    *_, page = each_step(journal_page(journals, ListWanted(offset=offset, limit=limit, **wanted)))
    return cast("dict[str, Any]", page)


def _fragment(begin: int, end: int, store: str = "", mod_time: int = 0) -> pb.Fragment:
    return pb.Fragment(begin=begin, end=end, backing_store=store, mod_time=mod_time)


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
    assert (page["total"], len(page["rows"])) == (10_000, 100)
    assert set(looked) == {row["name"] for row in page["rows"]}


def _shown(page: dict[str, Any]) -> list[str]:
    return [
        f"{row['folder']} {row['journals']}" if "folder" in row else row["name"]
        for row in page["rows"]
    ]


_NAMES = (
    *("a/b-c", "a/b.c", "a/b/one/x", "a/b/one/y", "a/b/two", "a/bb", "a/c/d/e/1", "a/c/d/e/2"),
    *("b/only/one", "top"),
)


def counts(page: dict[str, Any]) -> tuple[int, int, int]:
    return page["total"], page["matched"], page["entries"]


def test_folders():
    journals = [_listed(name) for name in sorted(_NAMES)]
    top = paged(journals, in_folders=True)
    assert _shown(top) == ["a/ 8", "b/only/one", "top"]
    assert counts(top) == (10, 10, 3)
    inner = paged(journals, in_folders=True, folder="a/")
    assert _shown(inner) == ["a/b-c", "a/b.c", "a/b/ 3", "a/bb", "a/c/d/e/ 2"]
    assert counts(inner) == (10, 8, 5)
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
    assert counts(found) == (10, 2, 2)
    rest = paged(journals, in_folders=True, folder="a/", text="ONE", offset=1, limit=1)
    assert (_shown(rest), counts(rest)) == (["a/b/one/y"], (10, 2, 2))


@pytest.mark.parametrize(("primary", "first"), [(1, "here/two"), (0, "here/one"), (-1, "here/one")])
def test_the_primary_is_first(primary, first):
    journal = _listed("a/journal")
    for suffix in ("one", "two"):
        journal.route.members.add(zone="here", suffix=suffix)
    journal.route.primary = primary
    members = journal_row(journal)["members"]
    assert (members[0], len(members)) == (first, 2)


@pytest.mark.parametrize(
    ("members", "primary", "suspend", "health"),
    [
        (2, 0, "NONE", "served"),
        (1, 0, "NONE", "short"),
        (1, 0, "PARTIAL", "served"),
        (1, -1, "NONE", "unserved"),
        (0, -1, "NONE", "unserved"),
        (0, -1, "FULL", "suspended"),
    ],
)
def test_health(members, primary, suspend, health):
    journal = _listed("a/journal")
    journal.spec.replication = 2
    journal.spec.suspend.level = pb.JournalSpec.Suspend.Level.Value(suspend)
    for number in range(members):
        journal.route.members.add(zone="here", suffix=f"{number}")
    journal.route.primary = primary
    [row] = paged([journal])["rows"]
    assert row["health"] == health
    sums = list(each_step(summary([journal])))[-1]
    assert sums["health"] == {health: 1}
    assert sums["troubled"] == (["a/journal"] if health in ("short", "unserved") else [])


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
    assert (kept["store"], kept["fragments"], kept["contentBytes"]) == ("", 1, "10")
    assert stored == {
        "store": "file:///",
        "fragments": 2,
        "contentBytes": "25",
        "begin": "0",
        "end": "20",
        "newest": 9,
    }
    assert sums.covered == 30
    assert FragmentSums().rows() == []


def test_offsets_beyond_numbers_of_javascript():
    end = (1 << 63) - 1
    detail = journal_detail(_listed("a/journal"), _sums(_fragment(0, end), _fragment(3, 9)), end)
    assert detail["head"] == detail["covered"] == str(end)
