"""Publishing of messages, by themselves or in transactions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from time import time_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, StampingAdapter
from gazette_aio.message.framing import Framing, framing_by_content_type
from gazette_aio.message.intent_record import AckIntent
from gazette_aio.message.transaction import Transaction
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    MASK_64,
    OUTSIDE_TXN,
    UNIX_EPOCH_TICKS,
    Clock,
    Flags,
    ProducerID,
    build_uuid,
    new_producer_id,
)
from gazette_aio.protocol.errors import DependencyError, MixedTransactionError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import AppendService, AsyncAppend
    from gazette_aio.client.append_service import ClearedError
    from gazette_aio.message.intents import IntentLog
    from gazette_aio.message.mapping import Mapping, Target

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_TURNS = 256
"""Messages which are published without suspension."""


class Route(Generic[T]):
    """A journal which is published to, by its content type."""

    __slots__ = (
        "cleared_error",
        "encode_continue",
        "encode_outside",
        "first_clock",
        "frame",
        "journal",
        "last",
        "pending",
        "settled_clock",
    )

    def __init__(
        self,
        journal: str,
        frame: Callable[[bytes], bytes],
        encode_continue: Callable[[T, int], bytes],
        encode_outside: Callable[[T, int], bytes],
    ) -> None:
        self.journal = journal
        self.frame = frame
        self.encode_continue = encode_continue
        self.encode_outside = encode_outside
        self.pending = False
        """Whether there are uncommitted messages without an acknowledgement."""
        self.first_clock = 0
        """Clock of the first of them."""
        self.cleared_error: ClearedError | None = None
        """Latest error of the journal which was cleared before the first of them."""
        self.last: AsyncAppend | None = None
        """Append of the last of them."""
        self.settled_clock: int | None = None
        """Clock of the last acknowledgement or committed message, by the present producer."""

    def encode(self, message: T, clock: int, flags: Flags) -> bytes:
        """Return the stamped frame of a message, with either of the flags of messages."""
        encode = self.encode_outside if flags == OUTSIDE_TXN else self.encode_continue
        return encode(message, clock)


class Publisher(Generic[T]):
    """Publishes messages to journals, in the order of its clock.

    Within a journal, messages of a Publisher are in the order of their clocks. Its methods may be
    called by concurrent tasks of one event loop.

    Args:
        appends: Service to append through.
        adapter: Encodes and stamps messages.
        producer: ID to publish as; by default a fresh one. One which was used before a crash may
            have left messages pending, which an acknowledgement would commit.
        clock: Clock of messages, which is then up to the caller to update. By default the
            Publisher has one of its own, and updates it from wall time.
        allow_mixed: Permit `publish_committed()` to journals with pending uncommitted messages,
            which makes readers drop the latter.
    """

    def __init__(
        self,
        appends: AppendService,
        adapter: Adapter[T],
        *,
        producer: bytes | None = None,
        clock: Clock | None = None,
        allow_mixed: bool = False,
    ) -> None:
        if producer is not None and len(producer) != 6:
            raise ValidationError("a producer ID has six bytes")
        self.appends = appends
        self.adapter: Adapter[T] = adapter
        self.clock = Clock() if clock is None else clock
        self._update_clock = clock is None
        self._allow_mixed = allow_mixed
        self._try_append = appends.try_append
        self._routes: dict[tuple[str, str], Route[T]] = {}
        self._pending: list[Route[T]] = []
        # Of those which are pending, by what mappings return.
        self._open_routes: dict[Target | Awaitable[Target], Route[T]] = {}
        self._plain: set[type] = set()  # Types of messages which have no validation.
        self._transaction: Transaction | None = None
        # Publishing waits while the gate is set: a transaction is being acknowledged.
        self._gate: asyncio.Future[None] | None = None
        # Messages left to publish before the event loop has a turn; none while the gate is set.
        self._turns = _TURNS
        self._waiting = 0  # Publishers beyond the gate which wait to append.
        self._idle: asyncio.Future[None] | None = None
        self._producer = new_producer_id() if producer is None else ProducerID(producer)

    def _encoder(self, framing: Framing, flags: Flags) -> Callable[[T, int], bytes]:
        """Return a function of a message and a clock, which returns the stamped frame."""
        adapter, producer, frame = self.adapter, self._producer, framing.encode
        if not isinstance(adapter, StampingAdapter):

            def encode(message: T, clock: int) -> bytes:
                return frame(adapter.encode(message, build_uuid(producer, clock, flags)))

            return encode
        stamping = cast("StampingAdapter[T]", adapter)
        suffix: bytes = getattr(framing, "suffix", b"")
        if suffix:
            return stamping.encoder(producer, flags, suffix)
        stamp = stamping.encoder(producer, flags)

        def stamp_and_frame(message: T, clock: int) -> bytes:
            return frame(stamp(message, clock))

        return stamp_and_frame

    @property
    def producer_id(self) -> ProducerID:
        """ID of the producer. It changes when a transaction is abandoned."""
        return self._producer

    def __repr__(self) -> str:
        return (
            f"<Publisher {self._producer.hex()} clock={self.clock.value} "
            f"routes={len(self._routes)} pending={len(self._pending)}>"
        )

    async def publish_committed(self, mapping: Mapping[T], message: T) -> AsyncAppend:
        """Publish a message which readers of committed messages may process at once.

        Args:
            mapping: Returns the journal and content type of a message; plain or async.
            message: Message to publish. If it has a `validate()`, that's called first.

        Returns:
            The append, which may be awaited for the message to be committed by the broker.

        Cancellation: safe — nothing was published.

        Raises:
            MixedTransactionError: The journal has uncommitted messages of this Publisher.
            MappingError: The mapping has no journal for the message.
            UnrecognizedContentTypeError: There's no framing of the journal's content type.
            Exception: What the message's validation or encoding raises. Nothing is published.
        """
        self._turns -= 1
        return await self._publish(mapping, message, OUTSIDE_TXN)

    async def publish_uncommitted(self, mapping: Mapping[T], message: T) -> AsyncAppend:
        """Publish a message which is pending until its journal is acknowledged.

        Args:
            mapping: Returns the journal and content type of a message; plain or async.
            message: Message to publish. If it has a `validate()`, that's called first.

        Returns:
            The append, which may be awaited for the message to be written by the broker.

        Cancellation: safe — nothing was published.

        Raises:
            MappingError: The mapping has no journal for the message.
            UnrecognizedContentTypeError: There's no framing of the journal's content type.
            Exception: What the message's validation or encoding raises. Nothing is published.
        """
        # Hot: this is `_publish()`, spelled out for the case that nothing has to be awaited.
        turns = self._turns
        if turns > 0:
            self._turns = turns - 1
            if type(message) not in self._plain:
                self._validate(message)
            target = mapping(message)
            route = self._open_routes.get(target)
            if route is not None:
                clock = self.clock
                base = before = clock.value
                if self._update_clock:
                    now = (time_ns() // 100 + UNIX_EPOCH_TICKS) << 4
                    if now > base:  # noqa: PLR1730 - hot.
                        base = now
                clock.value = tick = (base + clock.step) & MASK_64
                append = self._try_append(route.journal, route.encode_continue(message, tick))
                if append is not None:
                    route.last = append
                    return append
                clock.value = before
            return await self._publish_mapped(target, message, CONTINUE_TXN)
        return await self._publish(mapping, message, CONTINUE_TXN)

    async def _publish(self, mapping: Mapping[T], message: T, flags: Flags) -> AsyncAppend:
        if self._turns <= 0 and self._gate is None:
            # A caller who never has to wait still lets others, and what writes appends, have turns.
            self._turns = _TURNS
            await asyncio.sleep(0)
        if type(message) not in self._plain:
            self._validate(message)
        return await self._publish_mapped(mapping(message), message, flags)

    async def _publish_mapped(
        self, target: Target | Awaitable[Target], message: T, flags: Flags
    ) -> AsyncAppend:
        if not isinstance(target, tuple):
            target = await target
        while self._gate is not None:
            await asyncio.shield(self._gate)
        route = self._route_to(target, flags)
        if self._update_clock:
            self.clock.update()
        # Invariant: from the tick to the append there's no await, so that the order of bytes is
        # the order of clocks.
        before = self.clock.value
        clock = self.clock.tick()
        append = self._try_append(route.journal, route.encode(message, clock, flags))
        if append is None:
            self.clock.value = before
            route, append, clock = await self._append_slowly(target, message, flags)
        if flags == OUTSIDE_TXN:
            route.settled_clock = clock
            return append
        if not route.pending:
            route.pending = True
            route.first_clock = clock
            route.cleared_error = self.appends.cleared_error(route.journal)
            self._pending.append(route)
            self._open_routes[target] = route
        route.last = append
        return append

    async def _append_slowly(
        self, target: Target, message: T, flags: Flags
    ) -> tuple[Route[T], AsyncAppend, int]:
        self._waiting += 1
        try:
            append = await self.appends.start_append(target[0])
            try:
                # Race: meanwhile the journal may have got uncommitted messages of others, or these
                # were abandoned, and the producer is another.
                route = self._route_to(target, flags)
                clock = self.clock.tick()
                append.write(route.encode(message, clock, flags))
            except BaseException as error:
                append.require(error)
                with contextlib.suppress(type(error)):
                    append.release()
                raise
            append.release()
            return route, append, clock
        finally:
            self._waiting -= 1
            if self._waiting == 0 and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _route_to(self, target: Target, flags: Flags) -> Route[T]:
        route = self._routes.get(target) or self._add_route(target)
        if flags == OUTSIDE_TXN and route.pending and not self._allow_mixed:
            raise MixedTransactionError(
                f"{route.journal} has uncommitted messages, which readers would drop"
            )
        return route

    def _add_route(self, target: Target) -> Route[T]:
        journal, content_type = target
        framing = framing_by_content_type(content_type)
        route = self._routes[journal, content_type] = Route(
            journal,
            framing.encode,
            self._encoder(framing, CONTINUE_TXN),
            self._encoder(framing, OUTSIDE_TXN),
        )
        return route

    def _validate(self, message: T) -> None:
        kind: Any = type(message)
        if _has_validate(kind):
            validated: Any = message
            validated.validate()
        else:
            self._plain.add(kind)

    def build_ack_intents(self) -> list[AckIntent]:
        """Return acknowledgements of the journals with uncommitted messages, and forget those.

        It appends nothing. To commit exactly once, in this order: await all uncommitted appends;
        store the intents along with the state which they belong to; append each intent to its
        journal; and after a crash append stored ones again before anything else. Nothing may be
        published to these journals meanwhile. `transaction()` does all that.

        Raises:
            Exception: What the adapter raises. Nothing was forgotten then.
        """
        intents: list[AckIntent] = []
        clocks: list[int] = []
        for route in self._pending:
            clock = self.clock.tick()
            message = self.adapter.acknowledgement(build_uuid(self._producer, clock, ACK_TXN))
            intents.append(AckIntent(route.journal, route.frame(message)))
            clocks.append(clock)
        for route, clock in zip(self._pending, clocks, strict=True):
            route.settled_clock = clock
            route.pending = False
            route.last = None
        self._pending = []
        self._open_routes = {}
        return intents

    def transaction(self, *, intents: IntentLog | None = None) -> Transaction:
        """Return an async context manager which commits what's published within it, or nothing.

        See Transaction for what happens in which order, and what holds after a crash.

        Args:
            intents: Where acknowledgements are stored before they're appended. Without it, a crash
                while they're appended may commit some journals and not others.
        """
        return Transaction(self, intents)

    def abandon(self) -> None:
        """Give up uncommitted messages: no later acknowledgement commits them.

        The Publisher takes a fresh producer ID, so that readers never relate them to what it
        publishes from now on. Where an append is possible at once, they're also rolled back
        explicitly, which spares readers from keeping them.
        """
        abandoned, producer = self._pending, self._producer
        # Invariant: whatever fails below, no acknowledgement is built for these messages any more.
        self._pending = []
        self._open_routes = {}
        self._routes = {}
        self._producer = new_producer_id()
        for route in abandoned:
            # Wire: an acknowledgement at or before the last one rolls back what's pending.
            clock = route.settled_clock
            if clock is None:
                clock = route.first_clock - 1
            if clock <= 0:
                continue  # There's no such acknowledgement: a zero clock is always committed.
            try:
                message = self.adapter.acknowledgement(build_uuid(producer, clock, ACK_TXN))
                self._try_append(route.journal, route.frame(message))
            except Exception as error:  # noqa: BLE001 - it's a service to readers, and no more.
                extra = {"journal": route.journal, "producer": producer.hex()}
                _logger.warning("can't roll back uncommitted messages: %s", error, extra=extra)

    def enter_transaction(self, transaction: Transaction) -> None:
        """Register the transaction which is open.

        Raises:
            RuntimeError: If there's another.
        """
        if self._transaction is not None:
            raise RuntimeError("a transaction of this Publisher is open already")
        self._transaction = transaction

    def leave_transaction(self) -> None:
        """Let another transaction open, and others publish."""
        self._transaction = None
        self._turns = _TURNS
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(None)

    async def hold_publishing(self) -> None:
        """Make publishing wait from now on, and wait for what is being published.

        Cancellation: aborts — publishing waits until `leave_transaction()`.
        """
        loop = asyncio.get_running_loop()
        self._gate = loop.create_future()
        self._turns = 0
        if self._waiting:
            self._idle = loop.create_future()
            try:
                await self._idle
            finally:
                self._idle = None

    async def flush(self) -> None:
        """Wait until all uncommitted messages which await acknowledgement are written.

        Cancellation: safe.

        Raises:
            GazetteError: If an append failed, or may have failed whose error was cleared.
        """
        for route in list(self._pending):
            # Invariant: appends of one journal complete in order, and fail all later ones, until
            # somebody clears the error.
            if route.last is not None:
                await route.last
            cleared = self.appends.cleared_error(route.journal)
            if cleared is not None and cleared is not route.cleared_error:
                raise DependencyError(
                    f"messages to {route.journal} may be missing, as an error of its appends was "
                    f"cleared: {cleared.error}"
                ) from cleared.error


@functools.lru_cache(maxsize=1024)
def _has_validate(kind: Any) -> bool:
    bases: tuple[type, ...] = kind.__mro__
    for base in bases:
        defined = vars(base).get("validate")
        if defined is not None:
            # Models of pydantic have a deprecated class method of that name.
            return base.__module__.partition(".")[0] != "pydantic" and inspect.isfunction(defined)
    return False
