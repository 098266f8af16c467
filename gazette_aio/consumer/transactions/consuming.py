"""Calls of an application's consuming hook, in each of its forms."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gazette_aio.consumer.application.application import DeferToNextTransaction
from gazette_aio.consumer.application.thread_publisher import ThreadPublisher
from gazette_aio.consumer.transactions.explain import explained
from gazette_aio.message.reading.decoding import number_at_once
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.consumer.application.hook_thread import HookThread
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.message import Envelope, Publisher
    from gazette_aio.message.envelopes.origin import Origin
    from gazette_aio.message.reading.decoding import EnvelopeDecoder

QUEUED_BYTES: Final = 4 << 20
"""Queued bytes of published messages for which consuming waits.

The Publisher refuses more than 16 MiB: each call of a hook has room for 12 MiB.
"""


class Consumed(NamedTuple):
    """Outcome of a call."""

    messages: int
    """Number of messages consumed."""
    is_deferred: bool
    """Whether the next message was left for the next transaction."""


class Consumer(Protocol):
    """A form of the consuming hook."""

    async def consume(self, run: Sequence[Envelope[Any]], deadline: float, /) -> Consumed:
        """Consume messages in order, all of them or those started before the deadline.

        Cancellation: aborts — a plain hook in a thread is waited for.
        """
        ...


class EachMessage:
    """`consume_message()` within the event loop.

    Args:
        hook: The hook.
        shard: Its first argument.
        store: Its second argument.
        publisher: Its last argument.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self,
        hook: Callable[..., Any],
        shard: Shard,
        store: Store,
        publisher: Publisher[Any],
        clock: Callable[[], float],
    ) -> None:
        self._hook = hook
        self._shard = shard
        self._store = store
        self._publisher = publisher
        self._clock = clock

    async def consume(self, run: Sequence[Envelope[Any]], deadline: float, /) -> Consumed:
        """Consume messages one by one. See `Consumer`.

        Cancellation: aborts — the hook is cancelled, and the transaction fails.
        """
        hook, clock = self._hook, self._clock
        shard, store, publisher = self._shard, self._store, self._publisher
        count = 0
        try:
            # Hot: the loop of all messages.
            for envelope in run:
                waiting = hook(shard, store, envelope, publisher)
                if waiting is not None:
                    await waiting
                if publisher.queued_bytes >= QUEUED_BYTES:
                    await publisher.drain()
                count += 1
                if clock() >= deadline:
                    break
        except DeferToNextTransaction:
            return Consumed(count, is_deferred=True)
        return Consumed(count, is_deferred=False)


class EachMessageInThread:
    """`consume_message()` in a thread, which changes once for many messages.

    Args:
        hook: The hook, as of EachMessage, but its publisher.
        publisher: Publisher of the event loop.
        thread: The thread.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self,
        hook: Callable[[Envelope[Any], ThreadPublisher[Any]], object],
        publisher: Publisher[Any],
        thread: HookThread,
        clock: Callable[[], float],
    ) -> None:
        self._hook = hook
        self._publisher = ThreadPublisher(publisher)
        self._thread = thread
        self._clock = clock

    async def consume(self, run: Sequence[Envelope[Any]], deadline: float, /) -> Consumed:
        """Consume messages one by one. See `Consumer`.

        Cancellation: aborts — the hook's call goes on in its thread, and the transaction fails.
        """
        consumed = await self._thread.call(self._consume, run, deadline)
        await self._publisher.handed_over()
        return consumed

    def _consume(self, run: Sequence[Envelope[Any]], deadline: float) -> Consumed:
        hook, publisher, clock = self._hook, self._publisher, self._clock
        count = 0
        try:
            for envelope in run:
                if (returned := hook(envelope, publisher)) is not None:
                    text = f"consume_message() in a thread returned {returned!r}, not None"
                    raise TransactionError(text)
                count += 1
                if clock() >= deadline:
                    break
        except DeferToNextTransaction:
            return Consumed(count, is_deferred=True)
        return Consumed(count, is_deferred=False)


class Batch:
    """`consume_batch()`, within the event loop or in a thread."""

    def __init__(
        self,
        hook: Callable[..., Any],
        shard: Shard,
        store: Store,
        publisher: Publisher[Any],
        thread: HookThread | None,
    ) -> None:
        self._hook = hook
        self._shard = shard
        self._store = store
        self._publisher = publisher
        self._in_thread = None if thread is None else ThreadPublisher(publisher)
        self._thread = thread

    async def consume(self, run: Sequence[Envelope[Any]], deadline: float, /) -> Consumed:  # noqa: ARG002
        """Consume a batch, of which all messages are started at once. See `Consumer`.

        Cancellation: aborts — the transaction fails. A hook in a thread goes on.
        """
        try:
            count: Any
            if self._thread is not None and self._in_thread is not None:
                args = self._hook, self._shard, self._store, run, self._in_thread
                try:
                    count = await self._thread.call(*args)
                except DeferToNextTransaction:
                    await self._in_thread.handed_over()  # Part of this transaction, not the next.
                    raise
                await self._in_thread.handed_over()
            else:
                count = self._hook(self._shard, self._store, run, self._publisher)
                if inspect.isawaitable(count):
                    count = await count
                if self._publisher.queued_bytes >= QUEUED_BYTES:
                    await self._publisher.drain()
        except DeferToNextTransaction:
            return Consumed(0, is_deferred=True)
        if type(count) is not int or not 0 <= count <= len(run):  # True isn't a number, either.
            text = f"consume_batch() of {len(run)} messages returned {count!r}, not their number"
            raise TransactionError(text)
        return Consumed(count, is_deferred=count < len(run))


def consumer_of(
    hooks: Hooks,
    shard: Shard,
    store: Store,
    publisher: Publisher[Any],
    clock: Callable[[], float],
) -> Consumer:
    """Return the form of an application's consuming hook."""
    if hooks.consume_batch is not None:
        return Batch(hooks.consume_batch, shard, store, publisher, hooks.thread)
    assert hooks.consume_message is not None, "hooks were inspected"
    if hooks.thread is not None:
        hook = partial(hooks.consume_message, shard, store)
        return EachMessageInThread(hook, publisher, hooks.thread, clock)
    return EachMessage(hooks.consume_message, shard, store, publisher, clock)


class DecodingConsumer:
    """Decodes messages that have committed, and has them consumed.

    Args:
        consumer: Consumes messages.
        decoders: Decoders by the origin of envelopes. Messages of other origins are decoded.
    """

    def __init__(self, consumer: Consumer, decoders: dict[Origin, EnvelopeDecoder[Any]]) -> None:
        self._consumer = consumer
        self._decoders = decoders
        self._rows: Sequence[Envelope[Any]] = ()
        self._ready: list[Envelope[Any]] = []  # Decoded messages that aren't consumed yet.
        self._bad: Exception | None = None  # Error of the message after these.

    async def consume(self, rows: Sequence[Envelope[Any]], begin: int, deadline: float) -> Consumed:
        """Consume messages `rows[begin:]`, or the first of them.

        Raises:
            TransactionError: The first message can't be decoded, or the hook failed.

        Cancellation: aborts — a plain hook in a thread is waited for.
        """
        if rows is not self._rows:
            self._rows, self._ready, self._bad = rows, [], None
        ready = self._ready
        if not ready and self._bad is None:
            self._decode(rows, begin)
        if not ready:
            assert self._bad is not None, "there's a message"
            text = f"readMessage: framing.Unmarshal(offset {rows[begin].begin})"
            raise explained(text, self._bad)
        try:
            # A copy: the hook may change its list, or goes on in a thread after a cancellation.
            consumed = await self._consumer.consume(ready.copy(), deadline)
        except Exception as error:
            raise explained("app.ConsumeMessage", error) from error
        del ready[: consumed.messages]
        if begin + consumed.messages == len(rows):
            self._rows = ()  # Idle shards retain no messages.
        return consumed

    def _decode(self, rows: Sequence[Envelope[Any]], begin: int) -> None:
        first = rows[begin]
        end = min(begin + number_at_once(first), len(rows))
        origin = first.origin
        decoder = None if origin is None else self._decoders.get(origin)
        if decoder is None:
            self._ready += rows[begin:end]
        elif (bad := decoder.decode(rows, begin, end, self._ready)) is not None:
            _, self._bad = bad
