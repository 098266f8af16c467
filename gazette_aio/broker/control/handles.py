"""What control of a broker hands out for each of its rules."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import gazette_aio.protocol as pb
from gazette_aio.broker.control import rules
from gazette_aio.broker.stores.failing import FailingStore
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from types import TracebackType

    from google.protobuf.message import Message

    from gazette_aio.broker.control.control import BrokerControl
    from gazette_aio.broker.control.rules import FailWith


STOPPING = "broker is stopping"


class _Removable(ABC):
    """A context manager which removes what it stands for."""

    @abstractmethod
    def remove(self) -> None:
        """Remove it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class RuleHandle(_Removable):
    """A rule of a `BrokerControl`; a context manager which removes it."""

    def __init__(self, control: BrokerControl, rule: rules.Rule) -> None:
        self._control = control
        self._rule = rule

    def __repr__(self) -> str:
        state = "active" if self.is_active else "over"
        return f"<{type(self).__name__} {self._rule.kind} {state} hits={self.hits}>"

    @property
    def hits(self) -> int:
        """How many requests the rule was applied to."""
        return self._rule.hits

    @property
    def is_active(self) -> bool:
        """Whether the rule may be applied to further requests."""
        return self._control.has(self._rule)

    def remove(self) -> None:
        """Let further requests pass. Idempotent."""
        self._control.drop(self._rule)


class Observation(RuleHandle):
    """Requests which were seen: an async iterator, which ends once it's removed and all are taken.

    What's seen is what arrived, whether it's valid or not. Of an append it's the first message.
    """

    def __init__(self, control: BrokerControl, rule: rules.Rule) -> None:
        super().__init__(control, rule)
        self.requests: list[Any] = []
        """All requests seen so far, in order."""
        self._taken = 0
        self._changed = _Signal()

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
            RuntimeError: If the observation is over before.

        Cancellation: safe.
        """
        while len(self.requests) < count:
            if not self.is_active:
                raise RuntimeError(f"{self!r} has seen {len(self.requests)}, not {count} requests")
            await self._changed.wait()

    def remove(self) -> None:
        """Stop to observe. Idempotent."""
        super().remove()
        self._changed.set()

    def add(self, request: Message) -> None:
        """Take a request."""
        self.requests.append(request)
        self._changed.set()


class Hold(RuleHandle):
    """Requests which wait until they're released, or failed."""

    def __init__(self, control: BrokerControl, rule: rules.Rule) -> None:
        super().__init__(control, rule)
        self._waiting: dict[asyncio.Future[None], Message] = {}
        self._changed = _Signal()

    @property
    def requests(self) -> list[Message]:
        """The requests which are held now, in the order of their arrival."""
        return [request for future, request in self._waiting.items() if not future.done()]

    async def held(self, count: int = 1) -> None:
        """Wait until at least `count` requests are held at once.

        Raises:
            RuntimeError: If the hold is over before.

        Cancellation: safe.
        """
        while (held := len(self.requests)) < count:
            if not self.is_active:
                raise RuntimeError(f"{self!r} holds {held}, not {count} requests")
            await self._changed.wait()

    def release(self, count: int | None = None) -> None:
        """Let held requests go on.

        Args:
            count: How many, in the order of their arrival; others stay held. None releases all of
                them, and ends the hold.
        """
        self._end(count, None)

    def fail(
        self, fail: FailWith = ("UNAVAILABLE", rules.FAILED_TEXT), count: int | None = None
    ) -> None:
        """Fail held requests.

        Args:
            fail: Name of a gRPC code, or that and a text.
            count: How many, in the order of their arrival; others stay held. None fails all of
                them, and ends the hold.
        """
        self._end(count, rules.failure(fail))

    def remove(self) -> None:
        """End the hold: requests which are held go on. Idempotent."""
        self.release()

    def _end(self, count: int | None, failure: rules.Failure | None) -> None:
        if count is None:
            super().remove()
        # Race: a request may be cancelled which hasn't left yet.
        for future in [future for future in self._waiting if not future.done()][:count]:
            del self._waiting[future]
            resolve(future, failure)
        self._changed.set()

    async def wait(self, request: Message) -> None:
        """Wait with a request.

        Raises:
            RpcError: If it's to fail.

        Cancellation: safe.
        """
        with self._control.waiting() as future:
            self._waiting[future] = request
            self._changed.set()
            try:
                await future
            finally:
                self._waiting.pop(future, None)
                self._changed.set()


class StoreFailure(_Removable):
    """A store which fails; a context manager which lets it work again."""

    def __init__(self, control: BrokerControl, url: str, error: str | OSError) -> None:
        self.url = url
        self.hits = 0
        """How many operations have failed."""
        self.store = FailingStore(url, self._next)
        self._control = control
        self._error = error

    def __repr__(self) -> str:
        return f"<StoreFailure {self.url} hits={self.hits}>"

    def remove(self) -> None:
        """Let the store work again; its health is checked when it's used next. Idempotent."""
        self._control.restore(self)

    def _next(self) -> Exception:
        self.hits += 1
        if isinstance(self._error, OSError):
            return type(self._error)(*self._error.args)
        return pb.StoreError(self._error)


class Waiting:
    """A future, known to the control for as long as somebody awaits it."""

    def __init__(self, known: set[asyncio.Future[None]], *, stopping: bool) -> None:
        self._known = known
        self._stopping = stopping
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> asyncio.Future[None]:
        if self._stopping:
            raise RpcError(STOPPING, "UNAVAILABLE")
        future = self._future = asyncio.get_running_loop().create_future()
        self._known.add(future)
        return future

    def __exit__(self, *_: object) -> None:
        assert self._future is not None
        self._known.discard(self._future)


class _Signal:
    """Wakes all who wait now."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self) -> None:
        # Made here: an event belongs to the loop in which it's first awaited.
        event = self._event
        if event is None:
            event = self._event = asyncio.Event()
        await event.wait()


def resolve(future: asyncio.Future[None], failure: rules.Failure | None) -> None:
    """End a wait, unless it's over."""
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(RpcError(failure.text, failure.code))
        future.exception()  # Retrieved: the one who waits may be cancelled at the same time.
