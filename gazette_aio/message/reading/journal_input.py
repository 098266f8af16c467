"""Journal which is being read: its reader, its content, and what arrives of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message.framing import Framing
from gazette_aio.protocol.errors import OffsetJumpError

if TYPE_CHECKING:
    from gazette_aio.client import ReadingClient, RetryReader


class JournalContent(Protocol):
    """Content of one journal, which an engine makes messages of."""

    @property
    def offset(self) -> int:
        """Offset of the first message which isn't done."""
        ...

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take content from `begin` on, and return how many bytes before a gap were discarded."""
        ...

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes which were discarded."""
        ...

    def end(self) -> None:
        """Declare the end of content: a partial message is an error now."""
        ...


C = TypeVar("C", bound=JournalContent)
BeginContent = Callable[[str, Framing, int], C]
"""Begins the content of a journal: of its name, its framing, and the offset it's read from."""


class ArrivalKind(Enum):
    """Kinds of arrivals."""

    CHUNK = "chunk"
    """The content `chunk`, from offset `begin` on."""
    JUMP = "jump"
    """Content goes on at offset `begin`, as there's none before."""
    END = "end"
    """The end of what a reader was asked for."""
    LEFT = "left"
    """Nothing more is read: the write head was reached, or the journal left the selection."""
    RESET = "reset"
    """The journal was deleted and created anew: what's known of it isn't true any more."""
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
    """One journal being read: its reader, and its content.

    Args:
        client: Client to read with.
        request: What to read.
        framing: Framing of the journal.
        begin_content: Begins its content.
        reader: The reader, if there is one already, which isn't closed between errors.
    """

    __slots__ = (
        "_client",
        "_request",
        "content",
        "framing",
        "is_void",
        "journal",
        "owned",
        "reader",
        "replaying",
    )

    def __init__(
        self,
        client: ReadingClient,
        request: pb.ReadRequest,
        framing: Framing,
        begin_content: BeginContent[C],
        *,
        reader: RetryReader | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self.framing = framing
        self.journal = str(request.journal)
        self.reader = reader
        self.owned = reader is None
        """Whether the reader was made here."""
        self.is_void = False
        """Whether the journal was deleted and created anew, and so can't be read again."""
        self.replaying: RetryReader | None = None
        """Reader of a replay, which is closed once `is_void` is set, and not to be read then."""
        self.content: C = begin_content(self.journal, framing, request.offset)

    @property
    def offset(self) -> int:
        """Offset of the next message; -1 for the write head, if that's not known yet."""
        offset = self.content.offset
        if offset < 0 and self.reader is not None and not self.owned:
            return self.reader.offset
        return offset if offset >= 0 else self._request.offset

    def open_reader(self, *, block: bool) -> RetryReader:
        """Return the reader, which is made unless there is one, to block or not."""
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
        """Wait for content of the reader, which is open, or for a jump.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: It's the end of what the reader was asked for.
            Exception: Reading failed.
        """
        reader = self.reader
        assert reader is not None
        try:
            chunk = await anext(reader)
        except OffsetJumpError as jump:
            return Arrival(self, ArrivalKind.JUMP, begin=jump.offset)
        return Arrival(self, ArrivalKind.CHUNK, chunk, reader.offset - len(chunk))

    async def close_reader(self) -> None:
        """Close the reader. One made later goes on where this one was. Idempotent.

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
