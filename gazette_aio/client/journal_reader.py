"""What readers of a journal have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    import gazette_aio.protocol as pb


class JournalReader(ABC):
    """An async iterator of non-empty bytes, and an async context manager which closes it."""

    @property
    @abstractmethod
    def request(self) -> pb.ReadRequest:
        """The request; its `offset` is that of the next byte to be read."""

    @abstractmethod
    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, or nothing at the end."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of what it holds. Idempotent."""

    @property
    def journal(self) -> str:
        """The journal read."""
        return self.request.journal

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the head is known."""
        return self.request.offset

    def adjusted_offset(self, buffered: int) -> int:
        """Return the offset of the first of `buffered` bytes which were read but not yet used."""
        return self.offset - buffered

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
