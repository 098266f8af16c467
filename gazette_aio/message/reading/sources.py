"""Sources of messages: a reader, journals by name, or journals that a selector matches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.message.uuid import unix_ns
from gazette_aio.protocol.errors import (
    ConfigurationError,
    GazetteError,
    ValidationError,
)
from gazette_aio.protocol.journal import encodable, strip_meta, validate_journal
from gazette_aio.protocol.selector import is_selector_expression
from gazette_aio.protocol.status_errors import not_listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

    from gazette_aio.client import JournalClient, RetryReader, WatchedList
    from gazette_aio.message.reading.options import ReadOptions, Start

    SourceArgument: TypeAlias = RetryReader | str | Iterable[str] | pb.LabelSelector | WatchedList

_LIST_NAMES = 256
"""Journals listed by name in one request. Brokers compare each name with all of their journals."""


@dataclass(frozen=True, slots=True)
class ReaderSource:
    """A given reader, which keeps its own offset."""

    reader: RetryReader
    block: ClassVar[bool] = False
    """Whether to wait at the write head: the reader decides this."""

    @property
    def client(self) -> JournalClient:
        """Client of the reader."""
        return self.reader.client

    @property
    def names(self) -> tuple[str]:
        """Name of the journal."""
        return (str(self.reader.journal),)

    def request(self, name: str, known: int | None) -> pb.ReadRequest:  # noqa: ARG002
        """Return the request of the reader."""
        return self.reader.request

    def __str__(self) -> str:
        return str(self.reader.journal)


@dataclass(frozen=True, slots=True)
class JournalSource:
    """Journals with readers made by the iterator."""

    client: JournalClient
    block: bool
    start: Start
    direct: bool | None

    def request(self, name: str, known: int | None) -> pb.ReadRequest:
        """Return the request to read a journal, from the known offset or else the start.

        Args:
            name: The journal.
            known: Offset up to which the journal was read, if any.
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
    """Journals to read, by name."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")


@dataclass(frozen=True, slots=True)
class SelectedSource(JournalSource):
    """Journals that a selector matches, or of a list that's kept up to date."""

    selection: pb.LabelSelector | WatchedList

    def __str__(self) -> str:
        if isinstance(self.selection, pb.LabelSelector):
            return repr(pb.format_label_selector(self.selection))
        return repr(self.selection)


Source = ReaderSource | NamedSource | SelectedSource


def open_source(source: SourceArgument, options: ReadOptions) -> Source:
    """Return the source for an iterator's arguments.

    Raises:
        ConfigurationError: Arguments contradict each other, or name no journal, or a selector
            is given as text, which names a journal.
        ValidationError: A selector is invalid.
    """
    client, start, direct = options.get("client"), options.get("start"), options.get("direct")
    if _is_reader(source):
        if start is not None or client is not None or direct is not None:
            raise ConfigurationError("a reader has its own client, offset and options")
        return ReaderSource(source)
    if client is None:
        raise ConfigurationError("reading journals by name or selector takes a client")
    if not hasattr(client, "list"):
        raise ConfigurationError(f"client: expected that of connect(), not {client!r}")
    block = options.get("block", False)
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
    for name in names:
        _refuse_selector(encodable(name))
    return NamedSource(client, block, start, direct, names)


def _refuse_selector(name: str) -> None:
    if not is_selector_expression(name):
        return
    try:
        validate_journal(name)
    except ValidationError:
        text = f"{name!r} is a selector, and text names a journal here: {_advice(name)}"
        raise ConfigurationError(text) from None


def _advice(selector: str) -> str:
    return f"to read the journals that it matches, pass parse_label_selector({selector!r})"


def _is_reader(source: Any) -> TypeIs[RetryReader]:
    return hasattr(source, "__anext__")


def _is_list(source: Any) -> TypeIs[WatchedList]:
    return hasattr(source, "changes")


async def fetch_specs(client: JournalClient, names: Sequence[str]) -> list[pb.JournalSpec]:
    """Return the specification of each journal.

    Raises:
        JournalNotFoundError: A journal doesn't exist.
        GazetteError: Journals can't be listed.

    Cancellation: safe.
    """
    specs: list[pb.JournalSpec] = []
    for begin in range(0, len(names), _LIST_NAMES):
        specs += await _fetch_slice(client, names[begin : begin + _LIST_NAMES])
    return specs


async def _fetch_slice(client: JournalClient, names: Sequence[str]) -> list[pb.JournalSpec]:
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
    by_name = {listed.spec.name: listed.spec for listed in response.journals}
    specs: list[pb.JournalSpec] = []
    for name, bare in zip(names, plain, strict=True):
        spec = by_name.get(bare)
        if spec is None:
            advice = f"; if it's a selector, {_advice(name)}"
            remedy = advice if is_selector_expression(name) else ""
            step = "fetching journal spec: "
            endpoint = client.context.dispatcher.endpoint
            raise not_listed(str(name), response, endpoint, step=step, remedy=remedy)
        specs.append(spec)
    return specs
