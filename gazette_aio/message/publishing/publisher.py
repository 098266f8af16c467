"""Publisher of messages, by themselves or in transactions."""

from __future__ import annotations

import contextlib
import copy
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.aio.turns import Turns
from gazette_aio.message.adapters.base import Adapter, TypedAdapter
from gazette_aio.message.publishing.backlog import Backlog
from gazette_aio.message.publishing.batch_writer import BatchWriter
from gazette_aio.message.publishing.block import Block
from gazette_aio.message.publishing.calls import current_calls
from gazette_aio.message.publishing.encoding import (
    MessageRows,
    Rows,
    awaited_target,
    check_journal,
    check_journals,
    encode_rows,
    has_validate,
    map_rows,
    plain_target,
    release,
    require_mapping,
    rows_of_table,
    splitter,
    take,
)
from gazette_aio.message.publishing.gate import Gate
from gazette_aio.message.publishing.routes import Journals, Routes
from gazette_aio.message.publishing.transaction import Transaction
from gazette_aio.message.publishing.uncommitted import Uncommitted
from gazette_aio.message.uuid import (
    CONTINUE_TXN,
    MASK_64,
    OUTSIDE_TXN,
    UNIX_EPOCH_TICKS,
    Clock,
    Flags,
    ProducerID,
    new_producer_id,
)
from gazette_aio.protocol.errors import UsageError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Iterable

    from gazette_aio.client import AsyncAppend, AsyncJournalClient, Tracing
    from gazette_aio.message.mapping import Mapping, Target
    from gazette_aio.message.publishing.intent_record import AckIntent
    from gazette_aio.message.publishing.routes import Encoded, Route
    from gazette_aio.message.publishing.transaction import TransactionLog

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")

_MESSAGE_BYTES: Final = 300
"""Cost of a message besides its length, as the number of bytes that take as long."""


class Publisher(Generic[T]):
    """Publishes messages to journals, in the order of its clock.

    Within a journal, messages of a Publisher are in the order of their clocks. Concurrent tasks of
    one event loop may call its methods.

    Args:
        appends: Service to append through.
        adapter: Encodes and stamps messages.
        producer: ID to publish as; by default a fresh one. An ID that was used before a crash may
            have left messages pending, which an acknowledgement would commit.
        clock: Clock of messages, which the caller updates. By default the Publisher has its own
            clock, and updates it from wall time.
        allow_mixed: Permit `publish_committed()` to journals with uncommitted messages, which makes
            readers drop the uncommitted ones.

    Raises:
        ValidationError: The producer ID isn't of six bytes.
        TypeError: `appends` is no AppendService but a client, for example; or `adapter` is no
            Adapter but the class of messages.
    """

    def __init__(
        self,
        appends: AsyncJournalClient,
        adapter: Adapter[T],
        *,
        producer: bytes | None = None,
        clock: Clock | None = None,
        allow_mixed: bool = False,
    ) -> None:
        if not hasattr(appends, "try_append"):
            raise TypeError(f"appends: expected client.appends, not {appends!r}")
        _require_adapter(adapter)
        if producer is not None and len(producer) != 6:
            raise ValidationError("a producer ID has six bytes")
        self.appends = appends
        self.clock: Clock = Clock() if clock is None else clock
        self._update_clock = clock is None
        self._try_append = appends.try_append
        own = new_producer_id() if producer is None else ProducerID(producer)
        journals = Journals(own, allow_mixed=allow_mixed)
        self._gate = Gate()
        self._backlog = Backlog(appends, self.clock, self._gate, update_clock=self._update_clock)
        self._uncommitted = Uncommitted(appends, journals, self.clock, self._backlog)
        self._use(adapter, journals)

    def _use(self, adapter: Adapter[T], journals: Journals) -> None:
        self.adapter: Adapter[T] = adapter
        self._routes: Routes[T] = Routes(adapter, journals)
        self._open_routes = self._routes.open
        self._split = splitter(adapter)
        self._plain: set[type] = set()  # Types of messages that have no validation.
        self._message_types = adapter.message_types if isinstance(adapter, TypedAdapter) else None

    def view(self, adapter: Adapter[U]) -> Publisher[U]:
        """Return a Publisher of messages of another type, which shares everything else.

        Both have the same producer, clock and uncommitted messages: a transaction of one commits
        the messages of both, and messages of a journal are in the order of their clocks, whoever
        published them. They may publish to the same journals, of one framing.

        Args:
            adapter: Encodes and stamps messages of the view.

        Raises:
            TypeError: `adapter` is no Adapter.
        """
        _require_adapter(adapter)
        view: Any = copy.copy(self)
        view._use(adapter, self._routes.journals)
        shared: Publisher[U] = view
        return shared

    @property
    def producer_id(self) -> ProducerID:
        """ID of the producer. It changes when a transaction is abandoned."""
        return self._routes.journals.producer

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages of `publish_uncommitted_nowait()` that wait for their journals."""
        return self._backlog.size_bytes

    def __repr__(self) -> str:
        journals = self._routes.journals
        return (
            f"<Publisher {self.producer_id.hex()} clock={self.clock.value} "
            f"routes={len(journals.states)} pending={len(journals.pending)}>"
        )

    def publish_committed(
        self, mapping: Mapping[T], message: T
    ) -> Coroutine[Any, Any, AsyncAppend]:
        """Publish a message outside of transactions: it commits by itself.

        Arguments, result and other errors are those of `publish_uncommitted()`.

        Raises:
            MixedTransactionError: The journal has uncommitted messages of this Publisher.

        Cancellation: safe — nothing was published.
        """
        return self._noted("publish_committed", self._publish(mapping, message, OUTSIDE_TXN))

    def publish_uncommitted(
        self, mapping: Mapping[T], message: T
    ) -> Coroutine[Any, Any, AsyncAppend]:
        """Publish a message that is pending until its journal is acknowledged.

        Await each call within the block of its transaction: if a call is unfinished at the end of
        the block, the transaction is abandoned.

        Args:
            mapping: Returns the journal and content type of a message; plain or async.
            message: Message to publish. If it has a `validate()`, it's called first.

        Returns:
            The append. Awaiting it waits until the broker has written the message.

        Raises:
            MappingError: The mapping has no journal for the message.
            UnrecognizedContentTypeError: There's no framing of the journal's content type.
            TypeError: The message isn't of the adapter's type, or the mapping returns no pair.
            TransactionError: The transaction of a shard has failed, whose publisher this is.
            Exception: Validation or encoding of the message raises it. Nothing is published.

        Cancellation: safe — nothing was published.
        """
        # Hot: this is `_noted()`.
        call = self._publish_uncommitted(mapping, message)
        calls = self._gate.calls
        if calls is not None and calls in current_calls.get():
            last = calls.last
            if last is not None and last.cr_frame is not None:
                calls.keep(last)
            calls.last = call
        return call

    async def _publish_uncommitted(self, mapping: Mapping[T], message: T) -> AsyncAppend:
        # Hot: this is `_publish()`, spelled out for the case that nothing has to be awaited.
        gate = self._gate
        turn_bytes = gate.turn_bytes
        if turn_bytes > 0:
            if type(message) not in self._plain:
                self._validate(message)
            try:
                target = mapping(message)
            except TypeError:
                require_mapping(mapping)
                raise
            route = self._open_routes.get(target)
            if route is not None:
                clock = self.clock
                before = clock.value
                tick = (time_ns() // 100 + UNIX_EPOCH_TICKS) << 4 if self._update_clock else 0
                if tick > before:
                    tick += clock.step
                else:
                    tick = (before + clock.step) & MASK_64
                clock.value = tick
                data = route.encode_continue(message, tick)
                append = self._try_append(route.journal, data)
                if append is not None:
                    gate.turn_bytes = turn_bytes - _MESSAGE_BYTES - len(data)
                    route.state.last = append
                    return append
                clock.value = before
            return await self._publish_mapped(target, message, CONTINUE_TXN)
        return await self._publish(mapping, message, CONTINUE_TXN)

    async def _publish(self, mapping: Mapping[T], message: T, flags: Flags) -> AsyncAppend:
        if self._gate.turn_bytes <= 0:
            await self._gate.give_turn()
        if type(message) not in self._plain:
            self._validate(message)
        require_mapping(mapping)
        return await self._publish_mapped(mapping(message), message, flags)

    async def _publish_mapped(
        self, target: Target | Awaitable[Target], message: T, flags: Flags
    ) -> AsyncAppend:
        if not isinstance(target, tuple):
            target = await awaited_target(target)
        await self._gate.passed()
        route = self._routes.route_to(target, flags)
        append = self._append_now(route, message, flags)
        if append is None:
            append = await self._append_slowly(target, message, flags)
        return append

    def publish_uncommitted_nowait(self, mapping: Mapping[T], message: T) -> None:
        """Publish a message that is pending until its journal is acknowledged, without waiting.

        While the journal is busy, the message is queued: it's encoded at once, and appended in the
        order of calls. Until then, other publishing, `flush()` and the end of a transaction wait.
        A message of an adapter that has no `split()` is encoded later, and must not change.

        Args:
            mapping: Returns the journal and content type of a message; a plain function.
            message: Message to publish. If it has a `validate()`, it's called first.

        Raises:
            MappingError: The mapping has no journal for the message.
            UnrecognizedContentTypeError: There's no framing of the journal's content type.
            TypeError: The message isn't of the adapter's type, or the mapping isn't plain.
            DependencyError: Queued messages could not be published. `abandon()` them, or leave the
                block of the transaction, which fails.
            asyncio.QueueFull: 16 MiB are queued. Nothing is published; await `drain()`.
            TransactionError: The transaction of a shard has failed, whose publisher this is.
            UsageError: No event loop is running.
            Exception: Validation or encoding of the message raises it. Nothing is published.
        """
        if type(message) not in self._plain:
            self._validate(message)
        require_mapping(mapping)
        target = plain_target(mapping(message))
        self._backlog.check()
        if self._gate.is_open and not self._backlog:
            route = self._routes.route_to(target, CONTINUE_TXN)
            if self._append_now(route, message, CONTINUE_TXN) is not None:
                return
        self._gate.check()
        check_journal(target[0])
        self._backlog.put(self._routes, target, self._split([message]))

    def _append_now(self, route: Route[T], message: T, flags: Flags) -> AsyncAppend | None:
        if self._update_clock:
            self.clock.update()
        # Invariant: from the tick to the append there's no await, so that the order of bytes is
        # the order of clocks.
        before = self.clock.value
        clock = self.clock.tick()
        data = route.encode(message, clock, flags)
        self._gate.turn_bytes -= _MESSAGE_BYTES + len(data)
        append = self._try_append(route.journal, data)
        if append is None:
            self.clock.value = before
        else:
            self._note(route, append, clock, flags)
        return append

    def _note(self, route: Route[T], append: AsyncAppend, clock: int, flags: Flags) -> None:
        if flags == OUTSIDE_TXN:
            route.state.acked_clock = clock
            return
        if not route.state.pending:
            cleared = self.appends.cleared_error(route.journal)
            self._routes.note_pending(route, clock, cleared)
        self._open_routes[route.target] = route
        route.state.last = append

    async def _append_slowly(self, target: Target, message: T, flags: Flags) -> AsyncAppend:
        with self._gate:
            append = await self.appends.start_append(target[0])
            try:
                # Race: meanwhile the journal may have got uncommitted messages of others, or these
                # were abandoned, and the producer is another.
                route = self._routes.route_to(target, flags)
                clock = self.clock.tick()
                append.write(route.encode(message, clock, flags))
            except BaseException as error:
                append.require(error)
                with contextlib.suppress(type(error)):
                    append.release()
                raise
            append.release()
            self._note(route, append, clock, flags)
            return append

    def publish_committed_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Iterable[T] = (),
        *,
        table: Any = None,
    ) -> Coroutine[Any, Any, dict[str, AsyncAppend]]:
        """Publish messages that commit by themselves.

        Arguments, result and other errors are those of `publish_uncommitted_batch()`.

        Raises:
            MixedTransactionError: A journal has uncommitted messages of this Publisher. If they
                were published meanwhile, journals before it keep their messages.

        Cancellation: aborts — journals that were appended to keep their messages.
        """
        call = self._publish_batch(mapping, messages, table, OUTSIDE_TXN)
        return self._noted("publish_committed_batch", call)

    def publish_uncommitted_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Iterable[T] = (),
        *,
        table: Any = None,
    ) -> Coroutine[Any, Any, dict[str, AsyncAppend]]:
        """Publish messages that are pending until their journals are acknowledged.

        All messages are validated, mapped and encoded before any is published: if one can't be,
        none is published. The messages of a journal are one append, in their order, or several
        beyond `AppendService.cutoff_bytes`. Journals are appended to one after the other, and only
        one is locked at a time. The event loop has turns meanwhile.

        Columns of a table are members of messages by name for JSON and protobuf, and by position
        for CSV. Columns named `_journal`, `_begin`, `_end`, `_timestamp`, `_clock`, `_producer` and
        `_flags` are ignored, so that batches of `arrow()` can be published. A table whose only
        other column is `_value` has whole messages, as bytes or text.

        Args:
            mapping: Returns the journal and content type of a message, plain or async; or a pair of
                them for all messages. Rows of a table are passed as dicts.
            messages: Iterable of messages to publish. They must not change meanwhile.
            table: Table to publish instead, such as a pyarrow.Table or a polars.DataFrame.

        Returns:
            The append of each journal. The last one of several succeeds only if all do.

        Raises:
            MappingError: The mapping has no journal for a message.
            UnrecognizedContentTypeError: There's no framing of a journal's content type.
            ValidationError: A table has a value that messages can't hold, or the mapping gives a
                journal two content types.
            ConfigurationError: pyarrow isn't installed, or the adapter can't make messages of the
                columns of the table.
            TypeError: A message isn't of the adapter's type, or the mapping returns no pair.
            DependencyError: Part of a journal's messages may be missing, as an error was cleared;
                or some were abandoned, and the rest isn't published.
            Exception: Validation, the mapping or encoding raises it; a note tells the message.
                Nothing is published.

        Cancellation: aborts — journals that were appended to keep their messages.
        """
        call = self._publish_batch(mapping, messages, table, CONTINUE_TXN)
        return self._noted("publish_uncommitted_batch", call)

    async def _publish_batch(
        self, mapping: Mapping[Any] | Target, messages: Iterable[T], table: Any, flags: Flags
    ) -> dict[str, AsyncAppend]:
        pace = Turns()
        taken = await take(messages, pace)
        rows: Rows = MessageRows(taken, self._split, self._validate, self._plain)
        if table is not None:
            if taken:
                raise ValidationError("a batch has either messages or a table")
            is_mapped = not isinstance(mapping, tuple)
            rows = await rows_of_table(table, self.adapter, is_mapped=is_mapped)
        indices = await map_rows(rows, mapping, pace)
        check_journals(indices)
        batch: list[tuple[Target, list[Encoded]]] = []
        for target, some in indices.items():
            route = self._routes.find(target)
            batch.append((target, await encode_rows(rows, some, route, flags, pace)))
        await release(taken, pace)
        await self._gate.passed()
        for target, _ in batch:
            self._routes.route_to(target, flags)
        writer = BatchWriter(
            self.appends,
            self._routes,
            self.clock,
            update_clock=self._update_clock,
            flags=flags,
            pace=pace,
        )
        with self._gate:
            return {target[0]: await writer.append(target, parts) for target, parts in batch}

    def _noted(self, name: str, call: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
        """Note a call that the transaction that it's made in requires to be awaited."""
        calls = self._gate.calls
        if calls is not None and calls in current_calls.get():
            named: Any = call
            named.__name__ = name
            calls.note(call)
        return call

    def _validate(self, message: T) -> None:
        kind: Any = type(message)
        if self._message_types is not None and not issubclass(kind, self._message_types):
            expected = " or ".join(cls.__name__ for cls in self._message_types)
            raise TypeError(f"message: expected {expected}, not {kind.__name__}")
        if has_validate(kind):
            validated: Any = message
            validated.validate()
        else:
            self._plain.add(kind)

    def build_ack_intents(self) -> list[AckIntent]:
        """Return acknowledgements of the journals with uncommitted messages, and forget those.

        Nothing is appended. To commit exactly once, in this order: await all uncommitted appends;
        store the intents along with the state of the transaction; append each intent to its
        journal; and after a crash append the stored intents again first. Nothing may be published
        to these journals meanwhile. `transaction()` does all of this.

        Raises:
            UsageError: Messages are queued.
            DependencyError: Queued messages could not be published, or messages may be missing,
                since an error of their journal was cleared.
            Exception: The adapter raises it. Nothing is forgotten.
        """
        if self._backlog:
            raise UsageError("messages are queued: await drain() first")
        self._backlog.check()
        self._uncommitted.check()
        return self._uncommitted.acknowledge()

    def transaction(self, *, intents: TransactionLog | None = None) -> Transaction:
        """Return an async context manager that commits the messages published within it, or none.

        See Transaction for the order of its steps, and the outcome of a crash.

        Args:
            intents: Log that stores the acknowledgements before they're appended, such as an
                IntentLog. Without it, a crash during the commit may commit some journals and not
                others.
        """
        tracing: Tracing | None = getattr(self.appends, "tracing", None)
        return Transaction(self._uncommitted, self.block(), intents, tracing)

    def block(self, transaction: str = "the transaction") -> Block:
        """Return the block of a transaction that the caller commits itself, as shards do.

        Args:
            transaction: What errors call the transaction.
        """
        return Block(self._gate, self._backlog, transaction)

    def abandon(self) -> None:
        """Abandon uncommitted messages: no later acknowledgement commits them.

        The Publisher takes a fresh producer ID, so that readers never relate them to its later
        messages. Where an append is possible without waiting, they're also rolled back, so that
        readers needn't keep them.
        """
        self._uncommitted.abandon()

    async def flush(self) -> None:
        """Wait until the broker has written all uncommitted messages.

        Raises:
            GazetteError: An append failed, or may have failed whose error was cleared.

        Cancellation: safe.
        """
        await self._backlog.drained()
        await self._uncommitted.flush()

    async def drain(self) -> None:
        """Wait until the messages that are queued now were handed to the service.

        Raises:
            DependencyError: Queued messages could not be published.

        Cancellation: safe.
        """
        await self._backlog.drained()


def _require_adapter(adapter: object) -> None:
    if isinstance(adapter, type) or not isinstance(adapter, Adapter):
        raise TypeError(f"adapter: expected an Adapter, such as json_adapter(), not {adapter!r}")
