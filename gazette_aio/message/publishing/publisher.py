"""Publisher of messages, by themselves or in transactions."""

from __future__ import annotations

import contextlib
import copy
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.aio.turns import Turns
from gazette_aio.message.adapters.base import TypedAdapter, require_adapter
from gazette_aio.message.publishing.backlog import MAX_BYTES
from gazette_aio.message.publishing.blocks import ReservedBlock, block_of
from gazette_aio.message.publishing.commits import Commits
from gazette_aio.message.publishing.encoding import (
    MessageRows,
    Rows,
    awaited_target,
    copied,
    encode_batch,
    has_validate,
    plain_target,
    release,
    require_mapping,
    rows_of_table,
)
from gazette_aio.message.publishing.gate import MESSAGE_BYTES
from gazette_aio.message.publishing.held import MOST_HELD, Held, holding, is_held, owner_of
from gazette_aio.message.publishing.journals import Journals
from gazette_aio.message.publishing.routes import Routes
from gazette_aio.message.publishing.transaction import Transaction
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
from gazette_aio.protocol.errors import (
    QueueFullError,
    TransactionError,
    UsageError,
    ValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    import gazette_aio.protocol as pb
    from gazette_aio.client import AsyncAppend, AsyncJournalClient, Tracing
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.mapping import Mapping, Target
    from gazette_aio.message.publishing.intent_record import AckIntent
    from gazette_aio.message.publishing.routes import Encoded
    from gazette_aio.message.publishing.transaction import TransactionLog

T = TypeVar("T")
U = TypeVar("U")
R = TypeVar("R")

_NOBODY: Final = contextlib.nullcontext()


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
        max_waiting: Transactions of concurrent tasks that may wait for others to commit; 1,000 by
            default. Each holds up to 64 KiB of messages in memory, or 16 MiB of those of
            `publish_uncommitted_nowait()`.

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
        max_waiting: int = 1000,
    ) -> None:
        if not hasattr(appends, "try_append"):
            raise TypeError(f"appends: expected client.appends, not {appends!r}")
        require_adapter(adapter, "an Adapter, such as json_adapter()")
        if producer is not None and len(producer) != 6:
            raise ValidationError("a producer ID has six bytes")
        own = new_producer_id() if producer is None else ProducerID(producer)
        self._journals = Journals(appends, clock, own, allow_mixed=allow_mixed)
        self.appends = appends
        self.clock: Clock = self._journals.clock
        self._update_clock = self._journals.follows_time
        self._try_append = appends.try_append
        self._gate = self._journals.gate
        self._backlog = self._journals.backlog
        self._commits = Commits(self._journals, max_waiting)
        self._use(adapter)

    def _use(self, adapter: Adapter[T]) -> None:
        self.adapter: Adapter[T] = adapter
        self._routes: Routes[T] = Routes(adapter, self._journals)
        self._route_of = self._routes.by_target.get
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
        require_adapter(adapter, "an Adapter, such as json_adapter()")
        view: Any = copy.copy(self)
        view._use(adapter)
        shared: Publisher[U] = view
        return shared

    @property
    def producer_id(self) -> ProducerID:
        """ID of the producer. It changes when a transaction is abandoned."""
        return self._journals.producer

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages of `publish_uncommitted_nowait()` that wait for their journals."""
        return self._backlog.size_bytes

    def __repr__(self) -> str:
        journals = self._journals
        return (
            f"<Publisher {self.producer_id.hex()} clock={self.clock.value} "
            f"routes={len(journals.states)} pending={len(journals.pending)}>"
        )

    def publish_committed(
        self, mapping: Mapping[T], message: T
    ) -> Coroutine[Any, Any, pb.AppendResponse]:
        """Publish a message that commits by itself, and wait until it's written.

        Args:
            mapping: Returns the journal and content type of a message; plain or async.
            message: Message to publish. If it has a `validate()`, it's called first.

        Returns:
            The response of the broker, which has written the message.

        Raises:
            MixedTransactionError: The journal has uncommitted messages of this Publisher.
            GazetteError: The append failed. If `outcome_unknown` is set, the message may be written
                nevertheless.
            Exception: As of `publish_uncommitted()`. Nothing is published.

        Cancellation: aborts — the message may be written.
        """
        return self._noted("publish_committed", self._publish_committed(mapping, message))

    def start_publish_committed(
        self, mapping: Mapping[T], message: T
    ) -> Coroutine[Any, Any, AsyncAppend]:
        """Publish a message that commits by itself, and don't wait until it's written.

        Arguments and other errors are those of `publish_committed()`.

        Returns:
            The append. Await it: until then, the message may be lost.

        Raises:
            MixedTransactionError: The journal has uncommitted messages of this Publisher.

        Cancellation: safe — nothing was published.
        """
        call = self._publish(mapping, message, OUTSIDE_TXN, None)
        return self._noted("start_publish_committed", call)

    async def _publish_committed(self, mapping: Mapping[T], message: T) -> pb.AppendResponse:
        return await (await self._publish(mapping, message, OUTSIDE_TXN, None))

    def publish_uncommitted(
        self, mapping: Mapping[T], message: T
    ) -> Coroutine[Any, Any, AsyncAppend]:
        """Publish a message of a transaction, which is pending until that commits.

        Call it within the block of a `transaction()`, and await each call there: if a call is
        unfinished at the end of the block, the transaction is abandoned. A Publisher without any
        `transaction()` publishes messages that `build_ack_intents()` acknowledges.

        Args:
            mapping: Returns the journal and content type of a message; plain or async.
            message: Message to publish. If it has a `validate()`, it's called first. A message of
                an adapter that has no `split()` must not change before the end of the block.

        Returns:
            The append. Awaiting it waits until the broker has written the message. Within the
            block of a transaction, that waits for its turn, too.

        Raises:
            MappingError: The mapping has no journal for the message, or gives the journal another
                content type than the journal's.
            UnrecognizedContentTypeError: There's no framing of the journal's content type.
            TypeError: The message isn't of the adapter's type, or the mapping returns no pair.
            TransactionError: The call is outside of the blocks of the Publisher's transactions, or
                the block has ended; or the transaction of a shard has failed, whose publisher this
                is.
            DependencyError: The messages of the transaction were abandoned while the call waited.
            GazetteError: Messages that the transaction held can't be published. It fails.
            Exception: Validation or encoding of the message raises it. Nothing is published.

        Cancellation: safe — nothing was published.
        """
        if not self._gate.has_blocks:  # Hot.
            return self._publish(mapping, message, CONTINUE_TXN, None)
        call = self._publish(mapping, message, CONTINUE_TXN, owner_of(self._gate))
        return self._noted("publish_uncommitted", call)

    async def _publish(
        self, mapping: Mapping[T], message: T, flags: Flags, owner: Held | None
    ) -> AsyncAppend:
        """Publish a message for a transaction that may hold messages, its owner."""
        if type(message) not in self._plain:
            self._validate(message)
        try:
            target = mapping(message)
        except TypeError:
            require_mapping(mapping)
            raise
        gate = self._gate
        if flags and gate.turn_bytes > 0 and isinstance(target, tuple):
            append = self._append_at_once(target, message, owner)
            if append is not None:
                return append
        with owner or _NOBODY:
            if not isinstance(target, tuple):
                target = await awaited_target(target)
            if gate.turn_bytes <= 0:
                await gate.give_turn()
            await self._journals.check_content_type(target)
            appends = await self._append([(target, [[message]])], 1, flags, owner, Turns())
            return appends[target[0]]

    def _append_at_once(self, target: Target, message: T, owner: Held | None) -> AsyncAppend | None:
        """Append a message if its journal has uncommitted ones, and nothing has to be awaited."""
        route, gate = self._route_of(target), self._gate
        if route is None or not route.state.pending or owner is not gate.owner:
            return None
        # Hot: most messages are appended here.
        # Invariant: from the tick to the append there's no await, so that the order of bytes is the
        # order of clocks.
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
        if append is None:
            clock.value = before
        else:
            gate.turn_bytes -= MESSAGE_BYTES + len(data)
            route.state.last = append
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
            QueueFullError: 16 MiB are queued. Nothing is published; await `drain()`.
            TransactionError: The transaction of a shard has failed, whose publisher this is.
            UsageError: No event loop is running.
            Exception: Validation or encoding of the message raises it. Nothing is published.
        """
        if type(message) not in self._plain:
            self._validate(message)
        require_mapping(mapping)
        target = plain_target(mapping(message))
        gate, routes = self._gate, self._routes
        owner = owner_of(gate)
        if is_held(gate, owner):
            assert owner is not None
            if not owner.hold([routes.queued(target, [message])], MAX_BYTES):
                text = "the transaction holds many messages, or waits for its turn: await drain()"
                raise QueueFullError(text)
            return
        self._backlog.check()
        if gate.is_open and not self._backlog:
            if self._append_at_once(target, message, owner) is not None:
                return
            # Queued messages are checked before they're appended.
            is_checked = self._journals.is_checked(target)
            if is_checked and routes.try_append(target, [message], CONTINUE_TXN) is not None:
                return
        gate.check()
        self._backlog.put(routes.queued(target, [message]))

    def publish_committed_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Iterable[T] = (),
        *,
        table: Any = None,
    ) -> Coroutine[Any, Any, dict[str, AsyncAppend]]:
        """Publish messages that commit by themselves, and wait until they're written.

        Arguments, result and other errors are those of `publish_uncommitted_batch()`.

        Raises:
            MixedTransactionError: A journal has uncommitted messages of this Publisher. If they
                were published meanwhile, journals before it keep their messages.
            GazetteError: An append failed. Messages of it, and of others, may be written.

        Cancellation: aborts — journals that were appended to keep their messages.
        """
        call = self._publish_committed_batch(mapping, messages, table)
        return self._noted("publish_committed_batch", call)

    async def _publish_committed_batch(
        self, mapping: Mapping[Any] | Target, messages: Iterable[T], table: Any
    ) -> dict[str, AsyncAppend]:
        appends = await self._publish_batch(mapping, messages, table, OUTSIDE_TXN)
        for append in appends.values():
            await append
        return appends

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
            MappingError: The mapping has no journal for a message, or gives a journal another
                content type than the journal's.
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
        call = self._publish_batch(mapping, messages, table, CONTINUE_TXN, owner_of(self._gate))
        return self._noted("publish_uncommitted_batch", call)

    async def _publish_batch(
        self,
        mapping: Mapping[Any] | Target,
        messages: Iterable[T],
        table: Any,
        flags: Flags,
        owner: Held | None = None,
    ) -> dict[str, AsyncAppend]:
        with owner or _NOBODY:
            pace = Turns()
            copies = await copied(messages, pace)
            rows: Rows = MessageRows(copies, self._routes.split, self._validate, self._plain)
            if table is not None:
                if copies:
                    raise ValidationError("a batch has either messages or a table")
                is_mapped = not isinstance(mapping, tuple)
                rows = await rows_of_table(table, self.adapter, is_mapped=is_mapped)
            batch = await encode_batch(rows, mapping, self._routes, pace)
            await release(copies, pace)
            return await self._append(batch, len(rows), flags, owner, pace)

    async def _append(
        self,
        batch: list[tuple[Target, list[Encoded]]],
        rows: int,
        flags: Flags,
        owner: Held | None,
        pace: Turns,
    ) -> dict[str, AsyncAppend]:
        """Append encoded messages, or have their transaction hold them."""
        gate, routes = self._gate, self._routes
        if flags and is_held(gate, owner):
            assert owner is not None
            if rows <= MOST_HELD:
                items = [routes.queued(target, part) for target, parts in batch for part in parts]
                if owner.hold(items):
                    return {journal: owner.append_to(journal) for (journal, _), _ in batch}
            await self._commits.publish(owner)
        await gate.passed()
        gate.check_owner(owner, flags)
        for target, _ in batch:
            routes.route_to(target, flags)
        producer = None if owner is None else self.producer_id
        with gate:
            return await routes.append(batch, flags, pace, producer)

    def _noted(self, name: str, call: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
        """Note a call that the transaction that it's made in requires to be awaited."""
        block = block_of(self._gate)
        if block is not None and block.is_open:
            block.note(call, name)
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
            TransactionError: A `transaction()` is open.
            DependencyError: Queued messages could not be published, or messages may be missing,
                since an error of their journal was cleared.
            Exception: The adapter raises it. Nothing is forgotten.
        """
        if self._commits.has_open:
            raise TransactionError("a transaction() is open, which commits at the end of its block")
        if self._backlog:
            raise UsageError("messages are queued: await drain() first")
        self._backlog.check()
        self._journals.require_all()
        return self._journals.acknowledge()

    def transaction(
        self, *, intents: TransactionLog | None = None, exclusive: bool = False
    ) -> Transaction:
        """Return an async context manager that commits the messages published within it, or none.

        Concurrent tasks may have transactions open at the same time, and those that end during a
        commit share the next one. See Transaction for its steps, and the outcome of a crash.

        Args:
            intents: Log that stores the acknowledgements before they're appended, such as an
                IntentLog. Without it, a crash during the commit may commit some journals and not
                others.
            exclusive: Wait until the transactions in line have ended, and have later ones wait for
                this one. Concurrent transactions that use `state` need it. Messages are published
                at once, rather than held.
        """
        if intents is not None and not hasattr(intents, "exclusive"):
            kind = type(intents).__name__
            raise TypeError(f"intents: expected a log, such as IntentLog(path), not {kind}")
        tracing: Tracing | None = getattr(self.appends, "tracing", None)
        return Transaction(self._commits, self._gate, intents, tracing, exclusive=exclusive)

    def block(self, transaction: str = "the transaction") -> ReservedBlock:
        """Return the block of a transaction that the caller commits itself, as shards do.

        Args:
            transaction: What errors call the transaction.
        """
        return ReservedBlock(self._gate, self._backlog, transaction)

    def abandon(self) -> None:
        """Abandon uncommitted messages: no later acknowledgement commits them.

        The Publisher takes a fresh producer ID, so that readers never relate them to its later
        messages. Where an append is possible without waiting, they're also rolled back, so that
        readers needn't keep them.
        """
        if (held := holding(self._gate)) is not None:
            held.abandon()
        elif owner_of(self._gate) is self._gate.owner:
            self._journals.abandon()

    async def flush(self) -> None:
        """Wait until the broker has written all uncommitted messages.

        Within the block of a transaction, that waits for its turn, too.

        Raises:
            GazetteError: An append failed, or may have failed whose error was cleared.

        Cancellation: safe.
        """
        if (held := holding(self._gate)) is not None:
            await self._commits.publish(held)
        await self._backlog.drained()
        await self._journals.flush()

    async def drain(self) -> None:
        """Wait until the messages that are queued now were handed to the service.

        Raises:
            DependencyError: Queued messages could not be published.

        Cancellation: safe.
        """
        held = holding(self._gate)
        if held is not None and held.is_full:
            await self._commits.publish(held)
        await self._backlog.drained()
