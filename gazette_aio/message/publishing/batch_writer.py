"""Writer of batches of encoded messages, journal by journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_aio.message.publishing.routes import count_of, missing
from gazette_aio.message.uuid import OUTSIDE_TXN
from gazette_aio.protocol.errors import DependencyError

if TYPE_CHECKING:
    from gazette_aio.aio.turns import Turns
    from gazette_aio.client import AsyncAppend
    from gazette_aio.message.mapping import Target
    from gazette_aio.message.publishing.routes import Encoded, Route, Routes
    from gazette_aio.message.uuid import Flags, ProducerID

CROWD_BYTES: Final = 1 << 20
"""Bytes that are written to an append before it's drained."""


class BatchWriter:
    """Stamps and appends the messages of one batch, journal by journal.

    Args:
        routes: Routes of the Publisher.
        flags: Flags of the messages.
        pace: Turns of the event loop.
        producer: Producer of the messages, if they mustn't be of a later one.
    """

    def __init__(
        self, routes: Routes[Any], flags: Flags, pace: Turns, producer: ProducerID | None = None
    ) -> None:
        self._routes = routes
        self._journals = routes.journals
        self._appends = routes.journals.appends
        self._flags = flags
        self._pace = pace
        self._gate = routes.journals.gate
        self._owner = self._gate.owner
        self._producer = producer
        """Producer of the messages, once some were appended."""

    async def append(self, target: Target, parts: list[Encoded]) -> AsyncAppend:
        """Append parts of a journal, in their order, and return the last append.

        Raises:
            MixedTransactionError: The journal has uncommitted messages, and these aren't.
            DependencyError: An error of the journal was cleared meanwhile, or messages of the batch
                were abandoned.
            TransactionError: Their transaction has ended meanwhile.

        Cancellation: aborts — the messages of one append are kept or dropped as a whole.
        """
        if len(parts) == 1 and count_of(parts[0]) == 1:
            self._check()
            now = self._routes.try_append(target, parts[0], self._flags)
            if now is not None:
                self._producer = self._journals.producer
                return now
        journal, done = target[0], 0
        cleared = self._appends.cleared_error(journal)
        while True:
            append = await self._appends.start_append(journal)
            try:
                self._check()
                # Race: as one message that has waited, these may be of another producer by now.
                route = self._routes.route_to(target, self._flags)
                now_cleared = self._appends.cleared_error(journal)
                if done and now_cleared is not cleared:
                    raise missing(journal, now_cleared)
                cleared = now_cleared
                written = await self._write_parts(append, route, parts, done)
            except BaseException as error:
                append.roll_back(error)
                raise
            if written is None:
                append.roll_back(DependencyError("uncommitted messages were abandoned"))
                continue
            append.release()
            self._producer = route.state.producer
            first, done = written
            self._journals.note(route, append, self._flags, first, cleared)
            if done == len(parts):
                break
        while parts:
            # Releasing the memory of a large batch takes its time, too.
            parts.pop()
            await self._pace.rest()
        return append

    def _check(self) -> None:
        self._gate.check_owner(self._owner, self._flags)
        # Invariant: uncommitted messages of one batch are of one producer, so that none of them
        # commits without the others.
        is_same = self._producer in {None, self._journals.producer}
        if self._flags != OUTSIDE_TXN and not is_same:
            raise DependencyError("uncommitted messages of the batch were abandoned")

    async def _write_parts(
        self, append: AsyncAppend, route: Route[Any], parts: list[Encoded], done: int
    ) -> tuple[int, int] | None:
        """Stamp and write parts from number `done`, as many as one append may have.

        Returns:
            The first clock, and the number of parts done; or None if messages were abandoned
            meanwhile, so that the producer of the parts is never acknowledged.
        """
        first = written = crowd = 0
        for number in range(done, len(parts)):
            if written:
                await self._pace.rest()
                if crowd >= CROWD_BYTES:
                    await append.drain()
                    crowd = 0
                if route.state.producer != self._journals.producer:
                    return None
                if written > self._appends.cutoff_bytes:
                    return first, number
            self._journals.update_clock()
            # Invariant: clocks are taken while the journal is locked, so that the order of bytes
            # is the order of clocks.
            begin, data = route.stamp(parts[number], self._journals.clock, self._flags)
            first = first or begin
            written += append.write(data)
            crowd += len(data)
        return first, len(parts)
