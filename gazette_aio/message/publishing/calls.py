"""Calls of a transaction: whose they are, and whether each was awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gazette_aio.protocol.errors import NotAwaitedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gazette_aio.message.publishing.gate import Gate

    Call: TypeAlias = Coroutine[Any, Any, Any]

_FEW: Final = 64


class Calls:
    """Calls made in the block of a transaction, and by tasks that were started there.

    Args:
        gate: Gate of the Publisher whose transaction it is.
        transaction: What errors call the transaction.
    """

    def __init__(self, gate: Gate, transaction: str) -> None:
        self.gate: Gate = gate
        """Gate of the Publisher whose transaction it is."""
        self.is_open: bool = False
        """Whether calls still belong to the transaction."""
        self.last: Any = None
        """Latest call, a coroutine, or None."""
        self._kept: list[Call] = []
        """Earlier calls that hadn't begun when the next one was made."""
        self._enough = _FEW
        self._transaction = transaction

    @property
    def owner(self) -> Any:
        """The transaction itself, if it's one that holds messages, or None."""
        return None

    def keep(self, call: Call) -> None:
        """Keep a call if it hasn't begun."""
        if _has_begun(call):
            return
        if len(self._kept) >= self._enough:
            self._kept = [kept for kept in self._kept if not _has_begun(kept)]
            self._enough = max(_FEW, 2 * len(self._kept))
        self._kept.append(call)

    def note(self, call: Call) -> None:
        """Note the latest call."""
        if self.last is not None and self.last.cr_frame is not None:
            self.keep(self.last)
        self.last = call

    def _all_begun(self) -> bool:
        # Calls never begin whose task was cancelled before.
        return all(map(_has_begun, self._kept)) and (self.last is None or _has_begun(self.last))

    async def require_awaited(self) -> None:
        """Raise unless all calls have begun.

        Raises:
            NotAwaitedError: At least one call wasn't awaited.

        Cancellation: safe.
        """
        if not self._all_begun():
            await asyncio.sleep(0)  # Tasks that were just created begin now.
        if not self._all_begun():
            made = self._kept if self.last is None else [*self._kept, self.last]
            names = Counter(_name_of(call) for call in made if not _has_begun(call))
            raise NotAwaitedError(
                f"calls to publish were not awaited: {_counted(names)}; "
                f"{self._transaction} is abandoned"
            )

    def enter(self) -> None:
        """Begin to belong to the current task, and the tasks that it starts."""
        self.is_open = self.gate.has_calls = True
        _current.set((*(calls for calls in _current.get() if calls.is_open), self))

    def leave(self) -> None:
        """Forget all calls, and no longer belong to the current task."""
        self.is_open = False
        self.last = None
        self._kept.clear()
        _current.set(tuple(calls for calls in _current.get() if calls is not self))


_current: Final[ContextVar[tuple[Calls, ...]]] = ContextVar("gazette transactions", default=())
"""Transactions within whose blocks the current task is, or was started."""


def calls_of(gate: Gate) -> Calls | None:
    """Return those of the transaction of a gate within which the current task is, or was started.

    They may be of a transaction that has ended, which the task outlives.
    """
    for calls in reversed(_current.get()):
        if calls.gate is gate:
            return calls
    return None


def _has_begun(call: Call) -> bool:
    return inspect.getcoroutinestate(call) != inspect.CORO_CREATED


def _name_of(call: Any) -> str:
    name: str = call.__name__
    return name.lstrip("_")


def _counted(names: Counter[str]) -> str:
    return ", ".join(
        f"{name}()" if count == 1 else f"{name}() {count} times"
        for name, count in sorted(names.items())
    )
