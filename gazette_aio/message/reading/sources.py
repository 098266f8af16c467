"""What iterators read: one reader, journals by their names, or those which a selector matches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message.framing import Framing, framing_by_content_type
from gazette_aio.message.mapping import content_type_of
from gazette_aio.message.uuid import unix_ns
from gazette_aio.protocol.errors import (
    ConfigurationError,
    GazetteError,
    ReadError,
    UnrecognizedContentTypeError,
)
from gazette_aio.protocol.journal import strip_meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

    from gazette_aio.client import JournalClient, ReadingClient, RetryReader, WatchedList

_logger = logging.getLogger(__name__)

_LIST_NAMES = 256
"""Journals which are listed at once by their names. Brokers compare each with all they have."""

Start = Mapping[str, int] | datetime | None


class Splitter(Protocol):
    """Takes the content of one journal, in its order."""

    @property
    def offset(self) -> int:
        """Offset of the next message which wasn't handed out."""
        ...

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take content which begins at offset `begin`.

        Returns:
            The number of bytes of a partial message which were discarded, as `begin` isn't where
            content before ended; or 0.
        """
        ...

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes which were discarded."""
        ...

    def end(self) -> None:
        """Declare the end of content: a partial message is an error now."""
        ...


S = TypeVar("S", bound=Splitter)
MakeSplitter = Callable[[str, Framing, int], S]
"""Makes the splitter of a journal: of its name, its framing, and the offset it's read from."""


class ArrivalKind(Enum):
    """What became of reading a journal."""

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
class Arrival(Generic[S]):
    """What became of reading a journal."""

    source: JournalInput[S]
    kind: ArrivalKind
    chunk: bytes = b""
    begin: int = 0
    error: Exception | None = None


class JournalInput(Generic[S]):
    """One journal being read: its reader, and what splits its content.

    Args:
        client: Client to read with.
        request: What to read.
        framing: Framing of the journal.
        make_splitter: Makes its splitter.
        reader: The reader, if there is one already, which isn't closed between errors.
    """

    __slots__ = (
        "_client",
        "_request",
        "framing",
        "is_void",
        "journal",
        "owned",
        "reader",
        "replaying",
        "splitter",
    )

    def __init__(
        self,
        client: ReadingClient,
        request: pb.ReadRequest,
        framing: Framing,
        make_splitter: MakeSplitter[S],
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
        self.splitter: S = make_splitter(self.journal, framing, request.offset)

    @property
    def offset(self) -> int:
        """Offset of the next message; -1 for the write head, if that's not known yet."""
        offset = self.splitter.offset
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
        return self._client.read(request)

    def receive(self, arrival: Arrival[S]) -> None:
        """Let the splitter know of an arrival."""
        splitter = self.splitter
        kind = arrival.kind
        expected = splitter.offset
        discarded = 0
        if kind is ArrivalKind.CHUNK:
            discarded = splitter.feed(arrival.chunk, arrival.begin)
        elif kind is ArrivalKind.JUMP:
            discarded = splitter.jump(arrival.begin)
        elif kind is ArrivalKind.END:
            splitter.end()
        if discarded or kind is ArrivalKind.JUMP:
            extra = {
                "journal": self.journal,
                "from": expected,
                "to": arrival.begin,
                "discarded": discarded,
            }
            _logger.warning("source journal offset jump", extra=extra)


@dataclass(frozen=True, slots=True)
class ReaderSource:
    """A reader which was handed in, and stays at its own offset."""

    reader: RetryReader

    def __str__(self) -> str:
        return str(self.reader.journal)


@dataclass(frozen=True, slots=True)
class JournalSource:
    """Journals which are read by readers of our own."""

    client: JournalClient
    block: bool
    start: Start
    direct: bool | None

    def request(self, name: str, known: int | None) -> pb.ReadRequest:
        """Return the request to read a journal, from the offset which is known or else the start.

        Args:
            name: The journal.
            known: Offset up to which it was read, if it was.
        """
        start = self.start
        offset = known
        if offset is None:
            offset = start.get(name, 0) if isinstance(start, Mapping) else 0
        request = pb.ReadRequest(journal=name, offset=offset, block=self.block)
        if isinstance(start, datetime) and known is None:
            request.begin_mod_time = unix_ns(start) // 1_000_000_000
        request.do_not_proxy = bool(self.direct)
        return request


@dataclass(frozen=True, slots=True)
class NamedSource(JournalSource):
    """Journals to read by their names."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")


@dataclass(frozen=True, slots=True)
class SelectedSource(JournalSource):
    """The journals which a selector matches, or which are in a list that's kept up to date."""

    selection: pb.LabelSelector | WatchedList

    def __str__(self) -> str:
        if isinstance(self.selection, pb.LabelSelector):
            return repr(pb.format_label_selector(self.selection))
        return repr(self.selection)


Source = ReaderSource | NamedSource | SelectedSource


def open_source(
    source: RetryReader | str | Iterable[str] | pb.LabelSelector | WatchedList,
    client: JournalClient | None,
    *,
    block: bool,
    start: Start,
    direct: bool | None,
) -> Source:
    """Return the source of an iterator's arguments.

    Raises:
        ConfigurationError: If they contradict each other, or there's nothing to read.
        ValidationError: If a selector is invalid.
    """
    if _is_reader(source):
        if start is not None or client is not None or direct is not None:
            raise ConfigurationError("a reader has its own client and offset, and way of reading")
        return ReaderSource(source)
    if client is None:
        raise ConfigurationError("reading journals by name or selector takes a client")
    if isinstance(source, pb.LabelSelector):
        pb.validate(source)
        selector = pb.LabelSelector()
        selector.CopyFrom(source)
        return SelectedSource(client, block, start, direct, selector)
    if _is_list(source):
        return SelectedSource(client, block, start, direct, source)
    names = (source,) if isinstance(source, str) else tuple(source)
    if not names:
        raise ConfigurationError("no journals to read")
    if len(set(names)) != len(names):
        raise ConfigurationError("a journal is named more than once")
    return NamedSource(client, block, start, direct, names)


def _is_reader(source: Any) -> TypeIs[RetryReader]:
    return hasattr(source, "__anext__")


def _is_list(source: Any) -> TypeIs[WatchedList]:
    return hasattr(source, "changes")


def framing_of(spec: pb.JournalSpec, name: str) -> Framing:
    """Return the framing of a journal, by its content type.

    Raises:
        UnrecognizedContentTypeError: If there's none.
    """
    try:
        return framing_by_content_type(content_type_of(spec))
    except UnrecognizedContentTypeError as error:
        text = f"determining framing: {error}"
        raise UnrecognizedContentTypeError(text, journal=name) from error


async def fetch_framings(client: ReadingClient, names: Sequence[str]) -> list[Framing]:
    """Return the framing of each journal, by its content type.

    Cancellation: safe.

    Raises:
        ReadError: If a journal doesn't exist.
        UnrecognizedContentTypeError: If there's no framing of a journal's content type.
        GazetteError: If journals can't be listed.
    """
    framings: list[Framing] = []
    for begin in range(0, len(names), _LIST_NAMES):
        framings += await _fetch_slice(client, names[begin : begin + _LIST_NAMES])
    return framings


async def _fetch_slice(client: ReadingClient, names: Sequence[str]) -> list[Framing]:
    plain = [strip_meta(name) for name in names]
    selector = pb.LabelSelector()
    for name in dict.fromkeys(plain):
        selector.include.labels.add(name="name", value=str(name))
    selector.include.labels.sort(key=lambda label: label.value)
    try:
        response = await client.list(selector)
    except GazetteError as error:
        error.add_note("fetching journal spec")
        raise
    specs = {listed.spec.name: listed.spec for listed in response.journals}
    framings: list[Framing] = []
    for name, bare in zip(names, plain, strict=True):
        spec = specs.get(bare)
        if spec is None:
            text = f"fetching journal spec: named journal does not exist ({name})"
            raise ReadError(text, journal=str(name))
        framings.append(framing_of(spec, str(name)))
    return framings
