"""Replica of a shard: it recovers, is promoted, processes messages, and may fail.

    started ──> standby ──────────> primary ──────> cancelled ──> torn down
                   └──> failed <───────┘  └───────────^

Two tasks do this. The standby recovers and follows the recovery log; the primary waits for the
promotion, completes the recovery, and runs transactions. A failed replica keeps its store and its
assignment until the assignment ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from gazette_aio.aio.finish import finish
from gazette_aio.aio.frames import forget_frames
from gazette_aio.aio.task import start_task
from gazette_aio.client import StrictAppendService
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import Compare, Delete
from gazette_aio.consumer.recoverylog import Author
from gazette_aio.consumer.shards.backoff import retry_seconds
from gazette_aio.consumer.shards.errors import ShardFailedError, status_text
from gazette_aio.consumer.shards.hints import store_recorded_hints, store_recovered_hints
from gazette_aio.consumer.shards.log_recovery import LogRecovery
from gazette_aio.consumer.shards.status_writer import StatusWriter
from gazette_aio.consumer.shards.tear_down import bounded
from gazette_aio.consumer.transactions.explain import explaining, failure_of
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.consumer.transactions.progress import ProgressCell
from gazette_aio.message import Publisher, json_adapter
from gazette_aio.message.uuid import Clock
from gazette_aio.protocol.consumer import ReplicaStatus, ShardSpec, recovery_log
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.consumer.allocator.observed import LocalItem
    from gazette_aio.consumer.application import Progress, Store
    from gazette_aio.consumer.recoverylog import Recorder
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.message import Adapter
    from gazette_aio.protocol.consumer import Checkpoint, GetHintsResponse

_logger = logging.getLogger(__name__)

FIRST_HINTS_SECONDS = 30.0
"""Seconds from a promotion to the first write of the recorder's hints."""
HINTS_SECONDS = 300.0
"""Seconds between two writes of the recorder's hints."""
USE_WARNING_SECONDS = 10.0
"""Seconds after which resolutions that aren't released are logged, again and again."""


class Replica:
    """Replica of a shard, from its assignment to this member until that ends.

    It's the `Shard` that applications and stores see. LocalShards runs it.

    Args:
        item: The shard, and its assignment to this member.
        service: The member.
    """

    def __init__(self, item: LocalItem, service: Service) -> None:
        self._item = item
        self._service = service
        self.cancelled: asyncio.Event = asyncio.Event()
        """Set when the assignment is lost; not when the shard fails."""
        self.primary_loop: AsyncOperation = AsyncOperation()
        """Ends when this replica ceases to be the primary, or by the error it failed with."""
        self.appends: StrictAppendService = StrictAppendService(service.client)
        """Appends of this shard: a transaction commits only after those begun within it."""
        self.status: StatusWriter = StatusWriter(service.store, service.key_space, item.assignment)
        """Writes the status of the replica."""
        self.hooks: Hooks = Hooks(service.application)
        """Hooks of the application."""
        self.progress_cell: ProgressCell = ProgressCell(
            source.journal for source in self.spec.sources
        )
        """Progress, and a signal that is also set whenever waiting for progress may end."""
        self.store: Store | None = None
        """Store of the primary, from when on it's made."""
        self.is_ready: bool = False
        """Whether the store has its state, so that requests can be served."""
        self._log = recovery_log(self.spec)
        self._recovery = LogRecovery(self, service, self._log) if self._log else None
        self._recorder: Recorder | None = None
        self._publisher: Publisher[Any] | None = None
        self._adapter: Adapter[Any] = json_adapter()
        self._loop: PrimaryLoop | None = None
        self._reads: frozenset[str] = frozenset()
        self._is_promoted = asyncio.Event()
        self._has_failed = asyncio.Event()
        self._hints_due = asyncio.Event()
        self._failure: ShardFailedError | None = None
        self._scope = anyio.CancelScope()
        self._primary_scope = anyio.CancelScope()
        self._users = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()
        self.primary_loop.when_done(self.progress_cell.changed.set)

    def __repr__(self) -> str:
        state = ReplicaStatus.Code.Name(self.status.wanted.code)
        return f"<Replica of shard {self.id}, slot {self.assignment.slot}, {state}>"

    @property
    def id(self) -> str:
        """ID of the shard."""
        return self._item.item.id

    @property
    def fqn(self) -> str:
        """Key of the shard's spec in the store of the group."""
        return self._item.item.raw.key

    @property
    def spec(self) -> ShardSpec:
        """Current spec."""
        return self._item.item.spec

    @property
    def assignment(self) -> Assignment:
        """Current assignment of this replica."""
        return self._item.assignment

    @property
    def client(self) -> JournalClient:
        """Client of brokers."""
        return self._service.client

    @property
    def publisher(self) -> Publisher[Any]:
        """Publisher of the present transaction.

        Raises:
            UsageError: This replica isn't the primary.
        """
        if self._publisher is None:
            raise UsageError(f"this replica of shard {self.id} isn't the primary")
        return self._publisher

    @property
    def recovered_hints(self) -> GetHintsResponse | None:
        """Hints that the recovery used; None without a recovery log."""
        return self._recovery.hints if self._recovery is not None else None

    def progress(self) -> Progress:
        """Return the progress of fully acknowledged transactions. Later ones don't modify it."""
        return self.progress_cell.progress

    @property
    def reads(self) -> frozenset[str]:
        """Journals that are being read.

        Sources that are added to the spec aren't read until the shard is assigned anew.
        """
        sources = self._loop.sources if self._loop is not None else None
        return sources or self._reads

    @property
    def has_failed(self) -> bool:
        """Whether the replica failed."""
        return self._failure is not None

    @property
    def failure(self) -> ShardFailedError | None:
        """Why the replica failed, if it did."""
        return self._failure

    def update(self, item: LocalItem) -> None:
        """Take another spec, or another state of the assignment."""
        self._item = item
        self.status.update(item.assignment)

    def promote(self) -> None:
        """Become the primary. Idempotent."""
        self._is_promoted.set()

    def store_hints(self) -> None:
        """Store the recorder's hints soon, since another member is about to take the shard over."""
        self._hints_due.set()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Keep the store from being destroyed during a block, within a bound."""
        self._users += 1
        self._is_unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._is_unused.set()

    def cancel(self) -> None:
        """Stop, since the assignment was lost. Idempotent."""
        if self.cancelled.is_set():
            return
        self.cancelled.set()
        if not self.primary_loop.done():
            self.primary_loop.resolve()
        self._scope.cancel()
        # Appends that wait for a broker would hold up the tear-down.
        self.appends.cancel()
        if self._recovery is not None:
            self._recovery.cancel()

    async def run(self) -> None:
        """Serve until cancelled, then release everything. It's called once, and doesn't fail.

        Cancellation: safe — raised after everything is released.
        """
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for what, work in (
                        ("status", self.status.run),
                        ("standby", self._serve_standby),
                        ("primary", self._serve_primary),
                    ):
                        tasks.start_soon(self._serve, work, name=f"{what} of shard {self.id}")
                    await self._has_failed.wait()
                    await self._restart()
                    await anyio.sleep_forever()
        finally:
            self.cancel()
            await finish(self._tear_down())

    async def _serve(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            # The library keeps the cancellation of a task in a cycle, and the replica with it.
            if not self.cancelled.is_set():
                raise

    async def _serve_standby(self) -> None:
        if self._recovery is None:
            self.status.want(ReplicaStatus.STANDBY)
            return
        try:
            self.status.want(ReplicaStatus.BACKFILL)
            with explaining("recovery"):
                await self._recovery.play(lambda: self.status.want(ReplicaStatus.STANDBY))
        except BaseException as error:  # noqa: BLE001 - Whatever it is, it fails the shard.
            # A delegate that fetches hints may raise a cancellation by itself, as hooks may.
            self._fail_standby(failure_of(error, "the recovery was cancelled"))

    def _fail_standby(self, error: Exception) -> None:
        self._fail(error)
        # Nothing would complete the recovery.
        self._primary_scope.cancel()

    async def _serve_primary(self) -> None:
        await self._is_promoted.wait()
        if self._failure is not None:
            return
        with self._primary_scope:
            try:
                store, checkpoint = await self._complete_recovery()
                await self._run_transactions(store, checkpoint)
            except BaseException as error:  # noqa: BLE001 - Whatever it is, it fails the shard.
                self._fail(failure_of(error, "a hook of the application was cancelled"))

    async def _complete_recovery(self) -> tuple[Store, Checkpoint]:
        hints = None
        if self._recovery is not None:
            with explaining("recovery"):
                self._recorder, hints = await self._recovery.complete(Author.random())
        with explaining("new_store()"):
            self.store = store = await self.hooks.new_store(self, self._recorder)
        with explaining("restore_checkpoint()"):
            checkpoint = await store.restore_checkpoint(self)
        # Invariant: only now, so that a recovery that failed doesn't push out good backups. Hints
        # of another log, which the shard began from, are no hints of its own.
        if hints is not None and hints.log == self._log:
            await store_recovered_hints(self._service.store, self.spec, self.assignment, hints)
        self._reads = frozenset(source.journal for source in self.spec.sources)
        self.is_ready = True
        self.progress_cell.restore(checkpoint)
        self.status.want(ReplicaStatus.PRIMARY)
        await self.status.written()
        return store, checkpoint

    async def _run_transactions(self, store: Store, checkpoint: Checkpoint) -> None:
        with explaining("output_adapter()"):
            self._adapter = self.hooks.output_adapter(self)
        self._renew_publisher()
        metrics, service = self._service.metrics, self._service
        self._loop = loop = PrimaryLoop(
            self,
            self.hooks,
            store,
            progress=self.progress_cell,
            observers=service.transaction_observers,
            on_decision=None if metrics is None else metrics.message_failed,
            publish_clock_delta=lambda: service.publish_clock_delta,
            recovery_log=self._log,
            renew_publisher=self._give_up,
        )
        if self._recorder is None:
            await loop.run(checkpoint)
            return
        hints = start_task(self._record_hints(self._recorder), f"hints of shard {self.id}")
        try:
            await loop.run(checkpoint)
        finally:
            hints.cancel()
            await finish(asyncio.wait((hints,)))

    async def _give_up(self) -> None:
        """Leave nothing of a transaction that is repeated to its repetition."""
        # Invariant: appends of the transaction before have succeeded, so that none of their errors
        # is lost.
        await self.appends.give_up(self._log)
        self._renew_publisher()

    def _renew_publisher(self) -> None:
        self._publisher = Publisher(self.appends, self._adapter, clock=Clock())

    async def _record_hints(self, recorder: Recorder) -> None:
        service, due = self._service, self._hints_due
        pause = FIRST_HINTS_SECONDS
        recorded = 0  # Bytes that are recorded already count.
        while True:
            recorder.when_committed(recorded + service.options.hints_bytes, due.set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await due.wait()
            due.clear()
            pause = HINTS_SECONDS
            recorded = recorder.recorded_bytes
            try:
                hints = await recorder.build_hints()
                await store_recorded_hints(service.store, self.spec, self.assignment, hints)
            except Exception as error:  # noqa: BLE001 - Earlier hints serve until the next ones.
                if self.cancelled.is_set():
                    return  # The replica has cancelled the appends that hints wait for.
                _logger.warning("hints of shard %s couldn't be recorded: %s", self.id, error)

    def _fail(self, error: Exception) -> None:
        failure = ShardFailedError(str(error))
        failure.__cause__ = error
        _logger.error("shard %s failed: %s", self.id, failure, exc_info=error)
        self._failure = self._failure or failure
        self.status.want(ReplicaStatus.FAILED, [status_text(failure)])
        if not self.primary_loop.done():
            self.primary_loop.resolve(failure)
        self._has_failed.set()

    async def _restart(self) -> None:
        """Have the shard assigned anew, if the policy says so."""
        now = asyncio.get_running_loop().time()
        delay = self._service.restarts.delay_seconds(self.id, now)
        if delay is None:
            return
        _logger.info("shard %s is restarted in %.1f s", self.id, delay)
        await self.status.written()
        await asyncio.sleep(delay)
        attempt = 0
        while True:
            # The deletion cancels this, as soon as it's observed.
            await asyncio.sleep(retry_seconds(attempt))
            attempt += 1
            assignment = self.assignment
            compare = Compare.unchanged(assignment.raw)
            try:
                await self._service.store.transact([compare], [Delete(assignment.raw.key)])
            except KeyValueStoreError as error:
                _logger.warning("failed to restart shard %s (will retry): %s", self.id, error)

    async def _released(self, seconds: float) -> bool:
        """Wait until nobody uses the store, at most some seconds; return whether nobody does."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._users:
            if (left := end - loop.time()) <= 0:
                _logger.error(
                    "shard %s ends, though %d resolutions weren't released within %g s",
                    self.id,
                    self._users,
                    seconds,
                )
                return False
            try:
                async with asyncio.timeout(min(left, USE_WARNING_SECONDS)):
                    await self._is_unused.wait()
            except TimeoutError:
                _logger.warning(
                    "shard %s waits for %d resolutions to be released", self.id, self._users
                )
        return True

    async def _tear_down(self) -> None:
        seconds = self._service.options.release_timeout
        is_released = await self._released(seconds)
        await bounded(self.appends.aclose(), math.inf, f"closing the appends of shard {self.id}")
        if self.store is not None:
            work, metrics = f"destroying the store of shard {self.id}", self._service.metrics
            if not is_released and metrics is not None:
                metrics.overdue("in_use")
            if not await bounded(_destroyed(self.store), seconds, work) and metrics is not None:
                metrics.overdue("left")
        if (recovery := self._recovery) is not None:
            await bounded(recovery.aclose(), seconds, f"closing the recovery of shard {self.id}")
        # What refers to this replica would wait for a collection of garbage, as this would.
        self._loop = None
        forget_frames(self._failure)


async def _destroyed(store: Store) -> None:
    """Destroy a store, whose `destroy()` may be a plain function, or fail before it's awaited."""
    ending: object = store.destroy()
    if inspect.isawaitable(ending):
        await ending
