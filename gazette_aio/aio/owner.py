"""What objects of the client which own tasks, calls or files have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Owner(ABC):
    """An async context manager which closes itself at its end."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what it owns. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class ByteReader(Owner):
    """An async iterator of non-empty bytes."""

    @abstractmethod
    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, or nothing at the end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration
