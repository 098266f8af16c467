"""Index of shards by the journals that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.consumer.allocator.model import Item
from gazette_aio.protocol.consumer import ShardSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.consumer.allocator.observed import GroupEntry
    from gazette_aio.consumer.keyspace.entries import Change, Entry


class JournalIndex:
    """Shards by source. Its `observe` is an observer of a key space.

    Args:
        specs: Specs that the key space has already.
    """

    def __init__(self, specs: Iterable[ShardSpec] = ()) -> None:
        self._shards: dict[str, dict[str, ShardSpec]] = {}
        for spec in specs:
            self._add(spec)

    def __repr__(self) -> str:
        return f"<JournalIndex of {len(self._shards)} journals>"

    def observe(self, changes: Sequence[Change[GroupEntry]]) -> None:
        """Take changes of the key space."""
        for change in changes:
            if (spec := _spec(change.before)) is not None:
                self._remove(spec)
            if (spec := _spec(change.after)) is not None:
                self._add(spec)

    def shards_with_source(self, journal: str) -> list[ShardSpec]:
        """Return the shards that read a journal, by ID.

        Args:
            journal: Name of the journal, with the suffix that the shards give it, if any.
        """
        shards = self._shards.get(journal, {})
        return [shards[shard] for shard in sorted(shards)]

    def _add(self, spec: ShardSpec) -> None:
        for source in spec.sources:
            self._shards.setdefault(source.journal, {})[spec.id] = spec

    def _remove(self, spec: ShardSpec) -> None:
        for source in spec.sources:
            shards = self._shards[source.journal]
            del shards[spec.id]
            if not shards:
                del self._shards[source.journal]


def _spec(entry: Entry[GroupEntry] | None) -> ShardSpec | None:
    if entry is None or not isinstance(entry.decoded, Item):
        return None
    spec = entry.decoded.decoded
    return spec if isinstance(spec, ShardSpec) else None
