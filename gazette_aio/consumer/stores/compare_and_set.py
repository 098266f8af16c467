"""Base of stores in systems without transactions, such as key-value stores and object stores."""

from __future__ import annotations

import abc
import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import fenced
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard

C = TypeVar("C")
V = TypeVar("V")

_NONCE_BYTES: Final = 16
_DIGEST_BYTES: Final = 16


class StoredRecord(NamedTuple, Generic[V]):
    """A record as the system has it."""

    content: bytes
    version: V
    """Version, which differs after each write: an ETag, a revision, or a counter."""


class CompareAndSetStore(abc.ABC, Generic[C, V]):
    """Base of stores in systems without transactions, such as key-value stores and object stores.

    The system has to replace one record only if its version is the expected one. By this the
    checkpoint is fenced, and it's written last: after a crash, messages since the last checkpoint
    are consumed again, whose changes may have been written. So the checkpoint, and what the
    application publishes, are exactly once, and the state is **at least once**: make changes
    idempotent, such as writes of whole values by key. A former primary that hasn't noticed may
    still write changes, but no checkpoint.

    Subclasses hold the changes `C` of a transaction in memory, and define versions `V`.
    """

    def __init__(self) -> None:
        self._version: V | None = None
        self._commits = Commits()

    @abc.abstractmethod
    def take_changes(self) -> C:
        """Return the changes of this transaction. What the application changes next isn't in it."""

    @abc.abstractmethod
    async def write_changes(self, changes: C) -> None:
        """Write changes of a transaction, so that they're durable. They may have been before.

        Cancellation: aborts — the framework doesn't cancel it.
        """

    @abc.abstractmethod
    async def load_record(self, key: str) -> StoredRecord[V] | None:
        """Return the record of a key, as last written; None if there's none.

        Args:
            key: Key, made of the FQN of the shard.

        Cancellation: safe.
        """

    @abc.abstractmethod
    async def replace_record(self, key: str, content: bytes, expected: V | None) -> V | None:
        """Write the record of a key, if its version is the expected one, in one atomic step.

        Args:
            key: Key.
            content: Content to write.
            expected: Version to replace; None if there must be no record.

        Returns:
            The new version, or None if the record's version isn't the expected one.

        Cancellation: aborts — it may have been written.
        """

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> OpFuture[None]:
        """Begin to write the changes, and then the checkpoint. See `Store.start_commit()`."""
        key, content, changes = shard.fqn, checkpoint.SerializeToString(), self.take_changes()
        return self._commits.start(wait_for, lambda: self._apply(key, content, changes))

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        """Return the checkpoint of the shard, drop taken changes, and fence off other stores.

        State that a subclass has in memory has to be restored by its `load_record()`.

        Raises:
            StoreError: The record isn't one of a checkpoint, or is damaged.

        Cancellation: aborts — other stores may have been fenced off.
        """
        if self._version is not None:
            self.take_changes()  # Of a transaction that is given up.
        while True:
            record = await self.load_record(shard.fqn)
            try:
                content = b"" if record is None else _unsealed(record.content)
                checkpoint = Checkpoint.FromString(content)
            except (ValueError, DecodeError) as error:
                raise StoreError(f"checkpoint of {shard.fqn}: {error}") from error
            expected = None if record is None else record.version
            # Race: a former primary may commit between the two steps.
            version = await self.replace_record(shard.fqn, _sealed(content), expected)
            if version is not None:
                self._version = version
                return checkpoint

    async def destroy(self) -> None:
        """End the commit under way. Subclasses release what they own after it.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()

    async def _apply(self, key: str, content: bytes, changes: C) -> None:
        # A former primary finds out here, before it writes changes, unless it's at the same time.
        record = await self.load_record(key)
        if record is None or record.version != self._version:
            raise fenced()
        await self.write_changes(changes)
        version = await self.replace_record(key, _sealed(content), self._version)
        if version is None:
            raise fenced()
        self._version = version


def _sealed(content: bytes) -> bytes:
    """Return the record of a checkpoint: a nonce, a digest of nonce and content, and the content.

    Invariant: records never recur, since versions of some systems are hashes of them.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _digest(nonce, content) + content


def _unsealed(record: bytes) -> bytes:
    """Return the content of a record.

    Raises:
        ValueError: The record is damaged. Most beginnings of a checkpoint are checkpoints, too.
    """
    nonce, rest = record[:_NONCE_BYTES], record[_NONCE_BYTES:]
    digest, content = rest[:_DIGEST_BYTES], rest[_DIGEST_BYTES:]
    if digest != _digest(nonce, content):
        raise ValueError("the record is damaged")
    return content


def _digest(nonce: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(nonce + content, digest_size=_DIGEST_BYTES).digest()
