"""Fragment files in memory, whose fetching fails as a test says."""

from __future__ import annotations

import asyncio

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient

URL = "http://store/fragment?secret"


def http_error(status: int) -> pb.TransportError:
    text = f'!OK fetching ({status} …, "http://store/fragment")'
    return pb.TransportError("", text, http_status=status)


class FakeFragments:
    """Stands in for the fragments of a client.

    Args:
        client: The client, which uses it from now on.
        content: Content of the journal.
        begin: Offset of it.
        piece: Bytes which come at once.
    """

    def __init__(
        self, client: JournalClient, content: bytes, begin: int = 0, *, piece: int = 7
    ) -> None:
        client.context.fragments = self  # type: ignore[assignment]
        self.content = content
        self.begin = begin
        self.piece = piece
        self.failures: list[tuple[int, pb.GazetteError]] = []
        """What readers fail with, each once, and the offset up to which they read before."""
        self.opened: list[tuple[int, int, bool]] = []
        """Offsets at which fragments began and were opened, and whether sums are verified."""
        self.open_count = 0
        self.gate = asyncio.Event()
        """Whether opening comes to its end."""
        self.gate.set()
        self.open_rpcs_seen: list[int] = []
        self._client = client

    async def open(
        self, fragment: pb.Fragment, offset: int, url: str, *, verify: bool = False
    ) -> FakeReader:
        if url.startswith("file:"):
            raise pb.ConfigurationError("no transport for file URLs")
        assert url == URL
        assert fragment.begin <= offset < fragment.end
        self.opened.append((fragment.begin, offset, verify))
        self.open_rpcs_seen.append(len(self._client.context.rpc.streams))
        failure = next(
            (failure for failure in self.failures if offset <= failure[0] <= fragment.end), None
        )
        if failure is not None:
            self.failures.remove(failure)
        await asyncio.sleep(0)
        await self.gate.wait()
        if failure is not None and failure[0] == offset:
            raise failure[1]
        return FakeReader(self, fragment, offset, failure)

    async def aclose(self) -> None:
        pass


class FakeReader:
    def __init__(
        self,
        source: FakeFragments,
        fragment: pb.Fragment,
        offset: int,
        failure: tuple[int, pb.GazetteError] | None,
    ) -> None:
        self.fragment = fragment
        self.offset = offset
        self._source = source
        self._fail_at = fragment.end if failure is None else failure[0]
        self._error = None if failure is None else failure[1]
        self._open = True
        source.open_count += 1

    def read_nowait(self, limit: int = -1) -> bytes | None:
        assert self._open
        return None

    async def read(self, limit: int = -1) -> bytes:
        await asyncio.sleep(0)
        if not self._open:
            raise RuntimeError("the fragment was closed")
        if self.offset >= self._fail_at and self._error is not None:
            raise self._error
        size = self._source.piece if limit < 0 else min(self._source.piece, limit)
        at = self.offset - self._source.begin
        end = min(self._fail_at - self._source.begin, at + size)
        self.offset += end - at
        return self._source.content[at:end]

    async def seek(self, offset: int) -> None:
        while self.offset < offset:
            await self.read(offset - self.offset)

    def abandon(self) -> None:
        self._source.open_count -= self._open
        self._open = False

    async def aclose(self) -> None:
        self.abandon()
