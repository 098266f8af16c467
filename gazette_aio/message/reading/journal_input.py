"""Journal that is being read: its reader, its content, and its arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import OffsetJumpError

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.message.envelopes.outputs import JournalOutputs


class ArrivalKind(Enum):
    """Kinds of arrivals."""

    CHUNK = "chunk"
    """Content `chunk`, from offset `begin` on."""
    JUMP = "jump"
    """Content continues at offset `begin`, after a hole."""
    END = "end"
    """The end of the reader's request."""
    LEFT = "left"
    """Reading has ended: at the write head, or because the journal left the selection."""
    RESET = "reset"
    """The journal was deleted and created anew: its known state is void."""
    ERROR = "error"
    """Reading failed with `error`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Content of a journal, or another outcome of reading it. See `ArrivalKind`."""

    source: JournalInput
    kind: ArrivalKind
    chunk: bytes = b""
    begin: int = 0
    error: Exception | None = None


class JournalInput:
    """One journal that is being read: its reader and its content.

    Args:
        client: Client to read with.
        request: Request to read.
        content: Content of the journal, from the offset of the request on.
        reader: A given reader, if any, which isn't closed after errors.
    """

    def __init__(
        self,
        client: JournalClient,
        request: pb.ReadRequest,
        content: JournalOutputs[Any],
        *,
        reader: RetryReader | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self.content = content
        self.journal: str = content.journal
        self.reader = reader
        self.owned: bool = reader is None
        """Whether the reader was made here."""
        self.is_void = False
        """Whether the journal was deleted and created anew, so that replays are impossible."""
        self.replaying: RetryReader | None = None
        """Reader of a replay. It's closed when `is_void` is set, and must not be read after."""

    @property
    def offset(self) -> int:
        """Offset of the next message; -1 for the write head, until it's known."""
        offset = self.content.offset
        if offset < 0 and self.reader is not None and not self.owned:
            return self.reader.offset
        return offset if offset >= 0 else self._request.offset

    def open_reader(self, *, block: bool) -> RetryReader:
        """Return the reader, which is made if there is none, and make it block or not."""
        reader = self.reader
        if reader is None:
            request = pb.ReadRequest()
            request.CopyFrom(self._request)
            request.block = block
            reader = self.reader = self._client.read(request)
        elif self.owned:
            reader.request.block = block
        return reader

    async def next_arrival(self) -> Arrival:
        """Wait for content of the open reader, or for a jump.

        Raises:
            StopAsyncIteration: The reader reached the end of its request.
            Exception: Reading failed.

        Cancellation: safe.
        """
        reader = self.reader
        assert reader is not None
        try:
            chunk = await anext(reader)
        except OffsetJumpError as jump:
            return Arrival(self, ArrivalKind.JUMP, begin=jump.offset)
        return Arrival(self, ArrivalKind.CHUNK, chunk, reader.offset - len(chunk))

    async def check_head(self, error: pb.OffsetNotYetAvailableError) -> None:
        """Check that a read that doesn't block ended at the write head, not beyond.

        Raises:
            OffsetBeyondHeadError: It's beyond the write head.

        Cancellation: safe.
        """
        if self.reader is not None and error.is_beyond_head:
            await self.reader.check_head()

    async def close_reader(self) -> None:
        """Close the reader. A later one resumes at its offset. Idempotent.

        Cancellation: safe — call again.
        """
        reader = self.reader
        if reader is not None:
            await reader.aclose()
            self._request.offset = reader.offset
            self.reader = None

    def replay(self, begin: int, end: int) -> RetryReader:
        """Return a reader of the content `[begin, end)` of the same journal."""
        request = pb.ReadRequest()
        request.CopyFrom(self._request if self.reader is None else self.reader.request)
        request.offset, request.end_offset = begin, end
        self.replaying = self._client.read(request)
        return self.replaying
