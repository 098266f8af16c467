"""Journal that is being read: its reader, its content, and its arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message.envelopes.origin import JournalFormat
from gazette_aio.protocol.errors import OffsetJumpError

if TYPE_CHECKING:
    from gazette_aio.client import ReadingClient, RetryReader


class JournalContent(Protocol):
    """Content of one journal, from which an engine makes messages."""

    @property
    def offset(self) -> int:
        """Offset of the first message that isn't processed."""
        ...

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take content from `begin` on, and return the number of bytes discarded before a gap."""
        ...

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes discarded."""
        ...

    def end(self) -> None:
        """Declare the end of content: a partial message is an error now."""
        ...


C = TypeVar("C", bound=JournalContent)
BeginContent = Callable[[JournalFormat[Any], int], C]
"""Begins the content of a journal, given its format, and the offset to read from."""


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
class Arrival(Generic[C]):
    """Content of a journal, or another outcome of reading it. See `ArrivalKind`."""

    source: JournalInput[C]
    kind: ArrivalKind
    chunk: bytes = b""
    begin: int = 0
    error: Exception | None = None


class JournalInput(Generic[C]):
    """One journal that is being read: its reader and its content.

    Args:
        client: Client to read with.
        request: Request to read.
        journal_format: How messages of the journal are read.
        begin_content: Begins the content of the journal.
        reader: A given reader, if any, which isn't closed after errors.
    """

    def __init__(
        self,
        client: ReadingClient,
        request: pb.ReadRequest,
        journal_format: JournalFormat[Any],
        begin_content: BeginContent[C],
        *,
        reader: RetryReader | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self.format = journal_format
        """Format of the journal's messages."""
        self.journal: str = journal_format.journal
        self.reader = reader
        self.owned: bool = reader is None
        """Whether the reader was made here."""
        self.is_void = False
        """Whether the journal was deleted and created anew, so that replays are impossible."""
        self.replaying: RetryReader | None = None
        """Reader of a replay. It's closed when `is_void` is set, and must not be read after."""
        self.content: C = begin_content(journal_format, request.offset)

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

    async def next_arrival(self) -> Arrival[C]:
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

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt, counted from zero."""
        return self._client.context.retry_policy.backoff(attempt)

    def rewind(self, offset: int) -> None:
        """Let the next reader begin at `offset`. There must be no reader now."""
        assert self.reader is None, "a reader continues at its own offset"
        self._request.offset = offset

    def replay(self, begin: int, end: int) -> RetryReader:
        """Return a reader of the content `[begin, end)` of the same journal."""
        request = pb.ReadRequest()
        request.CopyFrom(self._request if self.reader is None else self.reader.request)
        request.offset, request.end_offset = begin, end
        self.replaying = self._client.read(request)
        return self.replaying
