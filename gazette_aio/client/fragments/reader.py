"""Reader of an open fragment file."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol.fragment import codec_name

if TYPE_CHECKING:
    from gazette_aio.client.fragments.stream import FragmentStream
    from gazette_aio.client.metrics import Metrics


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


class FragmentReader(ByteReader):
    """Reader of an open fragment file, as `open_fragment_url()` returns it.

    It's an async iterator of non-empty chunks. Up to 2 MiB of content are fetched and decompressed
    ahead. After an error it stays in error.

    Args:
        fragment: The fragment.
        offset: Offset of the first byte of `stream`.
        stream: The content.
        metrics: Counts bytes.
    """

    def __init__(
        self, fragment: pb.Fragment, offset: int, stream: FragmentStream, metrics: Metrics
    ) -> None:
        self.fragment = fragment
        """The fragment."""
        self._offset = offset
        self._stream = stream
        self._metrics = metrics
        self._codec = codec_name(fragment.compression_codec)

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned."""
        return self._offset

    @property
    def waiting_bytes(self) -> int:
        """Bytes of content that can be read without waiting."""
        return self._stream.waiting_bytes

    def read_nowait(self, limit: int = -1) -> bytes | None:
        """Return content that was fetched already, None if there's none yet, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.
        """
        if data := self._take(limit):
            self._metrics.read_fragment_bytes(self.fragment.journal, self._codec, len(data))
            return data
        is_at_end = self._offset == self.fragment.end and self._stream.has_ended_well
        return b"" if is_at_end or not limit else None

    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, at least one but at most `limit`, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.

        Raises:
            TransportError: The store fails, or sends nothing for too long.
            UnexpectedEOFError: The file ends before the fragment does.
            DidNotReadExpectedEOFError: The file holds more than the fragment.
            FragmentError: The file is damaged.
            UsageError: The reader was closed before the end.

        Cancellation: safe.
        """
        if not limit:
            return b""
        while not (data := self.read_nowait(limit)):
            if not await self._more():
                return b""
        return data

    async def seek(self, offset: int) -> None:
        """Skip content up to `offset`.

        Raises:
            SeekRequiresNewReaderError: The offset is before the present one, or outside of the
                fragment.
            GazetteError: As `read()`.

        Cancellation: safe — some of the content may have been skipped; seek again.
        """
        if not self._offset <= offset < self.fragment.end:
            raise pb.SeekRequiresNewReaderError(
                "seek offset requires new Reader",
                journal=self.fragment.journal,
                offset=self._offset,
            )
        await self.skip_to(offset)

    async def skip_to(self, offset: int) -> None:
        """Skip content up to `offset`, which may be the end of the fragment.

        Raises:
            GazetteError: As `read()`.

        Cancellation: safe — some of the content may have been skipped.
        """
        while (left := offset - self._offset) > 0:
            if skipped := len(self._take(left)):
                self._metrics.discard_fragment_bytes(self.fragment.journal, self._codec, skipped)
            else:
                await self._more()

    def abandon(self) -> None:
        """End the request without waiting for its end."""
        self._stream.abandon()

    async def aclose(self) -> None:
        """End the request. Idempotent.

        Cancellation: safe — it's closed anyway.
        """
        await self._stream.aclose()

    async def _more(self) -> bool:
        """Wait until there may be more content; return False at the end."""
        if await self._stream.more():
            return True
        if self._offset < self.fragment.end:
            raise pb.UsageError(f"{self!r} was closed")
        return False

    def _take(self, limit: int) -> bytes:
        """Remove and return up to `limit` waiting bytes."""
        data = self._stream.take(limit) if limit else b""
        self._offset += len(data)
        return data

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.has_ended:
            # Race: garbage may be collected in any thread.
            stream.abandon_from_anywhere()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        fragment, stream = self.fragment, self._stream
        state = "closed" if stream.is_abandoned else "fetched" if stream.has_ended else "open"
        return (
            f"<FragmentReader of {fragment.journal!r} [{fragment.begin}, {fragment.end}) at "
            f"{self._offset}, {state}, {self.waiting_bytes} bytes waiting, of {stream.url!r}>"
        )
