"""Routes of a Publisher: the journals which it publishes to, and what is pending there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, SplitMessages, StampingAdapter
from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.publishing.intent_record import AckIntent
from gazette_aio.message.publishing.stamping import Ticks, stamp
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    MASK_64,
    OUTSIDE_TXN,
    Clock,
    Flags,
    ProducerID,
    build_uuid,
    new_producer_id,
)
from gazette_aio.protocol.errors import MixedTransactionError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import AsyncAppend
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.mapping import Target

T = TypeVar("T")

Encoded = SplitMessages | list[Any]
"""Some messages of a batch: encoded, or as they are if their adapter can't split them."""

_ANY_CLOCK: Final = 1 << 60


class Route(Generic[T]):
    """A journal which is published to, and its encoders.

    Args:
        target: The journal and its content type.
        adapter: Encodes messages.
        producer: ID to stamp messages with.

    Raises:
        UnrecognizedContentTypeError: There's no framing of the content type.
    """

    def __init__(self, target: Target, adapter: Adapter[T], producer: ProducerID) -> None:
        self.target = target
        self.journal, content_type = target
        self.framing = framing = framing_by_content_type(content_type, journal=self.journal)
        self.producer = producer
        self.frame = framing.encode
        self.uuid_is_text: bool = getattr(adapter, "uuid_is_text", True)
        # Adapters which stamp see to it that messages don't hold the suffix. UUIDs of bytes may.
        has_suffix = self.uuid_is_text and isinstance(adapter, StampingAdapter)
        self.suffix: bytes = framing.suffix if has_suffix else b""
        """Bytes which framing appends to a message; empty if `frame` has to be called."""
        self._is_trusted = bool(self.suffix) or framing.encodes_any  # Framing never fails.
        self.encode_continue = self._encoder(adapter, CONTINUE_TXN)
        self.encode_outside = self._encoder(adapter, OUTSIDE_TXN)
        self.pending = False
        """Whether there are uncommitted messages without an acknowledgement."""
        self.first_clock = 0
        """Clock of the first uncommitted message."""
        self.cleared_error: ClearedError | None = None
        """Latest error of the journal which was cleared before the first uncommitted message."""
        self.last: AsyncAppend | None = None
        """Append of the last uncommitted message."""
        self.acked_clock: int | None = None
        """Clock of the last acknowledgement or committed message of the producer."""

    def encode(self, message: T, clock: int, flags: Flags) -> bytes:
        """Return the stamped frame of a message."""
        encode = self.encode_outside if flags == OUTSIDE_TXN else self.encode_continue
        return encode(message, clock)

    def stamp(self, messages: Encoded, clock: Clock, flags: Flags) -> tuple[int, bytes]:
        """Return the first clock and the stamped frames of messages, for which `clock` advances."""
        count = len(messages.rests if isinstance(messages, SplitMessages) else messages)
        first = (clock.value + clock.step) & MASK_64
        data = self._frames(messages, Ticks(self.producer, flags, first, clock.step, count))
        clock.value = (clock.value + count * clock.step) & MASK_64
        return first, data

    def check(self, messages: Encoded, flags: Flags) -> None:
        """Raise the error which stamping or framing would raise, before a message is published."""
        if not (self._is_trusted and isinstance(messages, SplitMessages)):
            self.stamp(messages, Clock(_ANY_CLOCK, tick=0), flags)

    def _frames(self, messages: Encoded, ticks: Ticks) -> bytes:
        if isinstance(messages, SplitMessages):
            frame = None if self.suffix else self.frame
            return stamp(messages, ticks, text=self.uuid_is_text, suffix=self.suffix, frame=frame)
        encode = self.encode_outside if ticks.flags == OUTSIDE_TXN else self.encode_continue
        return b"".join(
            [encode(message, ticks.first + n * ticks.step) for n, message in enumerate(messages)]
        )

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


class Abandoned(NamedTuple):
    """A journal with abandoned messages."""

    route: Route[Any]
    clock: int
    """Clock of an acknowledgement which rolls them back; below 1 if there is none."""


class Routes(Generic[T]):
    """The journals of a Publisher, and their uncommitted messages.

    Args:
        adapter: Encodes messages.
        producer: ID to stamp messages with.
        allow_mixed: Permit committed messages to journals with uncommitted ones.
    """

    def __init__(self, adapter: Adapter[T], producer: ProducerID, *, allow_mixed: bool) -> None:
        self.producer = producer
        self.pending: list[Route[T]] = []
        """Routes with uncommitted messages, in the order of their first ones."""
        self.open: dict[Target | Awaitable[Target], Route[T]] = {}
        """The same by their targets. It's never replaced by another object."""
        self._adapter = adapter
        self._allow_mixed = allow_mixed
        self._by_target: dict[Target, Route[T]] = {}
        self._by_journal: dict[str, Route[T]] = {}

    def __len__(self) -> int:
        return len(self._by_journal)

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
        if flags == OUTSIDE_TXN and route.pending and not self._allow_mixed:
            raise MixedTransactionError(
                f"{route.journal} has uncommitted messages, which readers would drop"
            )
        return route

    def _add(self, target: Target) -> Route[T]:
        route = Route(target, self._adapter, self.producer)
        before = self._by_journal.get(route.journal)
        if before is not None:
            # Invariant: a journal has one route, as its readers know of one acknowledgement.
            if before.framing is route.framing:
                self._by_target[target] = before
                return before
            if before.pending:
                text = f"{route.journal} has uncommitted messages of content type"
                raise ValidationError(f"{text} {before.target[1]!r}, and not {target[1]!r}")
            route.acked_clock = before.acked_clock
            others = self._by_target.items()
            self._by_target = {known: other for known, other in others if other is not before}
        self._by_target[target] = self._by_journal[route.journal] = route
        return route

    def note_pending(self, route: Route[T], clock: int, cleared: ClearedError | None) -> None:
        """Note that a journal has an uncommitted message now.

        Args:
            route: Route of the journal.
            clock: Clock of the message.
            cleared: Latest error of the journal which was cleared before.
        """
        route.pending = True
        route.first_clock = clock
        route.cleared_error = cleared
        self.pending.append(route)
        self.open[route.target] = route

    def acknowledge(self, clock: Clock) -> list[AckIntent]:
        """Return acknowledgements of uncommitted messages, and forget these.

        Raises:
            Exception: The adapter raises it. Nothing is forgotten.
        """
        intents: list[AckIntent] = []
        clocks: list[int] = []
        for route in self.pending:
            clocks.append(clock.tick())
            intents.append(AckIntent(route.journal, self.acknowledgement(route, clocks[-1])))
        for route, acked in zip(self.pending, clocks, strict=True):
            route.acked_clock = acked
            route.pending = False
            route.last = None
        self.pending = []
        self.open.clear()
        return intents

    def acknowledgement(self, route: Route[T], clock: int) -> bytes:
        """Return the frame of an acknowledgement, of the producer of a route."""
        uuid = build_uuid(route.producer, clock, ACK_TXN)
        return route.frame(self._adapter.acknowledgement(uuid))

    def abandon(self) -> list[Abandoned]:
        """Forget all routes, take a fresh producer, and return the abandoned messages."""
        abandoned: list[Abandoned] = []
        for route in self.pending:
            # Wire: an acknowledgement at or before the last one rolls back what's pending.
            acked = route.acked_clock
            abandoned.append(Abandoned(route, route.first_clock - 1 if acked is None else acked))
        self.pending = []
        self.open.clear()
        self._by_target = {}
        self._by_journal = {}
        self.producer = new_producer_id()
        return abandoned
