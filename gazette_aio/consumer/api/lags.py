"""How far shards are behind the write heads of their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer.api.calls import stat_shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient

    Lag = Mapping[str, int | None] | None
    """Bytes that are left to read, by source, or None for those whose journal isn't served. It's
    None altogether if no primary tells the progress of the shard.
    """


async def lags_of(
    consumer: ShardClient, brokers: JournalClient, shards: Sequence[str]
) -> list[Lag]:
    """Return the lag of each of some shards.

    Raises:
        TransportError: No broker answers.

    Cancellation: safe.
    """

    async def progress_of(shard: str) -> Mapping[str, int] | None:
        # A shard that fails, or whose member doesn't answer, shouldn't hide the others.
        try:
            return (await stat_shard(consumer, shard)).read_through
        except (pb.ShardStatusError, pb.TransportError):
            return None

    progress = [each async for each in in_batches(progress_of, shards)]
    sources = sorted({source for offsets in progress if offsets for source in offsets})

    async def head_of_source(source: str) -> int | None:
        try:
            return await head_of(brokers, source.partition(";")[0])
        except pb.BrokerStatusError:
            return None

    heads = [head async for head in in_batches(head_of_source, sources)]
    head_by_source = dict(zip(sources, heads, strict=True))

    def left(source: str, offset: int) -> int | None:
        head = head_by_source[source]
        return None if head is None else max(head - offset, 0)

    return [
        None if offsets is None else {name: left(name, at) for name, at in sorted(offsets.items())}
        for offsets in progress
    ]
