"""Content of a fragment that was opened by others, such as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Mapping
    from typing import BinaryIO

_READ_BYTES: Final = 256 << 10


class GivenContent:
    """Raw bytes of a fragment file, in the form of a response to a request for it.

    Args:
        content: A binary file, which threads read, or an async iterable of bytes. It's closed at
            the end.
    """

    status = 200
    reason = "OK"

    def __init__(self, content: BinaryIO | AsyncIterable[bytes]) -> None:
        self.headers: Mapping[str, str] = {}
        self._content: Any = content

    async def open(self, url: str, headers: Mapping[str, str]) -> GivenContent:  # noqa: ARG002
        """Return the content itself.

        Cancellation: safe.
        """
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate the raw bytes."""
        content = self._content
        if hasattr(content, "__aiter__"):
            async for data in content:
                yield data
        else:
            while data := await in_thread(content.read, _READ_BYTES):
                yield data

    async def aclose(self) -> None:
        """Close the content. Idempotent.

        Cancellation: safe — a file is closed anyway.
        """
        close = getattr(self._content, "aclose", None)
        if close is not None:
            await close()
        elif (close := getattr(self._content, "close", None)) is not None:
            await in_thread(close)
