"""Meanings of the keys of a prefix, and how events of a watch change them."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from gazette_aio.consumer.keyspace.errors import KeySpaceError
from gazette_aio.consumer.keyspace.store import Deleted
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import Event, StoreHeader, WatchResponse


class HasRaw(Protocol):
    """Meaning of a key, which has the key as the store has it."""

    @property
    def raw(self) -> KeyValue:
        """The key with its value and revisions."""
        ...


D = TypeVar("D", bound=HasRaw)
Change: TypeAlias = tuple[D | None, D | None]
"""Meanings of a key before and after it changed: None for a key that doesn't exist."""

_logger = logging.getLogger(__name__)


class Entries(dict[str, D]):
    """Meanings of keys, in no order. Keys that can't be decoded are left out, with a warning.

    Keys are of any writer of the store, so that no exception of the decoder ends their follower.

    Args:
        decode: Returns what a key means; raises ValidationError if it means nothing.
    """

    def __init__(self, decode: Callable[[KeyValue], D]) -> None:
        super().__init__()
        self._decode = decode
        self._undecodable: dict[str, int] = {}
        """Revisions of keys that were warned of."""

    def decoded(self, raw: KeyValue) -> D | None:
        """Return what a key means, or None, with a warning, if it can't be decoded.

        Each revision of a key is warned of once. A key keeps the meaning of an earlier value.
        """
        try:
            entry = self._decode(raw)
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
            known = self.get(raw.key)
            if known is None or known.raw.create_revision != raw.create_revision:
                return None
            # Its revision is the newest one, without which no transaction of ours would succeed.
            return self._decode(dataclasses.replace(raw, value=known.raw.value))
        self._undecodable.pop(raw.key, None)
        return entry

    def replace(self, key: str, entry: D | None) -> None:
        """Replace what a key means, or remove the key."""
        if entry is None:
            del self[key]
        else:
            self[key] = entry

    def apply(self, events: Iterable[Event]) -> list[Change[D]]:
        """Apply events in the order of their revisions, and return what they changed.

        An event that contradicts an entry is logged, and applied only if it's the newer of both.
        """
        before: dict[str, D | None] = {}
        for event in events:
            current = self.get(event.key)
            if isinstance(event, Deleted):
                self._undecodable.pop(event.key, None)
                if not _may_delete(current, event):
                    continue
                entry = None
            elif not _may_put(current, event) or (entry := self.decoded(event)) is None:
                continue
            before.setdefault(event.key, current)
            self.replace(event.key, entry)
        changes = [(old, self.get(key)) for key, old in before.items()]
        return [change for change in changes if change != (None, None)]


def _may_delete(current: HasRaw | None, event: Deleted) -> bool:
    if current is None:
        # An entry that couldn't be decoded isn't known, either.
        _logger.debug("unknown key %r was deleted", event.key)
        return False
    if event.mod_revision <= current.raw.mod_revision:
        _logger.error("old deletion of key %r is ignored", event.key)
        return False
    return True


def _may_put(current: HasRaw | None, event: KeyValue) -> bool:
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
