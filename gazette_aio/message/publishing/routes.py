"""Routes of a Publisher: the journals that it publishes to, and what is pending there."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, Lines, SplitMessages, SplittingAdapter
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.core import Stamper
from gazette_aio.message.publishing.encoding import check_journal
from gazette_aio.message.publishing.gate import MESSAGE_BYTES
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
from gazette_aio.protocol.errors import DependencyError, MixedTransactionError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gazette_aio.aio.turns import Turns
    from gazette_aio.client import AsyncAppend
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.publishing.journals import Journals

T = TypeVar("T")

Encoded = Lines | SplitMessages | list[Any]
"""Some messages of a batch: encoded, or as they are if their adapter can't split them."""

CROWD_BYTES: Final = 1 << 20
"""Bytes that are written to an append before it's drained."""

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


def splitter(adapter: Adapter[T]) -> Callable[[Sequence[T]], Encoded]:
    """Return a function that encodes messages, or copies them if the adapter can't split them."""
    # Hot: asking for a protocol takes longer than splitting a message.
    if not isinstance(adapter, SplittingAdapter):
        return list
    split = cast("SplittingAdapter[T]", adapter).split
    if isinstance(adapter, JSONAdapter):
        lines = cast("JSONAdapter[T]", adapter).lines
        return lambda messages: lines(messages) or split(messages)

    def checked(messages: Sequence[T]) -> SplitMessages:
        heads, between, rests = split(messages)
        counts = {len(rests), len(rests if isinstance(heads, bytes) else heads)}
        if counts != {len(messages)}:
            name = f"{type(adapter).__name__}.split()"
            found = " and ".join(map(str, sorted(counts)))
            raise ValidationError(
                f"{name} returned parts of {found} messages, given {len(messages)}"
            )
        return SplitMessages(heads, between, rests)

    return checked


def _shape(part: Encoded) -> tuple[type, bytes, bytes] | None:
    """Return the bytes around the UUIDs of messages, or None if they may differ."""
    if isinstance(part, Lines):
        return Lines, part.head, part.between
    if isinstance(part, SplitMessages) and isinstance(part.heads, bytes):
        return SplitMessages, part.heads, part.between
    return None


@dataclasses.dataclass(eq=False, slots=True)
class JournalState:
    """Messages of one journal, as a Publisher and its views have published them."""

    journal: str
    framing: Framing
    producer: ProducerID
    """ID that messages are stamped with."""
    acked_clock: int | None = None
    """Clock of the producer's last acknowledgement or committed message, if any."""
    pending: bool = False
    """Whether there are uncommitted messages without an acknowledgement."""
    first_clock: int = 0
    """Clock of the first uncommitted message."""
    cleared_error: ClearedError | None = None
    """Latest error of the journal that was cleared before the first uncommitted message."""
    last: AsyncAppend | None = None
    """Append of the last uncommitted message."""
    adapter: Adapter[Any] | None = None
    """Adapter of the first uncommitted message, which makes the acknowledgement."""

    def acknowledgement(self, clock: int) -> bytes:
        """Return the frame of an acknowledgement of uncommitted messages."""
        assert self.adapter is not None, "messages are pending"
        uuid = build_uuid(self.producer, clock, ACK_TXN)
        return self.framing.encode(self.adapter.acknowledgement(uuid))


def missing(journal: str, cleared: ClearedError | None) -> DependencyError:
    """Return the error of messages that may be missing, as an append failed."""
    assert cleared is not None, "an error which was cleared is never forgotten"
    error = DependencyError(
        f"messages to {journal} may be missing, as an append failed: {cleared.error}"
    )
    error.__cause__ = cleared.error
    return error


class Route(Generic[T]):
    """Encoders of messages of one adapter to a journal.

    Args:
        state: State of the journal.
        adapter: Encodes messages.
    """

    def __init__(self, state: JournalState, adapter: Adapter[T]) -> None:
        self.state: JournalState = state
        """State of the journal's published messages."""
        self.journal: str = state.journal
        self.adapter = adapter
        framing = state.framing
        self._stampers: dict[tuple[bytes, bytes, int], Stamper] = {}
        self._frame: Callable[[bytes], bytes] = framing.encode
        self._uuid_is_text: bool = getattr(adapter, "uuid_is_text", True)
        # JSON's adapter sees to it that messages don't hold the suffix.
        is_json = isinstance(adapter, JSONAdapter)
        self._suffix = framing.suffix if is_json else b""
        self._is_trusted = bool(self._suffix) or framing.encodes_any  # Framing never fails.
        self._split = splitter(adapter)
        self.encode_continue: Callable[[T, int], bytes] = self._encoder(CONTINUE_TXN)
        """Return the stamped frame of an uncommitted message, given its clock."""

    def stamp(self, messages: Encoded, clock: Clock, flags: Flags) -> tuple[int, bytes]:
        """Return the first clock and the stamped frames of messages, for which `clock` advances."""
        if isinstance(messages, list) and len(messages) == 1 and flags == CONTINUE_TXN:
            tick = clock.tick()
            return tick, self.encode_continue(messages[0], tick)
        first, step = (clock.value + clock.step) & MASK_64, clock.step
        clock.value = (clock.value + count_of(messages) * step) & MASK_64
        return first, self._frames(messages, flags, first, step)

    def check(self, messages: Encoded) -> None:
        """Raise the error that stamping or framing would raise, before a message is published."""
        if not self._is_trusted or isinstance(messages, list):
            self.length(messages)

    def length(self, messages: Encoded) -> int:
        """Return the length of the stamped frames of messages, or raise as `check()` does."""
        if isinstance(messages, Lines) and self._suffix == b"\n":
            added = len(messages.head) + TEXT_LENGTH + len(messages.between) - 1
            return len(messages.lines) + messages.rows * added
        return len(self._frames(messages, CONTINUE_TXN, _ANY_CLOCK, 0))

    def _frames(self, messages: Encoded, flags: Flags, first: int, step: int) -> bytes:
        if isinstance(messages, list):
            messages = self._split(messages)
        if isinstance(messages, list):
            encode = self._encoder(flags)
            return b"".join(
                [encode(message, first + n * step) for n, message in enumerate(messages)]
            )
        if isinstance(messages, Lines):
            if self._suffix == b"\n":
                stamper = self._stamper(messages.head, messages.between, flags)
                return stamper.lines(messages.lines, first, step)
            messages = messages.split()
        heads, between, rests = messages
        if isinstance(heads, bytes):
            stamped = self._stamper(heads, between, flags).messages(None, rests, first, step)
        else:
            stamped = self._stamper(b"", between, flags).messages(heads, rests, first, step)
        if self._suffix:
            return self._suffix.join([*stamped, b""])
        return b"".join(map(self._frame, stamped))

    def _stamper(self, head: bytes, after: bytes, flags: Flags) -> Stamper:
        key = head, after, flags
        stamper = self._stampers.get(key)
        if stamper is None:
            if len(self._stampers) >= _MOST_STAMPERS:  # Each message may have a head of its own.
                self._stampers.clear()
            producer = self.state.producer
            stamper = Stamper(head, after, producer, flags, text=self._uuid_is_text)
            self._stampers[key] = stamper
        return stamper

    def _encoder(self, flags: Flags) -> Callable[[T, int], bytes]:
        """Return a function of a message and a clock, which returns the stamped frame."""
        if self._suffix:
            adapter = cast("JSONAdapter[T]", self.adapter)
            return adapter.encoder(self.state.producer, flags, self._suffix)
        split, frames = self._split, self._frames
        if split is not list:
            return lambda message, clock: frames(split([message]), flags, clock, 0)
        frame, encode, producer = self._frame, self.adapter.encode, self.state.producer
        return lambda message, clock: frame(encode(message, build_uuid(producer, clock, flags)))


class Queued(NamedTuple):
    """A message that's encoded, but for its UUID; or several."""

    routes: Routes[Any]
    target: Target
    message: Encoded
    length: int
    """Bytes of its frame."""


class Routes(Generic[T]):
    """Routes of a Publisher, or of one of its views.

    Args:
        adapter: Encodes messages.
        journals: Journals, which all views share.
    """

    def __init__(self, adapter: Adapter[T], journals: Journals) -> None:
        self.journals = journals
        """Journals of the Publisher and its views."""
        self.by_target: dict[Target, Route[T]] = {}
        """Routes so far; `find()` replaces one whose journal's state is another by now."""
        self.split: Callable[[Sequence[T]], Encoded] = splitter(adapter)
        """Encodes messages, or copies them if the adapter can't split them."""
        self._adapter = adapter

    def find(self, target: Target) -> Route[T]:
        """Return the route of a journal, which may be new.

        Raises:
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal has uncommitted messages of another framing.
        """
        route = self.by_target.get(target)
        if route is None or route.state is not self.journals.states.get(route.journal):
            route = self.by_target[target] = Route(self.journals.state_of(target), self._adapter)
        return route

    def queued(self, target: Target, messages: Encoded) -> Queued:
        """Return messages to be held or queued, of which those that aren't encoded yet are.

        Raises:
            Exception: A message can't be encoded, or published to the journal.
        """
        if isinstance(messages, list):
            messages = self.split(messages)
        check_journal(target[0])
        return Queued(self, target, messages, self.find(target).length(messages))

    def route_to(self, target: Target, flags: Flags) -> Route[T]:
        """Return the route for a message with `flags`.

        Raises:
            MixedTransactionError: The message is a committed one, and the journal has others.
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal has uncommitted messages of another framing.
        """
        route = self.by_target.get(target)
        if route is None or not route.state.pending:
            route = self.find(target)
        if flags == OUTSIDE_TXN and route.state.pending and not self.journals.allow_mixed:
            raise MixedTransactionError(
                f"{route.journal} has uncommitted messages, which readers would drop"
            )
        return route

    def try_append(self, target: Target, messages: Encoded, flags: Flags) -> AsyncAppend | None:
        """Append messages, or return None if their journal is locked.

        Raises:
            GazetteError: As `route_to()`.
        """
        route, journals = self.route_to(target, flags), self.journals
        appends, state = journals.appends, route.state
        cleared = None if state.pending else appends.cleared_error(route.journal)
        journals.update_clock()
        # Invariant: from the tick to the append there's no await, so that the order of bytes is
        # the order of clocks.
        before = journals.clock.value
        first, data = route.stamp(messages, journals.clock, flags)
        journals.gate.turn_bytes -= MESSAGE_BYTES + len(data)
        append = appends.try_append(route.journal, data)
        if append is None:
            journals.clock.value = before
        else:
            journals.note(route, append, flags, first, cleared)
        return append

    async def append(
        self,
        batch: Sequence[tuple[Target, list[Encoded]]],
        flags: Flags,
        pace: Turns,
        producer: ProducerID | None = None,
    ) -> dict[str, AsyncAppend]:
        """Append messages journal by journal, and return the last append of each.

        Args:
            batch: By journal, parts in their order. Appending empties those of several parts.
            flags: Flags of the messages.
            pace: Turns of the event loop.
            producer: Producer of the messages, if they mustn't be of a later one.

        Raises:
            MixedTransactionError: A journal has uncommitted messages, and these aren't.
            DependencyError: An error of a journal was cleared meanwhile, or messages of the batch
                were abandoned.
            TransactionError: Their transaction has ended meanwhile.

        Cancellation: aborts — the messages of one append are kept or dropped as a whole.
        """
        journals, owner = self.journals, self.journals.gate.owner
        service = journals.appends
        appends: dict[str, AsyncAppend] = {}

        def check() -> None:
            journals.gate.check_owner(owner, flags)
            # Invariant: uncommitted messages of one batch are of one producer, so that none of
            # them commits without the others.
            if flags != OUTSIDE_TXN and producer not in {None, journals.producer}:
                raise DependencyError("uncommitted messages of the batch were abandoned")

        for target, parts in batch:
            journal, done = target[0], 0
            if len(parts) == 1 and count_of(parts[0]) == 1:
                check()
                if (now := self.try_append(target, parts[0], flags)) is not None:
                    appends[journal], producer = now, journals.producer
                    continue
            cleared = service.cleared_error(journal)
            while done < len(parts):
                append = await service.start_append(journal)
                try:
                    check()
                    # Race: while these waited, their producer may have been abandoned.
                    route = self.route_to(target, flags)
                    now_cleared = service.cleared_error(journal)
                    if done and now_cleared is not cleared:
                        raise missing(journal, now_cleared)
                    cleared = now_cleared
                    written = await self._write(append, route, parts[done:], flags, pace)
                except BaseException as error:
                    append.roll_back(error)
                    raise
                if written is None:
                    append.roll_back(DependencyError("uncommitted messages were abandoned"))
                    continue
                append.release()
                first, count = written
                journals.note(route, append, flags, first, cleared)
                appends[journal], producer = append, route.state.producer
                done += count
            while parts:
                # Releasing the memory of a large batch takes its time, too.
                parts.pop()
                await pace.rest()
        return appends

    async def _write(
        self,
        append: AsyncAppend,
        route: Route[T],
        parts: list[Encoded],
        flags: Flags,
        pace: Turns,
    ) -> tuple[int, int] | None:
        """Stamp and write parts to an append, as many as it may have.

        Returns:
            The first clock, and the number of parts written; or None if messages were abandoned
            meanwhile, so that the producer of the parts is never acknowledged.
        """
        journals = self.journals
        first = written = crowd = 0
        for number, part in enumerate(parts):
            if written:
                await pace.rest()
                if crowd >= CROWD_BYTES:
                    await append.drain()
                    crowd = 0
                if route.state.producer != journals.producer:
                    return None
                if written > journals.appends.cutoff_bytes:
                    return first, number
            journals.update_clock()
            # Invariant: clocks are taken while the journal is locked, so that the order of bytes
            # is the order of clocks.
            begin, data = route.stamp(part, journals.clock, flags)
            first = first or begin
            written += append.write(data)
            crowd += len(data)
        return first, len(parts)
