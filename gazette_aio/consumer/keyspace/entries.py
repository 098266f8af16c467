"""Sorted, decoded entries of a prefix, and how events of a watch change them."""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from gazette_aio.consumer.keyspace.errors import KeySpaceError
from gazette_aio.consumer.keyspace.store import Deleted
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import Event, StoreHeader, WatchResponse

D = TypeVar("D")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry(Generic[D]):
    """A key, and what its value means."""

    raw: KeyValue
    decoded: D


@dataclass(frozen=True, slots=True)
class Change(Generic[D]):
    """A key that changed: `before` is None for a new key, `after` for a key that's gone."""

    key: str
    before: Entry[D] | None
    after: Entry[D] | None


class Entries(Generic[D]):
    """Entries in the order of their keys. Those that can't be decoded are left out, with a warning.

    Keys are of any writer of the store, so that no exception of the decoder ends their follower.

    Args:
        decode: Returns what a key means; raises ValidationError if it means nothing.
    """

    def __init__(self, decode: Callable[[KeyValue], D]) -> None:
        self._decode = decode
        self._by_key: dict[str, Entry[D]] = {}
        self._keys: list[str] = []
        self._undecodable: dict[str, int] = {}
        """Revisions of keys that were warned of."""

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> Entry[D] | None:
        """Return the entry of a key."""
        return self._by_key.get(key)

    def range(self, begin: str, end: str) -> list[Entry[D]]:
        """Return the entries from the key `begin` up to, but without, `end`."""
        keys = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return [self._by_key[key] for key in keys]

    def prefixed(self, prefix: str) -> list[Entry[D]]:
        """Return the entries whose keys begin with `prefix`."""
        first = bisect_left(self._keys, prefix)
        last = bisect_right(self._keys, prefix, lo=first, key=lambda key: key[: len(prefix)])
        return [self._by_key[key] for key in self._keys[first:last]]

    def decoded(self, raw: KeyValue) -> Entry[D] | None:
        """Return the entry of a key, or None, with a warning, if it can't be decoded.

        Each revision of a key is warned of once. A key keeps the meaning of an earlier value.
        """
        try:
            entry = Entry(raw, self._decode(raw))
        except Exception as error:
            if self._undecodable.get(raw.key) != raw.mod_revision:
                self._undecodable[raw.key] = raw.mod_revision
                is_foreseen = isinstance(error, ValidationError)
                _logger.log(
                    logging.WARNING if is_foreseen else logging.ERROR,
                    "key %.200r can't be decoded, and is ignored: %.500s",
                    raw.key,
                    error,
                    exc_info=None if is_foreseen else error,
                )
            known = self._by_key.get(raw.key)
            if known is None or known.raw.create_revision != raw.create_revision:
                return None
            # Its revision is the newest one, without which no transaction of ours would succeed.
            kept = replace(raw, value=known.raw.value)
            return Entry(kept, self._decode(kept))
        self._undecodable.pop(raw.key, None)
        return entry

    def changes_to(self, target: Mapping[str, Entry[D]]) -> Iterator[Change[D]]:
        """Yield the changes that lead to `target`, whose keys are in order.

        The entries stay as they are until the iteration ends, and so does `target`.
        """
        for key in heapq.merge(self._keys, (key for key in target if key not in self._by_key)):
            before, after = self._by_key.get(key), target.get(key)
            if before != after:
                yield Change(key, before, after)

    def accept(self, changes: Iterable[Change[D]]) -> None:
        """Take changes as they are."""
        for change in changes:
            self._set(change.key, change.after)

    def apply(self, events: Iterable[Event]) -> list[Change[D]]:
        """Apply events in the order of their revisions, and return what they changed, by key.

        An event that contradicts an entry is logged, and applied only if it's the newer of both.
        """
        before: dict[str, Entry[D] | None] = {}
        for event in events:
            current = self._by_key.get(event.key)
            if isinstance(event, Deleted):
                self._undecodable.pop(event.key, None)
                if not self._may_delete(current, event):
                    continue
                entry = None
            elif not self._may_put(current, event) or (entry := self.decoded(event)) is None:
                continue
            before.setdefault(event.key, current)
            self._set(event.key, entry)
        return [
            Change(key, old, self._by_key.get(key))
            for key, old in sorted(before.items(), key=lambda item: item[0])
            if old is not None or key in self._by_key
        ]

    def _set(self, key: str, entry: Entry[D] | None) -> None:
        if entry is None:
            del self._by_key[key]
            del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._by_key:
            insort(self._keys, key)
        self._by_key[key] = entry

    @staticmethod
    def _may_delete(current: Entry[D] | None, event: Deleted) -> bool:
        if current is None:
            # An entry that couldn't be decoded isn't known, either.
            _logger.debug("unknown key %r was deleted", event.key)
            return False
        if event.mod_revision <= current.raw.mod_revision:
            _logger.error("old deletion of key %r is ignored", event.key)
            return False
        return True

    @staticmethod
    def _may_put(current: Entry[D] | None, event: KeyValue) -> bool:
        if current is None:
            if event.mod_revision != event.create_revision or event.version != 1:
                _logger.debug("unknown key %r was modified", event.key)
            return True
        if event.mod_revision <= current.raw.mod_revision:
            _logger.error("old modification of key %r is ignored", event.key)
            return False
        if (event.create_revision, event.version) != (
            current.raw.create_revision,
            current.raw.version + 1,
        ):
            _logger.debug(
                "versions of key %r between %d and %d are unknown",
                event.key,
                current.raw.version,
                event.version,
            )
        return True


def check_responses(
    header: StoreHeader, responses: Sequence[WatchResponse]
) -> tuple[StoreHeader, list[Event]]:
    """Check responses of a watch against the header of a key space.

    Returns:
        The header that follows, whose revision is that of the last event, and all events in order.

    Raises:
        KeySpaceError: The responses are of another cluster, or go back in revisions.
    """
    events: list[Event] = []
    revision = header.revision
    for response in responses:
        theirs = response.header
        if theirs.cluster_id != header.cluster_id:
            raise KeySpaceError(
                f"etcd ClusterID mismatch (expected {header.cluster_id}, got {theirs.cluster_id})"
            )
        if theirs.revision < revision:
            raise KeySpaceError(
                f"etcd Revision mismatch (expected >= {revision}, got {theirs.revision})"
            )
        if (theirs.member_id, theirs.raft_term) != (header.member_id, header.raft_term):
            _logger.info(
                "the key space follows member %x at term %d", theirs.member_id, theirs.raft_term
            )
        header = type(header)(theirs.cluster_id, theirs.member_id, revision, theirs.raft_term)
        if not response.events:
            continue
        first, last = response.events[0].mod_revision, response.events[-1].mod_revision
        if first <= revision:
            raise KeySpaceError(
                f"received watch response with first ModRevision {first}, "
                f"which is <= last Revision {revision}"
            )
        if last < first:
            raise KeySpaceError(
                f"received watch response with last ModRevision {last} "
                f"less than first ModRevision {first}"
            )
        revision = last
        events.extend(response.events)
    return type(header)(header.cluster_id, header.member_id, revision, header.raft_term), events
