"""Applications: the hooks by which the framework calls the code of users.

Each hook may be a plain or an async function, and runs in the event loop. Work that blocks belongs
into a thread, by `await asyncio.to_thread(...)` in an async hook.
"""

# ruff: noqa: ARG002 - Hooks that are left out do nothing with their arguments.
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from gazette_aio.consumer.application.decisions import Fail
from gazette_aio.message import json_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.decisions import MessageErrorAction
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.message import Adapter, Envelope, Publisher
    from gazette_aio.protocol import JournalSpec
    from gazette_aio.protocol.consumer import Checkpoint

M = TypeVar("M")
S = TypeVar("S", bound="Store")
S_contra = TypeVar("S_contra", bound="Store", contravariant=True)


class DeferToNextTransaction(Exception):  # noqa: N818 - It's no error.
    """Raised by a consuming hook: the message begins the next transaction.

    The current transaction reads no further and commits. Deferring the first message of a
    transaction fails the shard.
    """

    def __init__(self) -> None:
        super().__init__("consumer application deferred message")


class Application(Protocol[M, S]):
    """Application: hooks that process the messages `M` of a shard, with its store `S`.

    `adapter()`, `new_store()` and a consuming hook are required. Only one hook of a shard runs at a
    time; hooks of different shards run concurrently. An exception of a hook fails the shard, unless
    `on_message_error()` decides otherwise about a message.
    """

    def adapter(self, spec: JournalSpec, /) -> Adapter[M]:
        """Return the adapter that decodes the messages of a source.

        It's called within the event loop for each source when its reading starts. When reading
        starts anew within an assignment, it's called only if the specification has changed.
        Messages are decoded when they commit.
        """
        ...

    def output_adapter(self, shard: Shard, /) -> Adapter[Any]:
        """Return the adapter that encodes the messages of the shard's publisher.

        It may be left out: messages are dicts then, which become JSON objects.
        """
        return json_adapter()

    def new_store(self, shard: Shard, recorder: Any, /) -> S | Awaitable[S]:
        """Return the store of a shard that this member becomes the primary of.

        Args:
            shard: The shard.
            recorder: Recorder of the recovery log, whose directory holds what was recovered; None
                if the shard has no recovery log.
        """
        ...

    def consume_message(
        self, shard: Shard, store: S, envelope: Envelope[M], publisher: Publisher[Any], /
    ) -> Awaitable[None] | None:
        """Consume a committed message, which may be an acknowledgement (its `flags` are ACK_TXN).

        It isn't called if the application is a BatchConsumer. A plain function publishes by
        `publisher.publish_uncommitted_nowait()`, at least 12 MiB in one call. Before the next call,
        the framework waits for journals that can't keep up.

        Raises:
            DeferToNextTransaction: The message is left for the next transaction.
        """
        raise TypeError("the application consumes batches")

    def finalize_txn(
        self, shard: Shard, store: S, publisher: Publisher[Any], /
    ) -> Awaitable[None] | None:
        """Finish a transaction, before it starts to commit.

        Publish the remaining messages, start the remaining appends by `shard.appends`, and write
        changes that are held in memory to the store. The hook needn't wait for appends, and may be
        left out.
        """
        return None

    def on_message_error(
        self, shard: Shard, envelope: Envelope[Any], error: Exception, /
    ) -> MessageErrorAction | Awaitable[MessageErrorAction]:
        """Decide what becomes of a message that can't be consumed: by default, the shard fails.

        It's called after a consuming hook has raised `error`, or if the message can't be decoded.
        Whatever it returns, nothing remains of what the failed hook has changed in the store or
        published: the transaction is repeated from its checkpoint, unless it's to fail. An error of
        this hook fails the shard.

        Args:
            shard: The shard.
            envelope: The message, as the hook has left it. An undecodable one is its bytes, or None
                if not even its UUID can be read.
            error: The error. It isn't called for a TransactionError, FencedError or
                DependencyError, none of which is the message's fault.
        """
        return Fail()


@runtime_checkable
class BatchConsumer(Protocol[M, S_contra]):
    """An application that consumes runs of committed messages."""

    def consume_batch(
        self,
        shard: Shard,
        store: S_contra,
        envelopes: Sequence[Envelope[M]],
        publisher: Publisher[Any],
        /,
    ) -> Awaitable[int] | int:
        """Consume committed messages in order, and return the number of those consumed.

        If fewer are consumed than were given, the rest is left for the next transaction, as by
        DeferToNextTransaction. A plain function may publish at least 12 MiB in one call; beyond,
        `publish_uncommitted_nowait()` may raise `QueueFullError`. An async one has
        `await publisher.publish_uncommitted_batch()`, without such a bound.

        If it raises, and the application has `on_message_error()`, the transaction is repeated, and
        each of the messages is consumed by a call of its own, which tells the one that fails.
        """
        ...


@runtime_checkable
class BeginFinisher(Protocol[S_contra]):
    """An application that is told when transactions begin and end."""

    def begin_txn(self, shard: Shard, store: S_contra, /) -> Awaitable[None] | None:
        """Begin a transaction, before its first message is consumed. It may wait.

        If it raises, `finished_txn()` isn't called.
        """
        ...

    def finished_txn(
        self, shard: Shard, store: S_contra, commit: OpFuture[None], /
    ) -> Awaitable[None] | None:
        """End a transaction that was begun: it started to commit, or has failed.

        After a failure, publishing raises TransactionError. When the assignment ends, or after a
        failure, the hook has 30 s before it's cancelled.

        An async hook runs in a task of its own, which has a copy of the context variables of other
        hooks: it sees and sets these, but can't reset them by the tokens of other hooks.

        Args:
            shard: The shard.
            store: Its store.
            commit: What the store's `start_commit()` returned, which may be pending; or done with
                an error, if the transaction failed before it could start to commit.
        """
        ...


class MessageSink(Protocol[M]):
    """Receiver of a MessageProducer's messages. `send()` waits while the shard can't keep up."""

    async def send(self, envelopes: Sequence[Envelope[M]], /) -> None:
        """Deliver read messages of one journal, in the order of their offsets, pending ones too.

        Each takes at least one byte of its journal: its `end` is greater than its `begin`.

        Cancellation: aborts — some of the messages were delivered.
        """
        ...


@runtime_checkable
class MessageProducer(Protocol[M, S_contra]):
    """An application that reads messages of its own, in place of the framework."""

    async def read_messages(
        self, shard: Shard, store: S_contra, checkpoint: Checkpoint, sink: MessageSink[M], /
    ) -> None:
        """Read uncommitted messages, each journal from its offset in `checkpoint`.

        If it returns, the current transaction is finished and commits; then the store's checkpoint
        is restored, and it's called again: at once, or, if it has delivered nothing twice in a row
        or more, after a pause of 0.1 s, which doubles each time up to 5 s. If it raises, the shard
        fails once the messages before were consumed.

        Cancellation: aborts — the framework cancels it when the shard ends; release what it holds.
        """
        ...

    def replay_range(
        self, shard: Shard, store: S_contra, journal: str, begin: int, end: int, /
    ) -> AsyncIterator[Envelope[M]]:
        """Read messages of a journal again: those within exactly the offsets [begin, end)."""
        ...

    def read_through(
        self, shard: Shard, store: S_contra, offsets: Mapping[str, int], /
    ) -> Awaitable[Mapping[str, int]] | Mapping[str, int]:
        """Return the offsets by journal of `Progress.read_through` that satisfy a caller.

        Args:
            shard: The shard.
            store: Its store.
            offsets: Offsets by journal of which the caller wants to see the effects.
        """
        ...
