"""References to a replica, which its tear-down waits for, within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from typing import Final

_logger = logging.getLogger(__name__)

WARNING_SECONDS: Final = 10.0
"""Seconds after which references that are left are logged, again and again."""


class Holds:
    """Counts references.

    Args:
        name: What is referred to, for the log.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """What is referred to."""
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    def __len__(self) -> int:
        return self._count

    def take(self) -> Hold:
        """Return a new reference."""
        self._count += 1
        self._is_free.clear()
        return Hold(self)

    def give_back(self) -> None:
        """Take a reference back. Use `Hold.release()`."""
        self._count -= 1
        if not self._count:
            self._is_free.set()

    def give_back_from_anywhere(self) -> None:
        """Take a reference back, called from any thread and at any time."""
        with contextlib.suppress(RuntimeError):  # The event loop was closed.
            self._loop.call_soon_threadsafe(self.give_back)

    async def released(self, seconds: float) -> bool:
        """Wait until there are no references, with a warning each 10 s.

        Args:
            seconds: Time after which this returns anyway; infinity waits for ever.

        Returns:
            Whether there are none.

        Cancellation: safe.
        """
        end = asyncio.get_running_loop().time() + seconds
        while self._count:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                _logger.error(
                    "shard %s ends, though %d resolutions weren't released within %g s",
                    self.name,
                    self._count,
                    seconds,
                )
                return False
            try:
                async with asyncio.timeout(min(left, WARNING_SECONDS)):
                    await self._is_free.wait()
            except TimeoutError:
                _logger.warning(
                    "shard %s waits for %d resolutions to be released", self.name, self._count
                )
        return True


class Hold:
    """A reference to a replica: while it's held, the replica keeps its store, within a bound."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Holds) -> None:
        self._holds: Holds | None = holds

    def release(self) -> None:
        """Release the reference. Idempotent."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.give_back()

    def __del__(self) -> None:
        holds, self._holds = self._holds, None
        if holds is not None:
            # Race: garbage may be collected in another thread.
            holds.give_back_from_anywhere()
            text = f"a resolution of shard {holds.name} was never released: call its done()"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=2)
