"""Async context managers, and owners of tasks, calls and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Scope(ABC):
    """An async context manager whose end is one method."""

    async def __aenter__(self) -> Self:
        return self

    @abstractmethod
    async def _leave(self, error: BaseException | None) -> None:
        """End the block, which raised `error`, or None."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(exc)

    if not TYPE_CHECKING:  # Type checkers refuse a plain `with` themselves.

        def __enter__(self) -> None:
            name = type(self).__name__
            raise TypeError(f"{name} is an async context manager: write `async with`, not `with`")

        def __exit__(self, *error: object) -> None:
            """Python looks it up before it calls `__enter__()`."""


class Owner(Scope):
    """An async context manager that closes itself at its end."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release what the object owns. Idempotent.

        Cancellation: safe — call again, unless the class says otherwise.
        """

    async def _leave(self, error: BaseException | None) -> None:  # noqa: ARG002 - For overriding.
        await self.aclose()
