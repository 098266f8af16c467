"""Planned stop of a server: calls in progress are served, and other calls are refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Set as AbstractSet

_STOPPING = "the server is stopping"

UNWIND_SECONDS = 10.0
"""Longest wait for the ends of calls that were cancelled."""


class Drain:
    """Calls in progress of a server, and the refusal of new calls during its planned stop.

    No outcome depends on timing. A call that is in progress when the stop begins is awaited until
    its answer is written. Any other call is refused, and has no effect.
    """

    def __init__(self) -> None:
        self.begun: bool = False
        """Whether calls are to be refused."""
        self._is_cut = False
        self._is_over = False
        self._serving: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        state = "over" if self._is_over else "begun" if self.begun else "idle"
        return f"<Drain {state}, {len(self._serving)} calls>"

    # Calls, each in the task of the gRPC library that serves it

    def enter(self) -> asyncio.Task[Any]:
        """Register a call that begins, and return its task for `leave`."""
        task = asyncio.current_task()
        assert task is not None, "outside of a task"
        self._serving.add(task)
        task.add_done_callback(self._end)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Unregister a call that ends. The task ends once the answer is written."""
        self._serving.discard(task)
        self._answering.add(task)

    async def refuse(self, messages: AsyncIterator[object] | None) -> NoReturn:
        """Refuse a call, or leave it without an answer once connections are being ended.

        Args:
            messages: Messages of the client, if the client streams them.

        Raises:
            RpcError: UNAVAILABLE.

        Cancellation: safe.
        """
        if messages is not None and not self._is_over:
            # Wire: grpcio's client loses the status of a call that ends while it writes.
            async for _ in messages:
                pass
        if self._is_over:
            # The library closes a half-closed connection that it writes to, which clients may learn
            # of before they have read all. The end of the connection tells them the same.
            await asyncio.Event().wait()
        self.leave(self.enter())
        raise self._refusal()

    def refusal(self) -> RpcError | None:
        """Return the failure of a call that was just cancelled, if this stop cancelled it."""
        return self._refusal() if self._is_cut else None

    def _refusal(self) -> RpcError:
        return RpcError(_STOPPING, "UNAVAILABLE")

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._serving.discard(task)
        self._answering.discard(task)

    # Stop

    async def finish(self, grace: float) -> None:
        """Refuse calls from now on, and wait until all others have been answered.

        Args:
            grace: Seconds after which calls in progress are cancelled, and refused as well.

        Cancellation: safe.
        """
        self.begun = True
        await _ended(self._serving, grace)
        if self._serving:
            self._is_cut = True
            for task in self._serving:
                task.cancel()
            await _ended(self._serving, UNWIND_SECONDS)
        self._is_over = True
        await _ended(self._answering, UNWIND_SECONDS)


async def _ended(tasks: AbstractSet[asyncio.Task[Any]], longest: float) -> None:
    """Wait until no tasks are left in a set which changes meanwhile."""
    loop = asyncio.get_running_loop()
    end = loop.time() + longest
    while tasks and (left := end - loop.time()) > 0:
        await asyncio.wait(tuple(tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)
