"""Conformance check of stores that users write."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import uuid
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.client.appends.futures import AsyncOperation, finished_operation
from gazette_aio.consumer.application import Store
from gazette_aio.consumer.application.commit import commit_of
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import FencedError
from gazette_aio.testing.stub_shard import StubShard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard

S = TypeVar("S", bound=Store)
T = TypeVar("T")

_PATIENCE_SECONDS: Final = 0.1
"""Seconds for which a commit that must wait is observed. A correct store never fails this check."""

_CANCELLATIONS: Final = 12

_TURNS: Final = 2
"""Turns of the event loop after which the end of a task is visible."""


async def check_store(
    make_store: Callable[[Shard], Awaitable[S] | S],
    *,
    write: Callable[[S, str], Awaitable[object] | object] | None = None,
    read: Callable[[S], Awaitable[str | None] | str | None] | None = None,
    exactly_once: bool = True,
    timeout: float = 30,  # noqa: ASYNC109 - Of each step, not of the whole.
) -> None:
    """Check that a store keeps the promises of `consumer.Store` to shards.

    Checked are: commits are atomic, wait for their dependencies, and fail with them; restoring
    fences other stores of the shard; the state after a crash, after `destroy()` and after a
    cancellation is right; and transactions may overlap. Each part uses its own shards.

    Args:
        make_store: Returns a new store of the shard, like `Application.new_store()`. Several stores
            of one shard may exist at a time, and must share their storage.
        write: Sets the state, a text, within the current transaction, which it begins if needed.
            Without `write`, only checkpoints are checked.
        read: Returns the state, or None if it was never set.
        exactly_once: Whether changes and checkpoint commit atomically. If False, changes may be
            written without their checkpoint.
        timeout: Seconds after which a step of the store counts as hanging; 30 by default.

    Raises:
        AssertionError: The store breaks a promise, which the text names.

    Cancellation: aborts — stores may remain.
    """
    check = _Check(make_store, write, read, timeout, is_exact=exactly_once)
    for part in (
        check.is_empty_at_first,
        check.commits_are_restored,
        check.commits_wait,
        check.commits_fail_with_dependencies,
        check.restoring_fences,
        check.restoring_fences_fresh_stores,
        check.a_fence_amid_a_commit_decides,
        check.shards_are_apart,
        check.restoring_again,
        check.restoring_drops_changes,
        check.a_crash_loses_what_is_open,
        check.transactions_overlap,
        check.destroy_ends_a_commit,
        check.waiters_may_be_cancelled,
        check.restoring_may_be_cancelled,
    ):
        async with contextlib.AsyncExitStack() as stack:
            await part(_Scene(check, stack, part.__name__))


def checkpoint_of(number: int) -> Checkpoint:
    """Return a checkpoint with all fields set."""
    checkpoint = Checkpoint()
    source = checkpoint.sources["check/source;meta"]
    source.read_through = 1000 + number
    entry = source.producers.add(id=bytes(range(1, 7)))
    entry.state.last_ack = 2**64 - 1 - number
    entry.state.begin = -1
    source.producers.add(id=b"\xff" * 6).state.begin = 2**62
    checkpoint.sources["check/other"].read_through = number
    checkpoint.ack_intents["check/target"] = bytes(range(256))
    return checkpoint


class _Scene(Generic[S]):
    """Stores of one shard, which are destroyed at the end."""

    def __init__(self, check: _Check[S], stack: contextlib.AsyncExitStack, name: str) -> None:
        self.check = check
        self.stack = stack
        self.shard = StubShard(f"check-{name.replace('_', '-')}-{uuid.uuid4().hex}")

    async def store(self) -> S:
        made = self.check.make_store(self.shard)
        store: S = (
            await self.check.within(made, "make_store()") if inspect.isawaitable(made) else made
        )
        self.stack.push_async_callback(self.destroy, store)
        return store

    async def opened(self) -> tuple[S, Checkpoint]:
        store = await self.store()
        return store, await self.restore(store)

    async def restore(self, store: S) -> Checkpoint:
        return await self.check.within(store.restore_checkpoint(self.shard), "restore_checkpoint()")

    async def destroy(self, store: S) -> None:
        if store not in self.check.destroyed:
            self.check.destroyed.append(store)
            await self.check.within(store.destroy(), "destroy()")

    async def write(self, store: S, number: int) -> None:
        if self.check.write is not None:
            written = self.check.write(store, f"state {number}")
            if inspect.isawaitable(written):
                await self.check.within(written, "write()")

    async def read(self, store: S) -> str | None:
        assert self.check.read is not None
        got = self.check.read(store)
        return await self.check.within(got, "read()") if inspect.isawaitable(got) else got

    def start(self, store: S, number: int, *wait_for: OpFuture[Any]) -> OpFuture[None]:
        checkpoint = checkpoint_of(number)
        try:
            returned = store.start_commit(self.shard, checkpoint, list(wait_for))
        except Exception as error:
            raise AssertionError(
                "start_commit() raised, where it has to return a commit that is done with the error"
            ) from error
        _expect(checkpoint == checkpoint_of(number), "start_commit() modifies the checkpoint")
        try:
            return commit_of(returned)
        except TypeError as error:
            raise AssertionError(f"start_commit(): {error}") from error

    async def commit(self, store: S, number: int) -> None:
        """Run a transaction from its begin to its commit."""
        await self.write(store, number)
        error = await self.error(self.start(store, number))
        if error is not None:
            raise AssertionError("a commit failed without a cause") from error

    async def error(self, commit: OpFuture[None]) -> BaseException | None:
        """Wait for the end of a commit, and return its error."""
        await self.check.within(asyncio.wait((commit,)), "a commit")
        return commit.exception()

    async def expect(self, wanted: int | None, promise: str, *, ahead: int | None = None) -> S:
        """Check the restored state of a new store, and return the store.

        Args:
            wanted: Number of the latest commit, if any.
            promise: Promise that is broken otherwise.
            ahead: Number whose state is allowed too, unless the store is exactly-once.
        """
        store, checkpoint = await self.opened()
        _expect(checkpoint == (Checkpoint() if wanted is None else checkpoint_of(wanted)), promise)
        if self.check.read is not None and self.check.write is not None and wanted is not None:
            allowed = {f"state {wanted}"}
            if not self.check.is_exact and ahead is not None:
                allowed.add(f"state {ahead}")
            _expect(await self.read(store) in allowed, f"{promise} (its state)")
        return store


class _Check(Generic[S]):
    def __init__(
        self,
        make_store: Callable[[Shard], Awaitable[S] | S],
        write: Callable[[S, str], Awaitable[object] | object] | None,
        read: Callable[[S], Awaitable[str | None] | str | None] | None,
        timeout: float,
        *,
        is_exact: bool,
    ) -> None:
        self.make_store = make_store
        self.write = write
        self.read = read
        self.timeout = timeout
        self.is_exact = is_exact
        self.destroyed: list[S] = []

    async def within(self, work: Awaitable[T], what: str) -> T:
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AssertionError(f"{what} took more than {self.timeout:g} s") from error

    async def is_empty_at_first(self, scene: _Scene[S]) -> None:
        _, checkpoint = await scene.opened()
        _expect(checkpoint == Checkpoint(), "a new shard's checkpoint isn't empty")

    async def commits_are_restored(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        for number in (1, 2, 3):
            await scene.commit(store, number)
        await scene.destroy(store)
        store = await scene.expect(3, "a new store doesn't restore the last commit")
        await scene.commit(store, 4)
        await scene.destroy(store)
        await scene.expect(4, "a commit after a restart isn't restored")

    async def commits_wait(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        first, second = AsyncOperation(), AsyncOperation()
        await scene.write(store, 2)
        commit = scene.start(store, 2, finished_operation(), first, second)
        promise = "a commit doesn't wait for all of its dependencies"
        await _observe(commit, promise)
        first.resolve()
        await _observe(commit, promise)
        second.resolve()
        _expect(await scene.error(commit) is None, "a commit failed although none it waits for did")
        await scene.destroy(store)
        await scene.expect(2, "a commit that had to wait isn't restored")

    async def commits_fail_with_dependencies(self, scene: _Scene[S]) -> None:
        await self._commit_failing(scene, 1, is_pending=True)
        await self._commit_failing(scene, 2, is_pending=False)

    async def _commit_failing(self, scene: _Scene[S], number: int, *, is_pending: bool) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, number)
        await scene.write(store, 9)
        failing = AsyncOperation()
        if not is_pending:
            failing.resolve(OSError("it failed on purpose"))
        commit = scene.start(store, 9, finished_operation(), failing)
        if is_pending:
            await asyncio.sleep(0)
            failing.resolve(OSError("it failed on purpose"))
        error = await scene.error(commit)
        _expect(error is not None, "a commit succeeds although a dependency failed")
        _expect(
            isinstance(error, Exception), f"a commit fails with {error!r}, which isn't an Exception"
        )
        # The failed store isn't destroyed: its resources must not block a new store.
        following = await scene.expect(
            number, "a commit takes effect although a dependency failed", ahead=9
        )
        await scene.destroy(following)

    async def restoring_fences(self, scene: _Scene[S]) -> None:
        former, _ = await scene.opened()
        await scene.commit(former, 1)
        owner = await scene.expect(1, "a second store doesn't restore the commit of the first")
        await scene.destroy(owner)
        owner, _ = await scene.opened()
        await self._expect_fenced(scene, former)
        await scene.commit(owner, 3)
        await scene.destroy(owner)
        await scene.expect(3, "a commit of the owner isn't restored after one that was fenced off")

    async def restoring_fences_fresh_stores(self, scene: _Scene[S]) -> None:
        former, _ = await scene.opened()
        owner, checkpoint = await scene.opened()
        _expect(checkpoint == Checkpoint(), "a new shard's checkpoint isn't empty")
        await self._expect_fenced(scene, former)
        await scene.commit(owner, 3)
        await scene.destroy(owner)
        await scene.expect(3, "the first commit isn't restored after one that was fenced off")

    async def _expect_fenced(self, scene: _Scene[S], former: S) -> None:
        await scene.write(former, 2)
        error = await scene.error(scene.start(former, 2))
        promise = "a commit succeeds although another store has restored the shard"
        _expect(error is not None, promise)
        _expect(
            isinstance(error, FencedError),
            f"a commit that was fenced off fails with {error!r} instead of FencedError",
        )

    async def a_fence_amid_a_commit_decides(self, scene: _Scene[S]) -> None:
        former, _ = await scene.opened()
        await scene.commit(former, 1)
        await scene.write(former, 2)
        dependency = AsyncOperation()
        commit = scene.start(former, 2, dependency)
        owner = await scene.store()
        # The second store may wait for the commit of the first, or fence the first.
        restoring = asyncio.ensure_future(scene.restore(owner))
        await asyncio.wait((restoring,), timeout=_PATIENCE_SECONDS)
        dependency.resolve()
        error = await scene.error(commit)
        wanted = checkpoint_of(2 if error is None else 1)
        _expect(
            await restoring == wanted,
            "a commit that was under way when another store restored the shard "
            f"{'succeeded, but' if error is None else 'failed, yet'} the other one "
            f"{'missed' if error is None else 'has'} it",
        )
        await scene.commit(owner, 3)
        await scene.destroy(owner)
        await scene.expect(3, "a commit of the owner isn't restored after one that was fenced off")

    async def shards_are_apart(self, scene: _Scene[S]) -> None:
        other = _Scene(self, scene.stack, "shards_are_apart")
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        neighbour, checkpoint = await other.opened()
        _expect(checkpoint == Checkpoint(), "a shard restores the checkpoint of another one")
        await other.commit(neighbour, 5)
        await scene.commit(store, 2)
        await scene.destroy(store)
        await other.destroy(neighbour)
        await scene.destroy(await scene.expect(2, "a shard doesn't restore its own commit"))
        await other.expect(5, "a shard doesn't restore its own commit")

    async def restoring_again(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        promise = "restoring again by the same store doesn't return the last commit"
        _expect(await scene.restore(store) == checkpoint_of(1), promise)
        await scene.commit(store, 2)
        await scene.destroy(store)
        await scene.expect(2, "a commit after restoring again isn't restored")

    async def restoring_drops_changes(self, scene: _Scene[S]) -> None:
        promise = "restoring again keeps changes that weren't committed"
        store, _ = await scene.opened()
        await scene.write(store, 1)
        _expect(await scene.restore(store) == Checkpoint(), promise)
        reads = self.read is not None and self.write is not None
        if reads and self.is_exact:
            _expect(await scene.read(store) != "state 1", promise)
        await scene.commit(store, 2)
        await scene.write(store, 3)
        _expect(await scene.restore(store) == checkpoint_of(2), promise)
        _expect(await scene.error(scene.start(store, 4)) is None, "a commit failed without a cause")
        await scene.destroy(store)
        store, checkpoint = await scene.opened()
        _expect(checkpoint == checkpoint_of(4), "a commit after restoring again isn't restored")
        if reads and self.is_exact:
            _expect(await scene.read(store) == "state 2", promise)

    async def transactions_overlap(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await self._overlap(scene, store, 1)
        await scene.destroy(store)
        promise = "a commit includes changes that were made after start_commit() returned"
        store = await scene.expect(1, promise, ahead=2)
        await scene.destroy(store)
        store, _ = await scene.opened()
        await self._overlap(scene, store, 3)
        _expect(await scene.error(scene.start(store, 4)) is None, "a commit failed without a cause")
        await scene.destroy(store)
        await scene.expect(4, "changes that were made during a commit are lost to the next one")

    async def _overlap(self, scene: _Scene[S], store: S, number: int) -> None:
        """Commit a transaction, and change the state meanwhile, as the next one does."""
        dependency = AsyncOperation()
        await scene.write(store, number)
        commit = scene.start(store, number, dependency)
        # The change may wait for the commit, unless the commit waits for the change.
        writing = asyncio.ensure_future(scene.write(store, number + 1))
        await asyncio.sleep(0)
        dependency.resolve()
        _expect(await scene.error(commit) is None, "a commit failed without a cause")
        await writing

    async def a_crash_loses_what_is_open(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        await scene.write(store, 2)
        await scene.destroy(store)
        await scene.expect(1, "changes without a commit are restored", ahead=2)

    async def destroy_ends_a_commit(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        await scene.write(store, 2)
        dependency = AsyncOperation()
        commit = scene.start(store, 2, dependency)
        await _observe(commit, "a commit doesn't wait for its dependency")
        await scene.destroy(store)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        _expect(commit.done(), "destroy() leaves a commit behind that waits for its dependency")
        dependency.resolve()
        await scene.expect(1, "a commit took effect before its dependency succeeded", ahead=2)

    async def waiters_may_be_cancelled(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.write(store, 1)
        dependency = AsyncOperation()
        commit = scene.start(store, 1, dependency)

        async def wait() -> None:
            await commit

        waiter = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait((waiter,))
        dependency.resolve()
        promise = "cancelling somebody who awaits a commit makes it fail"
        _expect(await scene.error(commit) is None, promise)
        await scene.destroy(store)
        await scene.expect(1, promise)

    async def restoring_may_be_cancelled(self, scene: _Scene[S]) -> None:
        store, _ = await scene.opened()
        await scene.commit(store, 1)
        await scene.destroy(store)
        for turns in range(_CANCELLATIONS):
            store = await scene.store()
            await self._cancel(store.restore_checkpoint(scene.shard), turns)
            await scene.destroy(store)
        await scene.expect(1, "a restore that was cancelled changes the checkpoint")

    async def _cancel(self, restoring: Coroutine[Any, Any, Checkpoint], turns: int) -> None:
        task = asyncio.ensure_future(restoring)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await self.within(asyncio.wait((task,)), "restore_checkpoint(), cancelled,")
        if not task.cancelled() and (error := task.exception()) is not None:
            raise AssertionError("restore_checkpoint() fails if it's cancelled") from error


async def _observe(commit: OpFuture[None], promise: str) -> None:
    """Expect that a commit stays pending for a while."""
    await asyncio.wait((commit,), timeout=_PATIENCE_SECONDS)
    _expect(not commit.done(), promise)


def _expect(holds: bool, promise: str) -> None:  # noqa: FBT001 - It's an assertion.
    if not holds:
        raise AssertionError(promise)
