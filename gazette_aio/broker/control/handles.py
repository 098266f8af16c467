"""Handles of tests' rules and failures, and the waits of held requests."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.signal import Signal
from gazette_aio.broker.control import rules
from gazette_aio.broker.host.workers import STOPPING, resolve
from gazette_aio.broker.stores.failing import FailingFragmentStore
from gazette_aio.protocol.url import redacted
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from google.protobuf.message import Message

    from gazette_aio.broker.control.rules import FailWith


class Waits:
    """Waits of requests. All waits end when the broker stops."""

    def __init__(self) -> None:
        self.stopping: bool = False
        """Whether the broker is stopping, or has stopped: nothing may wait."""
        self._futures: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._futures)

    @contextlib.contextmanager
    def future(self) -> Generator[asyncio.Future[None]]:
        """Yield a future to await. It fails when the broker stops.

        Raises:
            RpcError: The broker is stopping already.
        """
        if self.stopping:
            raise RpcError(STOPPING, "UNAVAILABLE")
        future = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            yield future
        finally:
            self._futures.discard(future)

    def begin(self) -> None:
        """Allow waits, as the broker starts."""
        self.stopping = False

    def end(self) -> None:
        """Fail all waits, now and later, as the broker stops."""
        self.stopping = True
        for future in list(self._futures):
            resolve(future, None, RpcError(STOPPING, "UNAVAILABLE"))


class _Removable(ABC):
    """A context manager that undoes an action of a test."""

    @abstractmethod
    def remove(self) -> None:
        """Undo the action. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class RuleHandle(_Removable):
    """A rule of a `BrokerControl`; a context manager that removes the rule."""

    def __init__(self, book: rules.RuleBook, rule: rules.RequestRule) -> None:
        self._book = book
        self._rule = rule
        book.add(rule)

    def __repr__(self) -> str:
        state = "active" if self.is_active else "over"
        return f"<{type(self).__name__} {self._rule.kind} {state} hits={self.hits}>"

    @property
    def hits(self) -> int:
        """Number of requests to which the rule was applied."""
        return self._rule.hits

    @property
    def is_active(self) -> bool:
        """Whether the rule may be applied to further requests."""
        return self._rule in self._book

    def remove(self) -> None:
        """Let further requests pass. Idempotent."""
        self._book.remove(self._rule)


class Observation(RuleHandle):
    """Observed requests: an async iterator that ends with the last request before its removal.

    Invalid requests are observed too. The request of an append is its first message.
    """

    def __init__(self, book: rules.RuleBook, rule: rules.RequestRule) -> None:
        super().__init__(book, rule)
        rule.action = self
        self.requests: list[Any] = []
        """All requests seen so far, in order."""
        self._taken = 0
        self._changed = Signal()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next request.

        Cancellation: safe.
        """
        while self._taken >= len(self.requests):
            if not self.is_active:
                raise StopAsyncIteration
            await self._changed.wait()
        self._taken += 1
        return self.requests[self._taken - 1]

    async def seen(self, count: int) -> None:
        """Wait until at least `count` requests were seen.

        Raises:
            UsageError: The observation was removed before.

        Cancellation: safe.
        """
        while len(self.requests) < count:
            if not self.is_active:
                raise pb.UsageError(f"{self!r} has seen {len(self.requests)}, not {count} requests")
            await self._changed.wait()

    def remove(self) -> None:
        """Stop observing. Idempotent."""
        super().remove()
        self._changed.set()

    def add(self, request: Message) -> None:
        """Take a copy of a request."""
        self.requests.append(deepcopy(request))
        self._changed.set()


class Hold(RuleHandle):
    """Requests that wait until the test releases or fails them."""

    def __init__(self, book: rules.RuleBook, rule: rules.RequestRule, waits: Waits) -> None:
        super().__init__(book, rule)
        rule.action = self
        self._waits = waits
        self._waiting: dict[asyncio.Future[None], Message] = {}
        self._changed = Signal()

    @property
    def requests(self) -> list[Message]:
        """The held requests, in the order of their arrival."""
        return [request for future, request in self._waiting.items() if not future.done()]

    async def held(self, count: int = 1) -> None:
        """Wait until at least `count` requests are held at once.

        Raises:
            UsageError: The hold ended before.

        Cancellation: safe.
        """
        while (held := len(self.requests)) < count:
            if not self.is_active:
                raise pb.UsageError(f"{self!r} holds {held}, not {count} requests")
            await self._changed.wait()

    def release(self, count: int | None = None) -> None:
        """Release held requests.

        Args:
            count: Number of requests, in the order of their arrival; others stay held. None
                releases all requests, and ends the hold.
        """
        self._end(count, None)

    def fail(
        self, fail: FailWith = ("UNAVAILABLE", rules.FAILED_TEXT), count: int | None = None
    ) -> None:
        """Fail held requests.

        Args:
            fail: Name of a gRPC code, or that and a text.
            count: Number of requests, in the order of their arrival; others stay held. None fails
                all requests, and ends the hold.
        """
        self._end(count, rules.failure(fail))

    def remove(self) -> None:
        """End the hold, and release held requests. Idempotent."""
        self.release()

    def _end(self, count: int | None, failure: rules.RuleFailure | None) -> None:
        if count is None:
            super().remove()
        # Race: a released request may be cancelled before it continues.
        for future in [future for future in self._waiting if not future.done()][:count]:
            del self._waiting[future]
            resolve(future, None, failure and failure.error())
        self._changed.set()

    async def wait(self, request: Message) -> None:
        """Hold a request.

        Raises:
            RpcError: The test fails the request, or the broker stops.

        Cancellation: safe.
        """
        with self._waits.future() as future:
            self._waiting[future] = request
            self._changed.set()
            try:
                await future
            finally:
                self._waiting.pop(future, None)
                self._changed.set()


class StoreFailure(_Removable):
    """A failing store; a context manager that lets the store work again."""

    def __init__(
        self, url: str, error: str | OSError, restore: Callable[[StoreFailure], None]
    ) -> None:
        self.url = url
        self.hits: int = 0
        """How many operations have failed."""
        self.store: FailingFragmentStore = FailingFragmentStore(url, self._next)
        self._error = error
        self._restore = restore

    def __repr__(self) -> str:
        return f"<StoreFailure {redacted(self.url)} hits={self.hits}>"

    def remove(self) -> None:
        """Let the store work again; its health is checked when it's used next. Idempotent."""
        self._restore(self)

    def _next(self) -> Exception:
        self.hits += 1
        if isinstance(self._error, OSError):
            return type(self._error)(*self._error.args)
        return pb.StoreError(self._error)
