"""Views of shards: the values that the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

import gazette_aio.protocol.consumer as pc
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gazette_aio.consumer.api.lags import Lag


_STEP: Final = 64
"""Shards between turns of other tasks."""


class ShardRow(msgspec.Struct, frozen=True, rename="camel"):
    """A shard in the list."""

    id: str
    status: str
    """Status of the shard, as its members report it together."""
    members: tuple[str, ...]
    """Members that have it with their statuses, the primary first."""
    sources: tuple[str, ...]
    """Journals that it reads."""
    problems: tuple[str, ...]
    """Errors that members report."""


class SourceLag(msgspec.Struct, frozen=True, rename="camel"):
    """How far a shard is behind a journal that it reads."""

    journal: str
    bytes: str
    """Bytes that are left to read; empty if the journal isn't served."""


class ShardLag(msgspec.Struct, frozen=True, rename="camel"):
    """How far a shard is behind its sources."""

    id: str
    bytes: str
    """Bytes that are left to read altogether; empty if that isn't known of all sources."""
    sources: tuple[SourceLag, ...]
    """By source; empty if no primary tells the progress of the shard."""


class ShardPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the list."""

    total: int
    """Shards that the selector matches."""
    matched: int
    """Those of them whose ID has the text."""
    offset: int
    """Number of shards before the first row."""
    rows: tuple[ShardRow, ...]


def shard_row(shard: pc.ListResponse.Shard) -> ShardRow:
    """Return the row of a listed shard."""
    reduced = pc.ReplicaStatus()
    for status in shard.status:
        pc.reduce_status(reduced, status)
    members = [
        f"{member.zone}/{member.suffix} {shown_name(pc.ReplicaStatus.Code, status.code)}"
        for member, status in zip(shard.route.members, shard.status, strict=False)
    ]
    if 0 < shard.route.primary < len(members):
        members.insert(0, members.pop(shard.route.primary))
    return ShardRow(
        id=shard.spec.id,
        status=shown_name(pc.ReplicaStatus.Code, reduced.code),
        members=tuple(members),
        sources=tuple(source.journal for source in shard.spec.sources),
        problems=tuple(error for status in shard.status for error in status.errors),
    )


def shard_lag(shard: str, lag: Lag) -> ShardLag:
    """Return the lag of a shard, by its ID."""
    by_source = lag or {}
    known = [left for left in by_source.values() if left is not None]
    is_known = lag is not None and len(known) == len(by_source)
    return ShardLag(
        id=shard,
        bytes=str(sum(known)) if is_known else "",
        sources=tuple(
            SourceLag(journal=journal, bytes="" if left is None else str(left))
            for journal, left in by_source.items()
        ),
    )


def shard_page(
    shards: Sequence[pc.ListResponse.Shard], text: str, offset: int, limit: int
) -> Generator[None, None, ShardPage]:
    """Return the rows from `offset` on of the shards whose ID has a text, in any case.

    It's done in steps of bounded length.
    """
    wanted = text.casefold()
    rows: list[ShardRow] = []
    matched = 0
    for number, shard in enumerate(shards, 1):
        if wanted in shard.spec.id.casefold():
            if offset <= matched < offset + limit:
                rows.append(shard_row(shard))
            matched += 1
        if number % _STEP == 0:
            yield
    return ShardPage(total=len(shards), matched=matched, offset=offset, rows=tuple(rows))
