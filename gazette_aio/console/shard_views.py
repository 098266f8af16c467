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
    """Status of the shard, reduced from the reports of its members."""
    members: tuple[str, ...]
    """Members of the shard with their statuses, the primary first."""
    sources: tuple[str, ...]
    """Journals that the shard reads."""
    problems: tuple[str, ...]
    """Errors that members report."""


class SourceLag(msgspec.Struct, frozen=True, rename="camel"):
    """Lag of a shard in one source."""

    journal: str
    bytes: str
    """Bytes left to read, in decimal digits; empty if the journal isn't served."""


class ShardLag(msgspec.Struct, frozen=True, rename="camel"):
    """Lag of a shard in all sources."""

    id: str
    bytes: str
    """Bytes left to read in all sources, in decimal digits; empty if a source's lag is unknown."""
    sources: tuple[SourceLag, ...]
    """Lags by source; empty if no primary reports the progress of the shard."""


class ShardPage(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the list."""

    total: int
    """Number of shards that the selector matches."""
    matched: int
    """Number of these shards whose ID contains the text."""
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
    """Return the rows from `offset` on of the shards whose ID contains a text, ignoring case.

    The generator yields between steps of bounded length.
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
