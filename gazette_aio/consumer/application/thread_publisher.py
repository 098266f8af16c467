"""Publisher for hooks that run in a thread: calls are handed to the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.protocol.errors import QueueFullError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.client import AsyncAppend
    from gazette_aio.message import Adapter, Mapping, Publisher
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.uuid import ProducerID

T = TypeVar("T")
U = TypeVar("U")

_QUEUED: Final = 512
"""Calls that are handed over together."""


class ThreadPublisher(Generic[T]):
    """Publisher of a hook that runs in a thread. It must not be used elsewhere.

    Args:
        publisher: The publisher.
        loop: Its event loop; None for the running one.
        calls: Queued calls, which views share.
    """

    def __init__(
        self,
        publisher: Publisher[T],
        loop: asyncio.AbstractEventLoop | None = None,
        calls: list[tuple[Publisher[Any], Any, Any]] | None = None,
    ) -> None:
        self._publisher = publisher
        self._loop = loop or asyncio.get_running_loop()
        # Invariant: publishers of one transaction share the list, for the order of calls.
        self._calls = [] if calls is None else calls

    @property
    def producer_id(self) -> ProducerID:
        """ID of the producer."""
        return self._publisher.producer_id

    def view(self, adapter: Adapter[U]) -> ThreadPublisher[U]:
        """Return a publisher of messages of another type, as `Publisher.view()`."""
        return ThreadPublisher(self._publisher.view(adapter), self._loop, self._calls)

    def publish_uncommitted_nowait(self, mapping: Mapping[T], message: T) -> None:
        """Queue a message, which must not change until the hook returns.

        Errors of `Publisher.publish_uncommitted_nowait()` fail the hook after its return, or a
        later call of it.
        """
        self._calls.append((self._publisher, mapping, message))
        if len(self._calls) >= _QUEUED:
            asyncio.run_coroutine_threadsafe(self.handed_over(), self._loop).result()

    def publish_uncommitted_batch(
        self, mapping: Mapping[Any] | Target, messages: Iterable[T] = (), *, table: Any = None
    ) -> dict[str, AsyncAppend]:
        """Publish messages, and wait until they're handed to the service.

        It's `Publisher.publish_uncommitted_batch()`, but for the thread.
        """
        return asyncio.run_coroutine_threadsafe(
            self._publish_batch(mapping, messages, table), self._loop
        ).result()

    async def _publish_batch(
        self, mapping: Mapping[Any] | Target, messages: Iterable[T], table: Any
    ) -> dict[str, AsyncAppend]:
        await self.handed_over()
        return await self._publisher.publish_uncommitted_batch(mapping, messages, table=table)

    async def handed_over(self) -> None:
        """Hand queued messages to the publisher. Called in the event loop.

        Raises:
            Exception: The publisher raises it.

        Cancellation: aborts — messages may be left out.
        """
        calls, done = self._calls, 0
        try:
            for publisher, mapping, message in calls:
                try:
                    publisher.publish_uncommitted_nowait(mapping, message)
                except QueueFullError:
                    await publisher.drain()
                    publisher.publish_uncommitted_nowait(mapping, message)
                done += 1
        finally:
            # Invariant: a call that failed stays, as do those after it. They are made again when
            # the hook returns, so that no message is lost if it swallows the error.
            del calls[:done]
