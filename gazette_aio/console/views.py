"""Views of journals: rows of the page's list, and the parts of one journal.

Offsets and sizes are texts of decimal digits: numbers of JavaScript end at 2^53.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_STEP: Final = 64
"""Journals between turns of other tasks."""


class JournalRow(msgspec.Struct, frozen=True, rename="camel"):
    """A journal in the list."""

    name: str
    replication: int
    members: tuple[str, ...]
    """Brokers that serve it, the primary first."""
    suspend: str
    """`NONE`, `PARTIAL` or `FULL`."""
    stores: tuple[str, ...]


class FolderRow(msgspec.Struct, frozen=True, rename="camel"):
    """Journals of the list in one folder."""

    folder: str
    """Prefix of the journals' names, which ends in a slash."""
    journals: int
    """Number of the journals."""


class JournalPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the list."""

    total: int
    """Number of journals that the selector matches."""
    matched: int
    """Number of these journals in the folder whose name contains the text."""
    entries: int
    """Number of all rows."""
    offset: int
    """Number of rows before the first one."""
    rows: tuple[JournalRow | FolderRow, ...]


class Head(msgspec.Struct, frozen=True, rename="camel"):
    """Write head of a journal."""

    name: str
    head: str
    """Offset in decimal digits; empty if it's unknown."""
    problem: str
    """Reason why the offset is unknown, or empty."""


class StoreRow(msgspec.Struct, frozen=True, rename="camel"):
    """Fragments of a journal in one store."""

    store: str
    """URL of the store; empty for fragments that aren't stored yet."""
    fragments: int
    content_bytes: str
    """Length before compression."""
    begin: str
    end: str
    newest: int
    """Unix seconds of the last change of a file; zero without files."""


class JournalDetail(msgspec.Struct, frozen=True, rename="camel"):
    """Details of a journal."""

    row: JournalRow
    revision: str
    content_type: str
    """Content type of its messages, or empty."""
    labels: tuple[tuple[str, str], ...]
    codec: str
    fragment_length: str
    head: str
    stores: tuple[StoreRow, ...]
    covered: str
    """Bytes that fragments cover, each offset counted once."""


def journal_row(journal: pb.ListResponse.Journal) -> JournalRow:
    """Return the row of a listed journal."""
    spec, route = journal.spec, journal.route
    members = [f"{member.zone}/{member.suffix}" for member in route.members]
    if 0 < route.primary < len(members):
        members.insert(0, members.pop(route.primary))
    return JournalRow(
        name=spec.name,
        replication=spec.replication,
        members=tuple(members),
        suspend=shown_name(pb.JournalSpec.Suspend.Level, spec.suspend.level),
        stores=tuple(spec.fragment.stores),
    )


class ListWanted(msgspec.Struct, frozen=True):
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
) -> Generator[None, None, JournalPage]:
    """Return a part of the list, in steps of bounded length.

    Args:
        journals: Journals by name.
        wanted: The part.
    """
    begin, end = _range(journals, wanted.folder, 0, len(journals))
    rows: list[JournalRow | FolderRow] = []
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
            rows.append(
                FolderRow(folder=folder, journals=after - begin)
                if folder
                else journal_row(journals[begin])
            )
        entries += 1
        matched += after - begin
        begin = after
        if entries % _STEP == 0:
            yield
    return JournalPage(
        total=len(journals),
        matched=matched,
        entries=entries,
        offset=wanted.offset,
        rows=tuple(rows),
    )


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
        self._covered = self._end = 0

    def add(self, fragment: pb.Fragment) -> None:
        """Add the next fragment, in the order of their begins."""
        store = self._stores.get(fragment.backing_store)
        if store is None:
            store = self._stores[fragment.backing_store] = _StoreSum(fragment)
        store.add(fragment)
        # Fragments may overlap, within a store and between stores.
        self._covered += max(fragment.end - max(fragment.begin, self._end), 0)
        self._end = max(self._end, fragment.end)

    def rows(self) -> tuple[StoreRow, ...]:
        """Return the sums, by store."""
        return tuple(held.row(store) for store, held in sorted(self._stores.items()))

    @property
    def covered(self) -> int:
        """Bytes that fragments cover, each offset counted once."""
        return self._covered


class _StoreSum:
    def __init__(self, first: pb.Fragment) -> None:
        self._begin, self._end = first.begin, first.end
        self._count = self._bytes = self._newest = 0

    def add(self, fragment: pb.Fragment) -> None:
        self._count += 1
        self._bytes += fragment.end - fragment.begin
        self._begin = min(self._begin, fragment.begin)
        self._end = max(self._end, fragment.end)
        self._newest = max(self._newest, fragment.mod_time)

    def row(self, store: str) -> StoreRow:
        return StoreRow(
            store=store,
            fragments=self._count,
            content_bytes=str(self._bytes),
            begin=str(self._begin),
            end=str(self._end),
            newest=self._newest,
        )


def journal_detail(
    journal: pb.ListResponse.Journal, fragments: FragmentSums, head: int
) -> JournalDetail:
    """Return the details of a journal.

    Args:
        journal: The listed journal.
        fragments: Sums of its fragments.
        head: Its write head.
    """
    spec = journal.spec
    return JournalDetail(
        row=journal_row(journal),
        revision=str(journal.mod_revision),
        content_type=next(
            (label.value for label in spec.labels.labels if label.name == pb.CONTENT_TYPE), ""
        ),
        labels=tuple((label.name, label.value) for label in spec.labels.labels),
        codec=shown_name(pb.CompressionCodec, spec.fragment.compression_codec),
        fragment_length=str(spec.fragment.length),
        head=str(head),
        stores=fragments.rows(),
        covered=str(fragments.covered),
    )
