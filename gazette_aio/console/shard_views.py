"""Views of shards: the values that the page shows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol.consumer as pc
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gazette_aio.consumer.api.lags import Lag


_STEP: Final = 64
"""Shards between turns of other tasks."""


def shard_row(shard: pc.ListResponse.Shard) -> dict[str, Any]:
    """Return the row of a listed shard.

    Its status is reduced from the reports of its members. The primary is the first member.
    """
    reduced = pc.ReplicaStatus()
    for status in shard.status:
        pc.reduce_status(reduced, status)
    members = [
        f"{member.zone}/{member.suffix} {shown_name(pc.ReplicaStatus.Code, status.code)}"
        for member, status in zip(shard.route.members, shard.status, strict=False)
    ]
    if 0 < shard.route.primary < len(members):
        members.insert(0, members.pop(shard.route.primary))
    return {
        "id": shard.spec.id,
        "status": shown_name(pc.ReplicaStatus.Code, reduced.code),
        "members": members,
        "sources": [source.journal for source in shard.spec.sources],
        "problems": [error for status in shard.status for error in status.errors],
    }


def shard_lag(shard: str, lag: Lag) -> dict[str, Any]:
    """Return the lag of a shard in all sources and in each, as bytes in decimal digits.

    The lag is empty if a source's lag is unknown. It has no sources if no primary reports the
    progress of the shard.
    """
    by_source = lag or {}
    known = [left for left in by_source.values() if left is not None]
    is_known = lag is not None and len(known) == len(by_source)
    sources = [
        {"journal": journal, "bytes": "" if left is None else str(left)}
        for journal, left in by_source.items()
    ]
    return {"id": shard, "bytes": str(sum(known)) if is_known else "", "sources": sources}


def shard_page(
    shards: Sequence[pc.ListResponse.Shard], text: str, offset: int, limit: int
) -> Generator[None, None, dict[str, Any]]:
    """Return the rows from `offset` on of the shards whose ID contains a text, ignoring case.

    All of these shards are counted by their status. The generator yields between steps of bounded
    length.
    """
    wanted = text.casefold()
    rows: list[dict[str, Any]] = []
    statuses: Counter[str] = Counter()
    for number, shard in enumerate(shards, 1):
        if wanted in shard.spec.id.casefold():
            row = shard_row(shard)
            if offset <= statuses.total() < offset + limit:
                rows.append(row)
            statuses[row["status"]] += 1
        if number % _STEP == 0:
            yield
    return {
        "total": len(shards),
        "matched": statuses.total(),
        "statuses": statuses,
        "rows": rows,
    }
