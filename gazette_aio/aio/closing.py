"""Collection of things to close."""

from __future__ import annotations

from typing import Protocol


class Closeable(Protocol):
    """An object with an idempotent `aclose()`."""

    async def aclose(self) -> None:
        """Release what the object owns.

        Cancellation: safe — call again.
        """
        ...


class Closing:
    """Things to close. A thing is forgotten only after its close has ended.

    The next `aclose()` thus repeats a close that was cancelled.
    """

    def __init__(self) -> None:
        self._left: list[Closeable] = []

    def __len__(self) -> int:
        return len(self._left)

    def add(self, thing: Closeable) -> None:
        """Have the next `aclose()` close `thing`."""
        self._left.append(thing)

    def discard(self, thing: Closeable) -> None:
        """Forget `thing`, which is already closed, if it was added."""
        if thing in self._left:
            self._left.remove(thing)

    async def aclose(self) -> None:
        """Close all things, the latest first. Idempotent.

        Cancellation: safe — call again.
        """
        while self._left:
            thing = self._left[-1]
            await thing.aclose()
            # Race: another task may have closed it too, or have added more.
            self.discard(thing)
