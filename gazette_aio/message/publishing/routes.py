"""Routes of a Publisher: the journals that it publishes to, and what is pending there."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, Lines, SplitMessages, StampingAdapter
from gazette_aio.message.core import Stamper
from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    MASK_64,
    OUTSIDE_TXN,
    TEXT_LENGTH,
    Clock,
    Flags,
    ProducerID,
    build_uuid,
)
from gazette_aio.protocol.errors import MixedTransactionError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_aio.client import AsyncAppend
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.publishing.journals import Journals

T = TypeVar("T")

Encoded = Lines | SplitMessages | list[Any]
"""Some messages of a batch: encoded, or as they are if their adapter can't split them."""

_ANY_CLOCK: Final = 1 << 60
_MOST_STAMPERS: Final = 8


def merged(parts: Iterable[Encoded]) -> Iterator[Encoded]:
    """Yield the same messages, those of one shape at once: it's faster to stamp many."""
    for shape, some in groupby(parts, _shape):
        if shape is None:
            yield from some
            continue
        cls, head, between = shape
        alike: Any = list(some)
        if cls is Lines:
            lines = b"".join([part.lines for part in alike])
            yield Lines(head, between, lines, sum(part.rows for part in alike))
        else:
            yield SplitMessages(head, between, [rest for part in alike for rest in part.rests])


def count_of(messages: Encoded) -> int:
    """Return the number of messages."""
    if isinstance(messages, Lines):
        return messages.rows
    return len(messages.rests if isinstance(messages, SplitMessages) else messages)


def _shape(part: Encoded) -> tuple[type, bytes, bytes] | None:
    """Return the bytes around the UUIDs of messages, or None if they may differ."""
    if isinstance(part, Lines):
        return Lines, part.head, part.between
    if isinstance(part, SplitMessages) and isinstance(part.heads, bytes):
        return SplitMessages, part.heads, part.between
    return None


class JournalState:
    """Messages of one journal, as a Publisher and its views have published them.

    Args:
        journal: Name of the journal.
        framing: Framing of its messages.
        producer: ID that messages are stamped with.
        acked_clock: Clock of the producer's last acknowledgement or committed message, if any.
    """

    __slots__ = (
        "acked_clock",
        "adapter",
        "cleared_error",
        "first_clock",
        "framing",
        "journal",
        "last",
        "pending",
        "producer",
    )

    def __init__(
        self,
        journal: str,
        framing: Framing,
        producer: ProducerID,
        acked_clock: int | None = None,
    ) -> None:
        self.journal: str = journal
        self.framing: Framing = framing
        self.producer: ProducerID = producer
        self.pending: bool = False
        """Whether there are uncommitted messages without an acknowledgement."""
        self.first_clock: int = 0
        """Clock of the first uncommitted message."""
        self.cleared_error: ClearedError | None = None
        """Latest error of the journal that was cleared before the first uncommitted message."""
        self.last: AsyncAppend | None = None
        """Append of the last uncommitted message."""
        self.acked_clock: int | None = acked_clock
        """Clock of the last acknowledgement or committed message of the producer."""
        self.adapter: Adapter[Any] | None = None
        """Adapter of the first uncommitted message, which makes the acknowledgement."""

    def acknowledgement(self, clock: int) -> bytes:
        """Return the frame of an acknowledgement of uncommitted messages."""
        assert self.adapter is not None, "messages are pending"
        uuid = build_uuid(self.producer, clock, ACK_TXN)
        return self.framing.encode(self.adapter.acknowledgement(uuid))


class Route(Generic[T]):
    """A journal that is published to, and its encoders.

    Args:
        target: The journal and its content type.
        adapter: Encodes messages.
        producer: ID to stamp messages with.
        state: State of the journal; None for a fresh one.

    Raises:
        UnrecognizedContentTypeError: There's no framing of the content type.
    """

    def __init__(
        self,
        target: Target,
        adapter: Adapter[T],
        producer: ProducerID,
        state: JournalState | None = None,
    ) -> None:
        self.target = target
        self.journal: str
        self.journal, content_type = target
        self.framing: Framing
        self.framing = framing = framing_by_content_type(content_type, journal=self.journal)
        self.producer = producer
        self._stampers: dict[tuple[bytes, bytes, int], Stamper] = {}
        self.frame: Callable[[bytes], bytes] = framing.encode
        self.uuid_is_text: bool = getattr(adapter, "uuid_is_text", True)
        # Adapters that stamp see to it that messages don't hold the suffix. UUIDs of bytes may.
        has_suffix = self.uuid_is_text and isinstance(adapter, StampingAdapter)
        self.suffix: bytes = framing.suffix if has_suffix else b""
        """Bytes that framing appends to a message; empty if `frame` has to be called."""
        self._is_trusted = bool(self.suffix) or framing.encodes_any  # Framing never fails.
        self.encode_continue: Callable[[T, int], bytes] = self._encoder(adapter, CONTINUE_TXN)
        self.encode_outside: Callable[[T, int], bytes] = self._encoder(adapter, OUTSIDE_TXN)
        self.state: JournalState = state or JournalState(self.journal, framing, producer)
        """State of the journal's published messages."""

    def encode(self, message: T, clock: int, flags: Flags) -> bytes:
        """Return the stamped frame of a message."""
        encode = self.encode_outside if flags == OUTSIDE_TXN else self.encode_continue
        return encode(message, clock)

    def stamp(self, messages: Encoded, clock: Clock, flags: Flags) -> tuple[int, bytes]:
        """Return the first clock and the stamped frames of messages, for which `clock` advances."""
        first, step = (clock.value + clock.step) & MASK_64, clock.step
        data = self._frames(messages, flags, first, step)
        clock.value = (clock.value + count_of(messages) * step) & MASK_64
        return first, data

    def check(self, messages: Encoded, flags: Flags) -> None:
        """Raise the error that stamping or framing would raise, before a message is published."""
        if not self._is_trusted or isinstance(messages, list):
            self.stamp(messages, Clock(_ANY_CLOCK, tick=0), flags)

    def length(self, messages: Encoded) -> int:
        """Return the length of the stamped frames of messages, or raise as `check()` does."""
        if isinstance(messages, Lines) and self.suffix == b"\n":
            added = len(messages.head) + TEXT_LENGTH + len(messages.between) - 1
            return len(messages.lines) + messages.rows * added
        return len(self.stamp(messages, Clock(_ANY_CLOCK, tick=0), CONTINUE_TXN)[1])

    def _frames(self, messages: Encoded, flags: Flags, first: int, step: int) -> bytes:
        if isinstance(messages, list):
            encode = self.encode_outside if flags == OUTSIDE_TXN else self.encode_continue
            return b"".join(
                [encode(message, first + n * step) for n, message in enumerate(messages)]
            )
        if isinstance(messages, Lines):
            if self.suffix == b"\n":
                stamper = self._stamper(messages.head, messages.between, flags)
                return stamper.lines(messages.lines, first, step)
            messages = messages.split()
        heads, between, rests = messages
        if isinstance(heads, bytes):
            stamped = self._stamper(heads, between, flags).messages(None, rests, first, step)
        else:
            stamped = self._stamper(b"", between, flags).messages(heads, rests, first, step)
        if self.suffix:
            return self.suffix.join([*stamped, b""])
        return b"".join(map(self.frame, stamped))

    def _stamper(self, head: bytes, after: bytes, flags: Flags) -> Stamper:
        key = head, after, flags
        stamper = self._stampers.get(key)
        if stamper is None:
            if len(self._stampers) >= _MOST_STAMPERS:  # Each message may have a head of its own.
                self._stampers.clear()
            stamper = Stamper(head, after, self.producer, flags, text=self.uuid_is_text)
            self._stampers[key] = stamper
        return stamper

    def _encoder(self, adapter: Adapter[T], flags: Flags) -> Callable[[T, int], bytes]:
        """Return a function of a message and a clock, which returns the stamped frame."""
        frame, producer = self.frame, self.producer
        if not isinstance(adapter, StampingAdapter):

            def encode(message: T, clock: int) -> bytes:
                return frame(adapter.encode(message, build_uuid(producer, clock, flags)))

            return encode
        stamping = cast("StampingAdapter[T]", adapter)
        if self.suffix:
            return stamping.encoder(producer, flags, self.suffix)
        encode_stamped = stamping.encoder(producer, flags)

        def stamp_and_frame(message: T, clock: int) -> bytes:
            return frame(encode_stamped(message, clock))

        return stamp_and_frame


class Routes(Generic[T]):
    """Routes of a Publisher, or of one of its views.

    Args:
        adapter: Encodes messages.
        journals: Journals, which all views share.
    """

    def __init__(self, adapter: Adapter[T], journals: Journals) -> None:
        self.journals = journals
        """Journals of the Publisher and its views."""
        self.open: dict[Target, Route[T]] = {}
        """Routes of journals with uncommitted messages. It's never replaced by another object."""
        self._adapter = adapter
        self._by_target: dict[Target, Route[T]] = {}
        journals.tables.add(self)

    def find(self, target: Target) -> Route[T]:
        """Return the route of a journal, which may be new.

        Raises:
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal has uncommitted messages of another framing.
        """
        return self._by_target.get(target) or self._add(target)

    def route_to(self, target: Target, flags: Flags) -> Route[T]:
        """Return the route for a message with `flags`.

        Raises:
            MixedTransactionError: The message is a committed one, and the journal has others.
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal has uncommitted messages of another framing.
        """
        route = self._by_target.get(target) or self._add(target)
        if flags == OUTSIDE_TXN and route.state.pending and not self.journals.allow_mixed:
            raise MixedTransactionError(
                f"{route.journal} has uncommitted messages, which readers would drop"
            )
        return route

    def _add(self, target: Target) -> Route[T]:
        journals = self.journals
        before = journals.states.get(target[0])
        route = Route(target, self._adapter, journals.producer, before)
        # Invariant: a journal has one state, as its readers know of one acknowledgement.
        if before is None:
            journals.states[route.journal] = route.state
        elif before.framing is not route.framing:
            if before.pending:
                text = f"{route.journal} has uncommitted messages of content type"
                other = before.framing.content_type
                raise ValidationError(f"{text} {other!r}, and not {target[1]!r}")
            route.state = JournalState(
                route.journal, route.framing, journals.producer, before.acked_clock
            )
            journals.states[route.journal] = route.state
            for table in journals.tables:
                table.forget(before)
        self._by_target[target] = route
        return route

    def note(self, route: Route[T], append: AsyncAppend, clock: int, flags: Flags) -> None:
        """Note the append of one message."""
        state = route.state
        if flags == OUTSIDE_TXN:
            state.acked_clock = clock
            return
        if not state.pending:
            self.note_pending(route, clock, self.journals.appends.cleared_error(route.journal))
        self.open[route.target] = route
        state.last = append

    def note_pending(self, route: Route[T], clock: int, cleared: ClearedError | None) -> None:
        """Note that a journal has an uncommitted message now.

        Args:
            route: Route of the journal.
            clock: Clock of the message.
            cleared: Latest error of the journal that was cleared before.
        """
        state = route.state
        state.pending = True
        state.first_clock = clock
        state.cleared_error = cleared
        state.adapter = self._adapter
        self.journals.pending.append(state)
        self.open[route.target] = route

    def forget(self, state: JournalState) -> None:
        """Forget the routes of a journal."""
        known = self._by_target.items()
        self._by_target = {target: route for target, route in known if route.state is not state}

    def clear(self) -> None:
        """Forget all routes."""
        self.open.clear()
        self._by_target = {}
