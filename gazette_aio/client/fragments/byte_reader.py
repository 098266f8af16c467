"""The common form of readers of bytes."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from gazette_aio.aio.owner import Owner


class ByteReader(Owner):
    """An async iterator of non-empty bytes."""

    @abstractmethod
    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, or nothing at the end.

        Cancellation: safe.
        """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration
