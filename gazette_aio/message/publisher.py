"""Publishing of messages, by themselves or in transactions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.message.adapters.base import Adapter, SplitMessages
from gazette_aio.message.batch_encoding import (
    Encoded,
    MessageRows,
    Pace,
    Rows,
    encode_rows,
    map_rows,
)
from gazette_aio.message.intent_record import AckIntent
from gazette_aio.message.routes import Route
from gazette_aio.message.tables import rows_of_table
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
    from collections.abc import Awaitable, Sequence

    from gazette_aio.client import AppendService, AsyncAppend
    from gazette_aio.client.append_service import ClearedError
    from gazette_aio.message.intents import IntentLog
    from gazette_aio.message.mapping import Mapping, Target

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_TURN_BYTES: Final = 1 << 19
"""Bytes which are published without suspension: some two milliseconds' worth."""
_MESSAGE_BYTES: Final = 300
"""What a message counts on top of its length: as many bytes take as long."""

_CROWD_BYTES: Final = 1 << 20
"""Bytes of an append which are written before content is moved out of memory."""


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
        # Bytes left to publish before the event loop has a turn; none while the gate is set.
        self._turn_bytes = _TURN_BYTES
        self._waiting = 0  # Publishers beyond the gate which wait to append.
        self._idle: asyncio.Future[None] | None = None
        self._producer = new_producer_id() if producer is None else ProducerID(producer)

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
        turn_bytes = self._turn_bytes
        if turn_bytes > 0:
            if type(message) not in self._plain:
                self._validate(message)
            target = mapping(message)
            route = self._open_routes.get(target)
            if route is not None:
                clock = self.clock
                before = clock.value
                tick = before + clock.step
                if self._update_clock:
                    now = (time_ns() // 100 + UNIX_EPOCH_TICKS) << 4
                    if now > before:
                        tick = now + clock.step
                if tick > MASK_64:
                    tick &= MASK_64
                clock.value = tick
                data = route.encode_continue(message, tick)
                append = self._try_append(route.journal, data)
                if append is not None:
                    self._turn_bytes = turn_bytes - _MESSAGE_BYTES - len(data)
                    route.last = append
                    return append
                clock.value = before
            return await self._publish_mapped(target, message, CONTINUE_TXN)
        return await self._publish(mapping, message, CONTINUE_TXN)

    async def _publish(self, mapping: Mapping[T], message: T, flags: Flags) -> AsyncAppend:
        if self._turn_bytes <= 0 and self._gate is None:
            # A caller who never has to wait still lets others, and what writes appends, have turns.
            self._turn_bytes = _TURN_BYTES
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
        data = route.encode(message, clock, flags)
        self._turn_bytes -= _MESSAGE_BYTES + len(data)
        append = self._try_append(route.journal, data)
        if append is None:
            self.clock.value = before
            route, append, clock = await self._append_slowly(target, message, flags)
        if flags == OUTSIDE_TXN:
            route.settled_clock = clock
            return append
        if not route.pending:
            self._note_pending(route, clock, self.appends.cleared_error(route.journal))
        route.last = append
        return append

    def _note_pending(self, route: Route[T], clock: int, cleared: ClearedError | None) -> None:
        route.pending = True
        route.first_clock = clock
        route.cleared_error = cleared
        self._pending.append(route)
        self._open_routes[route.target] = route

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
            self._end_waiting()

    def _end_waiting(self) -> None:
        self._waiting -= 1
        if self._waiting == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def publish_committed_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Sequence[T] = (),
        *,
        table: Any = None,
    ) -> dict[str, AsyncAppend]:
        """Publish messages which readers of committed messages may process at once.

        As `publish_uncommitted_batch()`, but messages aren't part of a transaction.

        Args:
            mapping: Returns the journal and content type of a message, plain or async; or a pair of
                them for all. Rows of a table are handed to it as dicts.
            messages: Messages to publish.
            table: Or a table of them, such as a pyarrow.Table or a polars.DataFrame.

        Returns:
            The append of each journal.

        Cancellation: aborts — journals which were appended to keep their messages.

        Raises:
            MixedTransactionError: A journal has uncommitted messages of this Publisher.
        """
        return await self._publish_batch(mapping, messages, table, OUTSIDE_TXN)

    async def publish_uncommitted_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Sequence[T] = (),
        *,
        table: Any = None,
    ) -> dict[str, AsyncAppend]:
        """Publish messages which are pending until their journals are acknowledged.

        All of them are validated, mapped and encoded before anything is published: if one can't be,
        none is. Then those of a journal are one append, in their order; only beyond
        `AppendService.cutoff_bytes` they're several. Journals follow each other, each is locked
        only while it's its turn, and the event loop has turns in between.

        Rows of a table become messages by the names of its columns if they're JSON or protobuf, and
        by their positions if they're CSV. Columns named `_journal`, `_begin`, `_end`, `_timestamp`,
        `_clock`, `_producer` and `_flags` are left out, so that what `arrow()` has read may be
        published. If all that remains is `_value`, that's the whole message as bytes or text.

        Args:
            mapping: Returns the journal and content type of a message, plain or async; or a pair of
                them for all. Rows of a table are handed to it as dicts.
            messages: Messages to publish.
            table: Or a table of them, such as a pyarrow.Table or a polars.DataFrame.

        Returns:
            The append of each journal. If a journal has several it's the last, which succeeds only
            if all do.

        Cancellation: aborts — journals which were appended to keep their messages.

        Raises:
            MappingError: The mapping has no journal for a message.
            UnrecognizedContentTypeError: There's no framing of a journal's content type.
            ValidationError: A table has a value which messages can't hold.
            ConfigurationError: There's no pyarrow, or messages of the adapter can't be made of the
                columns of the table.
            DependencyError: Part of a journal's messages may be missing, as an error was cleared.
            Exception: What validation, the mapping or encoding raises, with a note of which message
                of the batch it was. Nothing is published then.
        """
        return await self._publish_batch(mapping, messages, table, CONTINUE_TXN)

    async def _publish_batch(
        self, mapping: Mapping[Any] | Target, messages: Sequence[T], table: Any, flags: Flags
    ) -> dict[str, AsyncAppend]:
        rows: Rows = MessageRows(messages, self.adapter, self._validate, self._plain)
        if table is not None:
            if len(messages):
                raise ValidationError("a batch has either messages or a table")
            rows = await rows_of_table(table, self.adapter)
        pace = Pace()
        batch: list[tuple[Target, list[Encoded]]] = []
        for target, indices in (await map_rows(rows, mapping, pace)).items():
            _check_journal(target[0])
            route = self._routes.get(target) or self._add_route(target)
            batch.append((target, await encode_rows(rows, indices, route, flags, pace)))
        while self._gate is not None:
            await asyncio.shield(self._gate)
        for target, _ in batch:
            self._route_to(target, flags)
        self._waiting += 1
        try:
            appends: dict[str, AsyncAppend] = {}
            for target, parts in batch:
                appends[target[0]] = await self._append_parts(target, parts, flags, pace)
            return appends
        finally:
            self._end_waiting()

    async def _append_parts(
        self, target: Target, parts: list[Encoded], flags: Flags, pace: Pace
    ) -> AsyncAppend:
        journal, done = target[0], 0
        cleared = self.appends.cleared_error(journal)
        while True:
            append = await self.appends.start_append(journal)
            try:
                # Race: as one message which has waited, these may be of another producer by now.
                route = self._route_to(target, flags)
                now_cleared = self.appends.cleared_error(journal)
                if done and now_cleared is not cleared:
                    raise _missing(journal, now_cleared)
                cleared = now_cleared
                written = await self._write_parts(append, route, parts, done, flags, pace)
            except BaseException as error:
                append.roll_back(error)
                raise
            if written is None:
                append.roll_back(DependencyError("uncommitted messages were abandoned"))
                continue
            append.release()
            first, done = written
            if flags == OUTSIDE_TXN:
                route.settled_clock = self.clock.value  # All clocks of it are taken.
            else:
                if not route.pending:
                    self._note_pending(route, first, cleared)
                route.last = append
            if done == len(parts):
                break
        while parts:
            # Releasing the memory of a large batch takes its time, too.
            parts.pop()
            await pace.turn()
        return append

    async def _write_parts(  # noqa: PLR0917
        self,
        append: AsyncAppend,
        route: Route[T],
        parts: list[Encoded],
        done: int,
        flags: Flags,
        pace: Pace,
    ) -> tuple[int, int] | None:
        """Stamp and write parts from number `done` on, as many as one append may have.

        Returns:
            The first clock, and how many parts are done then; or None if messages were abandoned
            meanwhile, so that what is written is of a producer which nobody acknowledges.
        """
        clock, first, written, crowd = self.clock, 0, 0, 0
        for number in range(done, len(parts)):
            if written:
                await pace.turn()
                if crowd >= _CROWD_BYTES:
                    await append.drain()
                    crowd = 0
                if route.producer != self._producer:
                    return None
                if written > self.appends.cutoff_bytes:
                    return first, number
            if self._update_clock:
                clock.update()
            # Invariant: clocks are taken while the journal is locked, so that the order of bytes
            # is the order of clocks.
            part = parts[number]
            begin = (clock.value + clock.step) & MASK_64
            data = route.stamp(part, begin, clock.step, flags)
            count = len(part.rests if isinstance(part, SplitMessages) else part)
            clock.value = (clock.value + count * clock.step) & MASK_64
            first = first or begin
            written += append.write(data)
            crowd += len(data)
        return first, len(parts)

    def _route_to(self, target: Target, flags: Flags) -> Route[T]:
        route = self._routes.get(target) or self._add_route(target)
        if flags == OUTSIDE_TXN and route.pending and not self._allow_mixed:
            raise MixedTransactionError(
                f"{route.journal} has uncommitted messages, which readers would drop"
            )
        return route

    def _add_route(self, target: Target) -> Route[T]:
        route = self._routes[target] = Route(target, self.adapter, self._producer)
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
        self._turn_bytes = _TURN_BYTES
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(None)

    async def hold_publishing(self) -> None:
        """Make publishing wait from now on, and wait for what is being published.

        Cancellation: aborts — publishing waits until `leave_transaction()`.
        """
        loop = asyncio.get_running_loop()
        self._gate = loop.create_future()
        self._turn_bytes = 0
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
            if cleared is not route.cleared_error:
                raise _missing(route.journal, cleared)


def _missing(journal: str, cleared: ClearedError | None) -> DependencyError:
    assert cleared is not None, "an error which was cleared is never forgotten"
    error = DependencyError(
        f"messages to {journal} may be missing, as an error of its appends was cleared: "
        f"{cleared.error}"
    )
    error.__cause__ = cleared.error
    return error


def _check_journal(journal: str) -> None:
    try:
        pb.validate(pb.AppendRequest(journal=journal))
    except ValidationError as error:
        raise error.extend("Request") from None


@functools.lru_cache(maxsize=1024)
def _has_validate(kind: Any) -> bool:
    bases: tuple[type, ...] = kind.__mro__
    for base in bases:
        defined = vars(base).get("validate")
        if defined is not None:
            # Models of pydantic have a deprecated class method of that name.
            return base.__module__.partition(".")[0] != "pydantic" and inspect.isfunction(defined)
    return False
