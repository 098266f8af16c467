"""Appends of tasks and drivers to many journals."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.client import RetryPolicy
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.sink import answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.client import JournalClient
    from gazette_aio.client.retry import Failure
    from gazette_aio.spark.sink.commit_records import CommitRecord

_logger = logging.getLogger(__name__)

RETRY: Final = RetryPolicy(max_elapsed=120.0)
"""Default retry policy of appends: failures are retried for two minutes."""
APPEND_BYTES: Final = 4 << 20
"""Bytes of a journal's content which start an append."""
MEMORY_BYTES: Final = 64 << 20
"""Greatest number of bytes kept until they are appended."""
APPENDS_AT_ONCE: Final = 16
_ROLL_BACK_SECONDS: Final = 5.0


class TaskAppends(Owner):
    """Appends the messages of one producer.

    Content of a journal is collected until it's enough for an append, or memory is short. Appends
    to different journals are concurrent; appends to one journal are sequential, in the order of
    `put()`.

    Invariant: a failed append is repeated with the same bytes, before any later append. Readers
        drop repeated messages by their clocks.

    Args:
        client: Client to use.
        retry_policy: Retry policy of appends.
        append_bytes: Bytes of a journal's content which start an append.
        memory_bytes: Greatest number of bytes kept. A single `put()` may exceed the limit.
        at_once: Greatest number of concurrent appends.
    """

    def __init__(
        self,
        client: JournalClient,
        retry_policy: RetryPolicy,
        *,
        append_bytes: int = APPEND_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        at_once: int = APPENDS_AT_ONCE,
    ) -> None:
        self._client = client
        self._policy = retry_policy
        self._append_bytes = append_bytes
        self._memory_bytes = memory_bytes
        self._at_once = at_once
        self._parts: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._kept_bytes = 0
        self._error: BaseException | None = None
        self._is_flushing = False
        self._is_closed = False

    async def put(self, journal: str, content: bytes) -> None:
        """Queue content, which is appended as a whole and after earlier content of the journal.

        The method waits while too much content is kept.

        Raises:
            GazetteError: An append failed.

        Cancellation: safe — the content isn't queued.
        """
        self._check()
        while self._kept_bytes and self._kept_bytes + len(content) > self._memory_bytes:
            self._start(least=1)
            await self._wait()
        self._parts.setdefault(journal, []).append(content)
        self._sizes[journal] = self._sizes.get(journal, 0) + len(content)
        self._kept_bytes += len(content)
        if self._sizes[journal] >= self._append_bytes:
            self._start(least=self._append_bytes)

    async def flush(self) -> None:
        """Wait until all content is appended.

        Raises:
            GazetteError: An append failed.

        Cancellation: safe.
        """
        self._is_flushing = True
        try:
            self._check()
            while self._kept_bytes:
                self._start(least=1)
                await self._wait()
        finally:
            self._is_flushing = False

    @property
    def kept_bytes(self) -> int:
        """Number of bytes which aren't appended yet."""
        return self._kept_bytes

    def _start(self, *, least: int) -> None:
        """Start appends to journals with at least so many bytes, the largest first."""
        if len(self._running) >= self._at_once:
            return
        waiting = [
            journal
            for journal, size in self._sizes.items()
            if size >= least and journal not in self._running
        ]
        waiting.sort(key=self._sizes.__getitem__, reverse=True)
        for journal in waiting[: self._at_once - len(self._running)]:
            task = asyncio.create_task(self._append(journal))
            self._running[journal] = task
            task.add_done_callback(self._ended)

    async def _append(self, journal: str) -> None:
        content = self._parts.pop(journal)
        size = self._sizes.pop(journal)
        await self._client.append(
            journal, *content, retry_policy=self._policy, timeout=answers.ANSWER_SECONDS
        )
        self._kept_bytes -= size

    def _ended(self, task: asyncio.Task[None]) -> None:
        for journal, running in self._running.items():
            if running is task:
                del self._running[journal]
                break
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        elif self._error is None and not task.cancelled():
            self._start(least=1 if self._is_flushing else self._append_bytes)

    async def _wait(self) -> None:
        await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
        # The tasks' callbacks were added first, and ran first.
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def aclose(self) -> None:
        """End appends which are under way, and drop the rest. Idempotent.

        Cancellation: safe — the appends end anyway; call again to wait for their end.
        """
        self._error = self._error or RuntimeError("it's closed")
        if not self._is_closed:
            self._is_closed = True
            for task in self._running.values():
                task.cancel()
        while self._running:
            await asyncio.wait(self._running.values())
        self._parts.clear()
        self._sizes.clear()
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<TaskAppends with {self._kept_bytes} bytes of {len(self._sizes)} journals and"
            f" {len(self._running)} appends>"
        )


async def acknowledge(
    client: JournalClient, record: CommitRecord, retry_policy: RetryPolicy, *, ignores_missing: bool
) -> tuple[set[str], pb.GazetteError | None]:
    """Append the acknowledgements of a record; failures don't stop other journals.

    Args:
        client: Client to use.
        record: The record.
        retry_policy: Retry policy of appends.
        ignores_missing: Whether to ignore journals which don't exist.

    Returns:
        Journals to which further copies may arrive; and the first error, or None.

    Cancellation: aborts — some acknowledgements may be appended.
    """
    repeated: set[str] = set()
    errors: list[pb.GazetteError] = []

    async def append(item: tuple[str, bytes]) -> None:
        journal, frames = item

        def note(failure: Failure) -> bool | None:
            repeated.add(journal)
            return retry_policy.on_error(failure) if retry_policy.on_error else None

        policy = dataclasses.replace(retry_policy, on_error=note)
        try:
            timeout = answers.ANSWER_SECONDS
            await client.append(journal, frames, retry_policy=policy, timeout=timeout)
        except pb.JournalNotFoundError as error:
            if not ignores_missing:
                errors.append(error)
            else:
                text = "batch %d can't be acknowledged in %s, which doesn't exist"
                _logger.warning(text, record.batch, journal, extra={"journal": journal})
        except pb.GazetteError as error:
            repeated.add(journal)  # The append may still arrive.
            errors.append(error)

    await map_bounded(append, record.acknowledgements().items())
    return repeated, errors[0] if errors else None


async def roll_back(client: JournalClient, frames: Mapping[str, bytes]) -> None:
    """Append acknowledgements which roll messages back, within a time limit.

    Without the roll back, readers keep the pending messages for a day, which does no harm.

    Args:
        client: Client to use.
        frames: Acknowledgements by journal.

    Cancellation: aborts — messages remain pending.
    """

    async def append(item: tuple[str, bytes]) -> None:
        journal, frame = item
        try:
            await client.append(journal, frame)
        except pb.GazetteError as error:
            _logger.warning("messages remain pending: %s", error, extra={"journal": journal})

    try:
        async with asyncio.timeout(_ROLL_BACK_SECONDS):
            await map_bounded(append, frames.items(), limit=APPENDS_AT_ONCE)
    except TimeoutError:
        _logger.warning("messages remain pending: rolling them back took too long")
