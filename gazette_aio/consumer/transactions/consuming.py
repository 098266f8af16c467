"""Calls of an application's consuming hook, in each of its forms."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gazette_aio.consumer.application.application import DeferToNextTransaction
from gazette_aio.consumer.transactions.message_errors import HookFailed
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.message_errors import MessageErrors
    from gazette_aio.message import Envelope, Publisher

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

        Raises:
            HookFailed: The hook failed.

        Cancellation: aborts — the hook is cancelled, and the transaction fails.
        """
        ...


class EachMessage:
    """`consume_message()`.

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
        except Exception as error:
            raise HookFailed([run[count]]) from error
        return Consumed(count, is_deferred=False)


class Batch:
    """`consume_batch()`. Args as of EachMessage."""

    def __init__(
        self,
        hook: Callable[..., Any],
        shard: Shard,
        store: Store,
        publisher: Publisher[Any],
    ) -> None:
        self._hook = hook
        self._shard = shard
        self._store = store
        self._publisher = publisher

    async def consume(self, run: Sequence[Envelope[Any]], deadline: float, /) -> Consumed:  # noqa: ARG002
        """Consume a batch, of which all messages are started at once. See `Consumer`.

        Cancellation: aborts — the hook is cancelled, and the transaction fails.
        """
        try:
            count: Any = self._hook(self._shard, self._store, run, self._publisher)
            if inspect.isawaitable(count):
                count = await count
            if self._publisher.queued_bytes >= QUEUED_BYTES:
                await self._publisher.drain()
        except DeferToNextTransaction:
            return Consumed(0, is_deferred=True)
        except Exception as error:
            raise HookFailed(run) from error
        if type(count) is not int or not 0 <= count <= len(run):  # True isn't a number, either.
            text = f"of {len(run)} messages it returned {count!r}, not their number"
            raise HookFailed(run) from TransactionError(text)
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
        return Batch(hooks.consume_batch, shard, store, publisher)
    assert hooks.consume_message is not None, "hooks were inspected"
    return EachMessage(hooks.consume_message, shard, store, publisher, clock)


class SuspectingConsumer:
    """Has messages consumed, but those that can't be: it has these decided about.

    Args:
        consumer: Consumes messages.
        errors: Decides about messages that can't be consumed.
        publisher: Publishes dead letters.
    """

    def __init__(
        self, consumer: Consumer, errors: MessageErrors, publisher: Publisher[Any]
    ) -> None:
        self._consumer = consumer
        self._errors = errors
        self._publisher = publisher

    async def consume(
        self, ready: Sequence[Envelope[Any]], deadline: float, *, is_first: bool
    ) -> Consumed:
        """Consume the first messages.

        Args:
            ready: Messages of one journal.
            deadline: When to start no further message.
            is_first: Whether the transaction has consumed no message yet.

        Raises:
            RepeatedError: The transaction is given up, to be repeated.
            TransactionError: The first message can't be decoded, or the hook failed.

        Cancellation: aborts — the hook is cancelled, and the transaction fails.
        """
        errors = self._errors
        if not errors:
            return await self._hook(list(ready), deadline)
        first = ready[0]
        suspect = errors.find(first)
        if suspect is None:
            others = (at for at, each in enumerate(ready) if errors.find(each) is not None)
            return await self._hook(list(ready[: next(others, None)]), deadline)
        if suspect.failures and not is_first:
            return Consumed(0, is_deferred=True)
        if suspect.error is None and suspect.action is None:
            consumed = await self._hook([first], deadline)
            if consumed.messages:
                errors.passed(first)
            return consumed
        if suspect.action is None:
            await errors.decoding_failed(first, suspect)
        await errors.pass_over(first, suspect, self._publisher)
        return Consumed(1, is_deferred=False)

    async def _hook(self, given: list[Envelope[Any]], deadline: float) -> Consumed:
        # The list is a copy: the hook may change it, or its thread goes on after a cancellation.
        try:
            return await self._consumer.consume(given, deadline)
        except HookFailed as failed:
            envelopes, error = failed.envelopes, failed.__cause__
        # Not above, where the frames of `failed` would stay with what is raised.
        assert isinstance(error, Exception), "a hook failed for a reason"
        return await self._errors.hook_failed(envelopes, error)
