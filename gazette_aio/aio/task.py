"""Background task that belongs to an object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class OwnedTask(Owner):
    """A slot for one task at a time, which is cancelled at most once.

    A second cancellation would interrupt the cleanup that the first one began.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def has_begun(self) -> bool:
        """Whether a task was ever started."""
        return self._task is not None

    @property
    def running(self) -> bool:
        """Whether the task is running."""
        return self._task is not None and not self._task.done()

    @property
    def is_orphaned(self) -> bool:
        """Whether the task's event loop was closed, so that nothing can end the task."""
        return self._task is not None and self._task.get_loop().is_closed()

    def start(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        *,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        """Start a task. The one before it must have ended.

        Args:
            work: Coroutine of the task. The owner sees to its errors.
            name: Name of the task.
            on_end: Called after the end of the task, even if it's cancelled before it begins.
        """
        assert not self.running, "the task before it is still under way"
        self._is_cancelled = False
        self._task = asyncio.get_running_loop().create_task(work, name=name)
        if on_end is not None:
            self._task.add_done_callback(lambda _: on_end())

    def cancel(self) -> None:
        """Cancel the task without waiting for its end. Idempotent."""
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def cancel_from_anywhere(self) -> None:
        """Cancel the task, called from any thread and at any time."""
        if self._task is not None and not self.is_orphaned:
            self._task.get_loop().call_soon_threadsafe(self.cancel)

    async def aclose(self) -> None:
        """Cancel the task, and wait for its end. Idempotent.

        Cancellation: safe — the task ends anyway; call again to wait for it.
        """
        self.cancel()
        if self._task is not None:
            await asyncio.wait((self._task,))
