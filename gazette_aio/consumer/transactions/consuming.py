"""Calls of an application's consuming hook, and of what it decides about bad messages."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gazette_aio.consumer.application.application import DeferToNextTransaction
from gazette_aio.protocol.errors import TransactionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.message_errors import MessageErrors
    from gazette_aio.message import Envelope

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


class HookCaller:
    """Has messages consumed by the hook, but for those that can't be: these are decided about.

    Args:
        hooks: Hooks of the application.
        shard: First argument of the hook.
        store: Second argument of the hook.
        errors: Decides about messages that can't be consumed.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self,
        hooks: Hooks,
        shard: Shard,
        store: Store,
        errors: MessageErrors,
        clock: Callable[[], float],
    ) -> None:
        self._hook = hooks.consume
        self._takes_batches = hooks.consumes_batches
        self._shard = shard
        self._store = store
        self._publisher = shard.publisher
        self._errors = errors
        self._clock = clock

    async def consume(
        self, ready: Sequence[Envelope[Any]], deadline: float, *, is_first: bool
    ) -> Consumed:
        """Consume the first messages.

        Args:
            ready: Messages of one journal.
            deadline: When to start no further message. A batch is started as a whole.
            is_first: Whether the transaction has consumed no message yet.

        Raises:
            RepeatedError: The transaction is given up, to be repeated.
            TransactionError: The first message can't be decoded, or the hook failed.

        Cancellation: aborts — the hook is cancelled, and the transaction fails.
        """
        errors = self._errors
        if not errors.suspects:
            return await self._call(ready, deadline)
        first = ready[0]
        suspect = errors.find(first)
        if suspect is None:
            others = (at for at, each in enumerate(ready) if errors.find(each) is not None)
            return await self._call(ready[: next(others, None)], deadline)
        if suspect.failures and not is_first:
            return Consumed(0, is_deferred=True)
        if suspect.error is None and suspect.action is None:
            consumed = await self._call([first], deadline)
            if consumed.messages:
                errors.passed(first)
            return consumed
        if suspect.action is None:
            await errors.decoding_failed(first, suspect)
        await errors.pass_over(first, suspect, self._publisher)
        return Consumed(1, is_deferred=False)

    def _call(self, run: Sequence[Envelope[Any]], deadline: float) -> Awaitable[Consumed]:
        # A method that is kept would be a cycle, and wait for a collection of garbage.
        call = self._in_batch if self._takes_batches else self._one_by_one
        return call(run, deadline)

    async def _one_by_one(self, run: Sequence[Envelope[Any]], deadline: float) -> Consumed:
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
        except Exception as error:  # noqa: BLE001 - decided about.
            return await self._errors.hook_failed([run[count]], error)
        return Consumed(count, is_deferred=False)

    async def _in_batch(self, run: Sequence[Envelope[Any]], _deadline: float) -> Consumed:
        try:
            # A copy: the hook may change it, or its thread goes on after a cancellation.
            count: Any = self._hook(self._shard, self._store, list(run), self._publisher)
            if inspect.isawaitable(count):
                count = await count
            if self._publisher.queued_bytes >= QUEUED_BYTES:
                await self._publisher.drain()
            if type(count) is not int or not 0 <= count <= len(run):  # True isn't a number, either.
                text = f"of {len(run)} messages it returned {count!r}, not their number"
                raise TransactionError(text)
        except DeferToNextTransaction:
            return Consumed(0, is_deferred=True)
        except Exception as error:  # noqa: BLE001 - decided about.
            return await self._errors.hook_failed(run, error)
        return Consumed(count, is_deferred=count < len(run))
