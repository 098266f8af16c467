"""How far shards are behind the write heads of their sources."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
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
    consumer: ShardClient,
    brokers: JournalClient,
    shards: Sequence[str],
    *,
    timeout: float | None = None,
    members: Mapping[str, str] | None = None,
    silent: set[str] | None = None,
) -> list[Lag]:
    """Return the lag of each of some shards.

    Args:
        consumer: Client of the shards.
        brokers: Client of their sources.
        shards: Their IDs.
        timeout: Seconds to wait for the progress of each shard; None for those of the client.
        members: Member of each shard that has a primary, by shard. Once one of them doesn't answer,
            it isn't asked for its other shards.
        silent: Gets those of `members` that don't answer.

    Raises:
        TransportError: No broker answers.

    Cancellation: safe.
    """
    members = {} if members is None else members
    silent = set() if silent is None else silent
    now = asyncio.get_running_loop().time
    heads: dict[str, tuple[float, int | None]] = {}
    locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def head_since(source: str, since: float) -> int | None:
        # Shards may share sources. But a head from before the progress would hide a lag.
        async with locks[source]:
            asked, head = heads.get(source, (-math.inf, None))
            if asked < since:
                asked = now()
                try:
                    head = await head_of(brokers, source.partition(";")[0])
                except pb.BrokerStatusError:
                    head = None
                heads[source] = asked, head
            return head

    async def lag_of(shard: str) -> Lag:
        member = members.get(shard)
        if member in silent:
            return None
        # A shard that fails, or whose member doesn't answer, shouldn't hide the others.
        try:
            offsets = (await stat_shard(consumer, shard, timeout=timeout)).read_through
        except pb.ShardStatusError:
            return None
        except (pb.OperationTimeoutError, pb.TransportError) as error:
            if member is not None and getattr(error, "code", "UNAVAILABLE") == "UNAVAILABLE":
                silent.add(member)
            return None
        since, lag = now(), dict[str, int | None]()
        # Not after other shards have told their progress: those of a dead member take long.
        for source, offset in sorted(offsets.items()):
            head = await head_since(source, since)
            lag[source] = None if head is None else max(head - offset, 0)
        return lag

    return [each async for each in in_batches(lag_of, shards)]
