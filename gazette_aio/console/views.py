"""What the page shows of journals: rows of a list, and the parts of one journal.

Offsets and sizes are texts of decimal digits: numbers of JavaScript end at 2^53.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")


class JournalRow(msgspec.Struct, frozen=True, rename="camel"):
    """A journal in the list."""

    name: str
    replication: int
    members: tuple[str, ...]
    """Brokers that serve it, the primary first."""
    suspend: str
    """`NONE`, `PARTIAL` or `FULL`."""
    stores: tuple[str, ...]


class JournalPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the list."""

    total: int
    """Journals that the selector matches."""
    matched: int
    """Those of them whose name has the text."""
    offset: int
    """Number of journals before the first row."""
    rows: tuple[JournalRow, ...]


class Head(msgspec.Struct, frozen=True, rename="camel"):
    """Write head of a journal."""

    name: str
    head: str
    """Empty if it isn't known."""
    problem: str
    """Why it isn't known, or empty."""


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
    """Time of the last change of a file, in seconds of Unix; zero if there is none."""


class JournalDetail(msgspec.Struct, frozen=True, rename="camel"):
    """All about a journal."""

    row: JournalRow
    revision: str
    labels: tuple[tuple[str, str], ...]
    codec: str
    fragment_length: str
    head: str
    stores: tuple[StoreRow, ...]
    covered: str
    """Bytes of distinct offsets that fragments have."""


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
        suspend=pb.JournalSpec.Suspend.Level.Name(spec.suspend.level),
        stores=tuple(spec.fragment.stores),
    )


def having(items: Sequence[T], name: Callable[[T], str], text: str) -> Sequence[T]:
    """Return the items whose name has a text, in any case."""
    wanted = text.casefold()
    return [item for item in items if wanted in name(item).casefold()] if wanted else items


def journal_page(
    journals: Sequence[pb.ListResponse.Journal], text: str, offset: int, limit: int
) -> JournalPage:
    """Return the rows from `offset` on of the journals whose name has a text, in any case."""
    matched = having(journals, lambda item: item.spec.name, text)
    rows = tuple(journal_row(item) for item in matched[offset : offset + limit])
    return JournalPage(total=len(journals), matched=len(matched), offset=offset, rows=rows)


def journal_detail(
    journal: pb.ListResponse.Journal, fragments: Sequence[pb.Fragment], head: int
) -> JournalDetail:
    """Return all about a journal.

    Args:
        journal: The journal as it's listed.
        fragments: Its fragments.
        head: Its write head.
    """
    spec = journal.spec
    return JournalDetail(
        row=journal_row(journal),
        revision=str(journal.mod_revision),
        labels=tuple((label.name, label.value) for label in spec.labels.labels),
        codec=pb.CompressionCodec.Name(spec.fragment.compression_codec),
        fragment_length=str(spec.fragment.length),
        head=str(head),
        stores=fragments_by_store(fragments),
        covered=str(_covered(fragments)),
    )


def fragments_by_store(fragments: Iterable[pb.Fragment]) -> tuple[StoreRow, ...]:
    """Return sums of fragments, by their store."""
    by_store: dict[str, list[pb.Fragment]] = {}
    for fragment in fragments:
        by_store.setdefault(fragment.backing_store, []).append(fragment)
    return tuple(
        StoreRow(
            store=store,
            fragments=len(held),
            content_bytes=str(sum(fragment.end - fragment.begin for fragment in held)),
            begin=str(min(fragment.begin for fragment in held)),
            end=str(max(fragment.end for fragment in held)),
            newest=max(fragment.mod_time for fragment in held),
        )
        for store, held in sorted(by_store.items())
    )


def _covered(fragments: Iterable[pb.Fragment]) -> int:
    # Fragments may overlap, within a store and between stores.
    covered = end = 0
    for fragment in sorted(fragments, key=lambda item: item.begin):
        covered += max(fragment.end - max(fragment.begin, end), 0)
        end = max(end, fragment.end)
    return covered
