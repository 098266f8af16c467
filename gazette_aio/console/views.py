"""Views of journals: rows of the page's list, and the parts of one journal.

Offsets and sizes are texts of decimal digits: numbers of JavaScript end at 2^53.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_STEP: Final = 64
"""Journals between turns of other tasks."""
_TROUBLED: Final = 20
"""Journals with problems that a summary names."""


def journal_row(journal: pb.ListResponse.Journal) -> dict[str, Any]:
    """Return the row of a listed journal. The primary is the first of its members."""
    spec, route = journal.spec, journal.route
    members = [f"{member.zone}/{member.suffix}" for member in route.members]
    if 0 < route.primary < len(members):
        members.insert(0, members.pop(route.primary))
    return {
        "name": spec.name,
        "replication": spec.replication,
        "members": members,
        "health": _health(journal),
        "suspend": shown_name(pb.JournalSpec.Suspend.Level, spec.suspend.level),
        "stores": list(spec.fragment.stores),
    }


def _health(journal: pb.ListResponse.Journal) -> str:
    """Return `served`, `suspended`, `unserved` without a primary, or `short` of replicas."""
    suspend = pb.JournalSpec.Suspend
    level, members = journal.spec.suspend.level, len(journal.route.members)
    if level == suspend.FULL:
        return "suspended"
    if not members or journal.route.primary == -1:
        return "unserved"
    wanted = 1 if level == suspend.PARTIAL else journal.spec.replication
    return "short" if members < wanted else "served"


def summary(
    journals: Sequence[pb.ListResponse.Journal], folder: str = ""
) -> Generator[None, None, dict[str, Any]]:
    """Return sums of the journals of a folder, in steps of bounded length.

    Returns:
        The number of `journals`, the number of them by `health`, the first of those that aren't
        served as they should be as `troubled`, their `stores`, and their `brokers`: of each the
        number of journals of which it's the primary, and the number of all its journals.
    """
    begin, end = folder_range(journals, folder)
    health: Counter[str] = Counter()
    primaries: Counter[str] = Counter()
    replicas: Counter[str] = Counter()
    stores: set[str] = set()
    troubled: list[str] = []
    for index in range(begin, end):
        row = journal_row(journals[index])
        health[row["health"]] += 1
        replicas.update(row["members"])
        if row["health"] in ("served", "short"):
            primaries[row["members"][0]] += 1
        stores.update(row["stores"])
        if row["health"] in ("unserved", "short") and len(troubled) < _TROUBLED:
            troubled.append(row["name"])
        if index % _STEP == 0:
            yield
    return {
        "journals": end - begin,
        "health": health,
        "troubled": troubled,
        "stores": sorted(stores),
        "brokers": [(name, primaries[name], number) for name, number in sorted(replicas.items())],
    }


@dataclasses.dataclass(frozen=True, slots=True)
class ListWanted:
    """Requested part of a list."""

    offset: int
    """Number of rows before the part."""
    limit: int
    """Most rows of the part."""
    folder: str = ""
    """Prefix of names, which ends in a slash."""
    text: str = ""
    """Text that names must contain, ignoring case."""
    in_folders: bool = False
    """Whether each subfolder is one row, unless there's a text."""


def journal_page(
    journals: Sequence[pb.ListResponse.Journal], wanted: ListWanted
) -> Generator[None, None, dict[str, Any]]:
    """Return a part of the list, in steps of bounded length.

    Args:
        journals: Journals by name.
        wanted: The part.

    Returns:
        The `total` number of journals, how many of them `matched` folder and text, the number of
        all rows as `entries`, and the `rows` of the part: of journals, and of folders with their
        `summary()`.
    """
    begin, end = folder_range(journals, wanted.folder)
    rows: list[dict[str, Any]] = []
    last = wanted.offset + wanted.limit
    entries = matched = 0
    text = wanted.text.casefold()
    while begin < end:
        after, folder = begin + 1, ""
        if wanted.in_folders and not text:
            after, folder = _entry(journals, wanted.folder, begin, end)
        elif text and text not in journals[begin].spec.name.casefold():
            begin = after
            if begin % _STEP == 0:
                yield
            continue
        if wanted.offset <= entries < last:
            if folder:
                rows.append({"folder": folder, **(yield from summary(journals, folder))})
            else:
                rows.append(journal_row(journals[begin]))
        entries += 1
        matched += after - begin
        begin = after
        if entries % _STEP == 0:
            yield
    return {"total": len(journals), "matched": matched, "entries": entries, "rows": rows}


def _entry(
    journals: Sequence[pb.ListResponse.Journal], folder: str, begin: int, end: int
) -> tuple[int, str]:
    """Return the end of the journals of one row, and their folder, or empty for one journal."""
    name = journals[begin].spec.name
    slash = name.find("/", len(folder))
    if slash == -1:
        return begin + 1, ""
    _, after = _range(journals, name[: slash + 1], begin, end)
    if after == begin + 1:
        return after, ""
    # Names are sorted, so folders of the first and the last are folders of all.
    last = journals[after - 1].spec.name
    while (further := name.find("/", slash + 1)) != -1 and last.startswith(name[: further + 1]):
        slash = further
    return after, name[: slash + 1]


def is_folder(name: str) -> bool:
    """Return whether this is the name of a folder. That of all journals is empty."""
    return not name or name.endswith("/")


def summed_journals(
    journals: Sequence[pb.ListResponse.Journal], names: Sequence[str], most: int
) -> dict[str, list[str]]:
    """Return the journals of folders, and each journal as its own.

    Args:
        journals: Journals by name.
        names: Names of folders and journals.
        most: Most journals of all folders. Folders are left out that have more than are left.
    """
    summed = {name: [name] for name in names if not is_folder(name)}
    counted: set[str] = set()
    for name in filter(is_folder, names):
        begin, end = folder_range(journals, name)
        if end - begin <= most:
            inside = [journal.spec.name for journal in journals[begin:end]]
            if len(counted.union(inside)) <= most:
                counted.update(inside)
                summed[name] = inside
    return summed


def folder_range(journals: Sequence[pb.ListResponse.Journal], folder: str) -> tuple[int, int]:
    """Return the range of the journals of a folder, or of all of them for an empty name."""
    return _range(journals, folder, 0, len(journals))


def _range(
    journals: Sequence[pb.ListResponse.Journal], folder: str, begin: int, end: int
) -> tuple[int, int]:
    """Return the range of the journals of a folder, within a range."""
    if not folder:
        return begin, end
    # The character after the slash is greater than that of each name in the folder.
    beyond = folder[:-1] + chr(ord("/") + 1)
    first = bisect_left(journals, folder, begin, end, key=_name)
    return first, bisect_left(journals, beyond, first, end, key=_name)


def _name(journal: pb.ListResponse.Journal) -> str:
    return journal.spec.name


class FragmentSums:
    """Sums of the fragments of a journal, by store. The fragments aren't kept."""

    def __init__(self) -> None:
        self._stores: dict[str, _StoreSum] = {}
        self._end = 0
        self.covered: int = 0
        """Bytes that fragments cover, each offset counted once."""

    def add(self, fragment: pb.Fragment) -> None:
        """Add the next fragment, in the order of their begins."""
        store = self._stores.setdefault(fragment.backing_store, _StoreSum(fragment.begin))
        store.fragments += 1
        store.content_bytes += fragment.end - fragment.begin
        store.end = max(store.end, fragment.end)
        store.newest = max(store.newest, fragment.mod_time)
        # Fragments may overlap, within a store and between stores.
        self.covered += max(fragment.end - max(fragment.begin, self._end), 0)
        self._end = max(self._end, fragment.end)

    def rows(self) -> list[dict[str, Any]]:
        """Return the sums, by the URL of the store: empty for fragments that aren't stored yet.

        `contentBytes` is the length before compression, and `newest` is the last change of a file
        in Unix seconds, or zero without files.
        """
        return [
            {
                "store": url,
                "fragments": store.fragments,
                "contentBytes": str(store.content_bytes),
                "begin": str(store.begin),
                "end": str(store.end),
                "newest": store.newest,
            }
            for url, store in sorted(self._stores.items())
        ]


@dataclasses.dataclass(slots=True)
class _StoreSum:
    begin: int
    end: int = 0
    fragments: int = 0
    content_bytes: int = 0
    newest: int = 0


def journal_detail(
    journal: pb.ListResponse.Journal, fragments: FragmentSums, head: int
) -> dict[str, Any]:
    """Return the details of a journal.

    Args:
        journal: The listed journal.
        fragments: Sums of its fragments.
        head: Its write head.
    """
    spec = journal.spec
    labels = [(label.name, label.value) for label in spec.labels.labels]
    return {
        "row": journal_row(journal),
        "revision": str(journal.mod_revision),
        "contentType": next((value for name, value in labels if name == pb.CONTENT_TYPE), ""),
        "labels": labels,
        "codec": shown_name(pb.CompressionCodec, spec.fragment.compression_codec),
        "fragmentLength": str(spec.fragment.length),
        "head": str(head),
        "stores": fragments.rows(),
        "covered": str(fragments.covered),
    }
