"""Acknowledgements of transactions: appended after a commit, and again after a recovery."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.transactions.explain import explained, explaining
from gazette_aio.protocol.status_errors import JournalNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.client import AsyncAppend, AsyncJournalClient
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.message import AckIntent
    from gazette_aio.message.uuid import ProducerID

_logger = logging.getLogger(__name__)


class Acknowledgements:
    """Acknowledgements of the transaction that commits.

    Args:
        appends: Appends of the shard.
    """

    def __init__(self, appends: AsyncJournalClient) -> None:
        self._appends = appends
        self._pending: dict[str, AsyncAppend] = {}
        self._unseen: deque[tuple[str, AsyncAppend]] = deque()  # Those not known to be appended.
        self._is_recovered = False
        self._producers: set[ProducerID] = set()

    async def append(
        self, intents: Iterable[AckIntent], commit: OpFuture[None], producer: ProducerID
    ) -> None:
        """Begin to append acknowledgements, each after the commit.

        Cancellation: aborts — some are appended.
        """
        self._pending, self._is_recovered = {}, False
        self._producers.add(producer)
        turns = Turns()
        for journal, intent in intents:
            await turns.rest()
            with explaining(f"acknowledgement in {journal}"):
                self._pending[journal] = await self._append(journal, intent, (commit,))
        self._unseen = deque(self._pending.items())

    async def append_recovered(self, intents: Mapping[str, bytes]) -> None:
        """Begin to append the acknowledgements of a restored checkpoint.

        Acknowledgements by producers of this assignment were appended already.

        Cancellation: aborts — some are appended.
        """
        self._pending, self._is_recovered = {}, True
        turns = Turns()
        for journal, intent in intents.items():
            await turns.rest()
            if not self._is_own(intent):
                with explaining(f"recovered acknowledgement in {journal}"):
                    self._pending[journal] = await self._append(journal, intent)
        self._unseen = deque(self._pending.items())

    def _is_own(self, intent: bytes) -> bool:
        """Return whether an acknowledgement is known to be by a producer of this assignment."""
        # An unknown encoding of UUIDs isn't recognized. The acknowledgement is appended again
        # then, which is harmless before the next transaction begins.
        own = self._producers
        return any(bytes(each) in intent or each.hex().encode() in intent for each in own)

    async def _append(
        self, journal: str, intent: bytes, dependencies: Iterable[OpFuture[None]] = ()
    ) -> AsyncAppend:
        append = await self._appends.start_append(journal, dependencies)
        append.write(intent)
        append.release()
        return append

    def next_pending(self) -> AsyncAppend | None:
        """Return the first append that hasn't ended, or None once all are appended.

        Raises:
            TransactionError: One before it can't be appended.
        """
        # Each is looked at once: there may be thousands.
        while self._unseen:
            journal, append = self._unseen[0]
            if not append.done():
                return append
            if (error := append.exception()) is not None:
                if not self._is_recovered:
                    raise explained(f"acknowledgement in {journal}", error)
                if not isinstance(error, JournalNotFoundError):
                    raise explained(f"recovered acknowledgement in {journal}", error)
            self._unseen.popleft()
        if self._is_recovered:
            self._forgive()
        return None

    def _forgive(self) -> None:
        """Allow appends of journals that were deleted, and perhaps are created anew."""
        for journal, append in self._pending.items():
            if append.exception() is not None:
                _logger.warning(
                    "discarding recovered ACK-intent of non-existent journal",
                    extra={"journal": journal},
                )
                self._appends.clear_error(journal)

    def ends(self) -> dict[str, int]:
        """Return the end of each acknowledgement, by journal, once all are appended.

        Recovered ones aren't part of it.
        """
        if self._is_recovered:
            return {}
        return {journal: each.response.commit.end for journal, each in self._pending.items()}
