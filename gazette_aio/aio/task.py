"""Background task that belongs to an object, and calls into an event loop from finalizers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gazette_aio.aio.frames import forget_cancellation
from gazette_aio.aio.owner import Owner

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_ends: Final[set[asyncio.Task[None]]] = set()
"""Tasks that close objects which nobody closed."""


def start_task(
    work: Coroutine[Any, Any, T], name: str, *, context: contextvars.Context | None = None
) -> asyncio.Task[T]:
    """Return a task of the running event loop, which begins in a later turn.

    Invariant: whoever starts a task completes its own step first. A task factory of the program,
    such as `asyncio.eager_task_factory`, would begin the task at once.

    Args:
        work: Coroutine of the task. It's closed if no task can be started.
        name: Name of the task.
        context: Context of the task; None for a copy of the present one.

    Raises:
        RuntimeError: No event loop is running.
    """
    try:
        return asyncio.Task(work, loop=asyncio.get_running_loop(), name=name, context=context)
    except BaseException:
        work.close()
        raise


def call_from_anywhere(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Have an event loop call `function`, unless the loop is closed.

    Finalizers use this function: garbage may be collected in any thread and at any time.
    """
    # Race: another thread may close the loop meanwhile.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def end_from_anywhere(
    loop: asyncio.AbstractEventLoop, aclose: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Have an event loop run `aclose()` in its own task, unless the loop is closed."""

    def begin() -> None:
        task = start_task(aclose(), "gazette end of what was left behind")
        _ends.add(task)
        task.add_done_callback(_ends.discard)

    call_from_anywhere(loop, begin)


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
        """Start a task. The previous task must have ended.

        Args:
            work: Coroutine of the task. The owner handles its errors.
            name: Name of the task.
            on_end: Called after the end of the task, even if it's cancelled before it begins.
        """
        assert not self.running, "the task before it is still under way"
        self._is_cancelled = False
        self._task = start_task(work, name)
        if on_end is not None:
            self._task.add_done_callback(lambda _: on_end())

    def cancel(self) -> None:
        """Cancel the task without waiting for its end. Idempotent."""
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def cancel_from_anywhere(self) -> None:
        """Cancel the task, called from any thread and at any time."""
        if self._task is not None:
            call_from_anywhere(self._task.get_loop(), self.cancel)

    async def aclose(self) -> None:
        """Cancel the task, and wait for its end. Idempotent.

        Cancellation: safe — the task ends anyway; call again to wait for it.
        """
        self.cancel()
        if self._task is not None:
            await asyncio.wait((self._task,))
            forget_cancellation(self._task)
