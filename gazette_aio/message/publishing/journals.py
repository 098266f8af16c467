"""Journals of a Publisher and its views, and their uncommitted messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.message.framing.registry import framing_by_content_type
from gazette_aio.message.mapping import ListedTarget, content_type_of
from gazette_aio.message.publishing.backlog import Backlog
from gazette_aio.message.publishing.gate import Gate
from gazette_aio.message.publishing.intent_record import AckIntent
from gazette_aio.message.publishing.routes import JournalState, missing
from gazette_aio.message.uuid import OUTSIDE_TXN, Clock, ProducerID, new_producer_id
from gazette_aio.protocol.errors import (
    DependencyError,
    GazetteError,
    MappingError,
    OperationTimeoutError,
    UnrecognizedContentTypeError,
    ValidationError,
)
from gazette_aio.protocol.journal import encodable, strip_meta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.client import AsyncAppend, AsyncJournalClient
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.publishing.routes import Route
    from gazette_aio.message.uuid import Flags

_LIST_SECONDS: Final = 5.0

_logger = logging.getLogger(__name__)


class Journals:
    """Journals of a Publisher and its views, with all that they share.

    Uncommitted messages are acknowledged together or abandoned.

    Args:
        appends: Service to append through.
        clock: Clock of messages, which the caller updates; None for one that follows wall time.
        producer: ID to stamp messages with.
        allow_mixed: Permit committed messages to journals with uncommitted ones.
    """

    def __init__(
        self,
        appends: AsyncJournalClient,
        clock: Clock | None,
        producer: ProducerID,
        *,
        allow_mixed: bool,
    ) -> None:
        self.appends = appends
        self.clock: Clock = Clock() if clock is None else clock
        self.follows_time: bool = clock is None
        """Whether the clock follows wall time."""
        self.producer: ProducerID = producer
        self.allow_mixed = allow_mixed
        self.gate: Gate = Gate()
        self.backlog: Backlog = Backlog(self)
        self.pending: list[JournalState] = []
        """Journals with uncommitted messages, in the order of their first ones."""
        self.states: dict[str, JournalState] = {}
        """By name: all journals."""
        self._checked: set[Target] = set()
        self._uncommitted: set[tuple[bytes, str]] = getattr(appends, "uncommitted", set())

    def update_clock(self) -> None:
        """Advance the clock to wall time, if it follows that."""
        if self.follows_time:
            self.clock.update()

    def is_checked(self, target: Target) -> bool:
        """Whether nothing has to be awaited before messages are published to a target."""
        return target in self._checked or isinstance(target, ListedTarget)

    async def check_content_type(self, target: Target) -> None:
        """Raise unless a target has a framing, and its journal has that as well.

        Frames of another content type would make later messages of a journal unreadable. Journals
        that can't be listed pass: with a token for appends only, for good; in an outage, and before
        they're created, until the next message.

        Raises:
            MappingError: The journal has a content type of another framing.
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal's name can't be encoded, or it has uncommitted messages of
                another framing.

        Cancellation: safe.
        """
        if self.is_checked(target):
            return
        self.state_of(target)
        journal, content_type = target
        name = pb.label_set("name", encodable(strip_meta(journal)))
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                listing = await self.appends.list(pb.LabelSelector(include=name))
        except TimeoutError:
            return
        except GazetteError as error:
            if not error.retryable:
                self._checked.add(target)
            return
        for item in listing.journals:
            actual = content_type_of(item.spec)
            if actual and not _are_framed_alike(actual, content_type):
                raise MappingError(
                    f"the mapping gives {journal} the content type {content_type!r}, and the "
                    f"journal has {actual!r}"
                )
            self._checked.add(target)

    def state_of(self, target: Target) -> JournalState:
        """Return the state of a journal, which may be new.

        Raises:
            UnrecognizedContentTypeError: There's no framing of the content type.
            ValidationError: The journal has uncommitted messages of another framing.
        """
        journal, content_type = target
        framing = framing_by_content_type(content_type, journal=journal)
        # Invariant: a journal has one state, as its readers know of one acknowledgement.
        state = self.states.get(journal)
        if state is None or state.framing is not framing:
            if state is not None and state.pending:
                other = state.framing.content_type
                raise ValidationError(
                    f"{journal} has uncommitted messages of content type {other!r}, and not "
                    f"{content_type!r}"
                )
            acked = None if state is None else state.acked_clock
            state = self.states[journal] = JournalState(journal, framing, self.producer, acked)
        return state

    def note(
        self,
        route: Route[Any],
        append: AsyncAppend,
        flags: Flags,
        clock: int,
        cleared: ClearedError | None,
    ) -> None:
        """Note messages that were just stamped.

        Args:
            route: Route of the messages.
            append: Their append.
            flags: Their flags.
            clock: Clock of the first one.
            cleared: Latest error of the journal that was cleared before it.
        """
        if flags == OUTSIDE_TXN:
            route.state.acked_clock = self.clock.value  # All clocks of it are taken.
            return
        state = route.state
        if not state.pending:
            state.pending, state.first_clock, state.cleared_error = True, clock, cleared
            state.adapter = route.adapter
            self.pending.append(state)
            if self.gate.owner is None and not self.gate.reserved_by:
                self._uncommitted.add((state.producer, state.journal))
        state.last = append

    def acknowledge(self) -> list[AckIntent]:
        """Return acknowledgements of uncommitted messages, and forget these.

        Raises:
            Exception: The adapter raises it. Nothing is forgotten.
        """
        intents: list[AckIntent] = []
        clocks: list[int] = []
        for state in self.pending:
            clocks.append(self.clock.tick())
            intents.append(AckIntent(state.journal, state.acknowledgement(clocks[-1])))
        for state, acked in zip(self.pending, clocks, strict=True):
            state.acked_clock = acked
            state.pending = False
            state.last = None
            self._uncommitted.discard((state.producer, state.journal))
        self.pending = []
        return intents

    def abandon(self) -> None:
        """Forget all messages, take a fresh producer ID, and roll back what can be at once."""
        # Invariant: whatever fails below, no acknowledgement is built for these messages any more.
        self.backlog.abandon()
        abandoned, self.pending = self.pending, []
        self.states = {}
        self.producer = new_producer_id()
        for state in abandoned:
            state.pending = False
            self._uncommitted.discard((state.producer, state.journal))
            # Wire: an acknowledgement at or before the last one rolls back what's pending.
            acked = state.acked_clock
            clock = state.first_clock - 1 if acked is None else acked
            if clock <= 0:
                continue  # No acknowledgement rolls back: a zero clock is always committed.
            try:
                self.appends.try_append(state.journal, state.acknowledgement(clock))
            except Exception as error:  # noqa: BLE001 - readers can do without it.
                extra = {"journal": state.journal, "producer": state.producer.hex()}
                _logger.warning("can't roll back uncommitted messages: %s", error, extra=extra)

    async def flush(self) -> None:
        """Wait until the broker has written all uncommitted messages.

        Raises:
            GazetteError: An append failed, or may have failed whose error was cleared.

        Cancellation: safe.
        """
        for error in (await self.failures()).values():
            raise error

    async def failures(self) -> dict[str, Exception]:
        """Wait until the broker has written uncommitted messages, and return errors by journal.

        Cancellation: safe.
        """
        failed: dict[str, Exception] = {}
        late: OperationTimeoutError | None = None
        for state in list(self.pending):
            last = state.last
            if last is None:
                continue
            # Invariant: appends of one journal complete in order, and fail all later ones, until
            # the error is cleared or passed over, which `_missing()` finds.
            if late is not None and not last.done():
                failed[state.journal] = late  # All of them have waited as long.
                continue
            try:
                await last
            except Exception as error:  # noqa: BLE001 - the caller raises it.
                failed[state.journal] = error
                if isinstance(error, OperationTimeoutError):
                    late = error
        for missed in self._missing():
            failed.setdefault(*missed)
        return failed

    def require_all(self) -> None:
        """Raise if messages may be missing, since an append of a journal failed.

        Raises:
            DependencyError: One failed after the first message, though later ones succeeded.
        """
        for _, error in self._missing():
            raise error

    def _missing(self) -> Iterator[tuple[str, DependencyError]]:
        for state in self.pending:
            cleared = self.appends.cleared_error(state.journal)
            if cleared is not state.cleared_error:
                yield state.journal, missing(state.journal, cleared)


def _are_framed_alike(content_type: str, other: str) -> bool:
    try:
        return framing_by_content_type(content_type) is framing_by_content_type(other)
    except UnrecognizedContentTypeError:
        return content_type == other
