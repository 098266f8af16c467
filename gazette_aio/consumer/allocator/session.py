"""Session of a member: its lease, its key, its view of the group, and its part in allocation."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.retry import backoff
from gazette_aio.consumer.allocator.allocate import Allocator, MemberLostError
from gazette_aio.consumer.allocator.announce import Announcement
from gazette_aio.consumer.allocator.exit_reminder import ExitReminder
from gazette_aio.consumer.allocator.model import MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from gazette_aio.consumer.allocator.shard_group import new_key_space
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    LeaseLostError,
    StoreUnavailableError,
)
from gazette_aio.protocol.consumer import ConsumerSpec
from gazette_aio.protocol.errors import UsageError, within
from gazette_aio.protocol.validation.rules import validate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from gazette_aio.consumer.allocator.allocate import Round
    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore, Lease

_logger = logging.getLogger(__name__)

_RELOAD_SECONDS: Final = 0.1


class MemberSession(Owner):
    """Membership in a group, for the time of an async context manager's block.

    The beginning of the block announces the member, and loads the group. Within the block, the
    member follows the group, and allocates while it leads. The end of the block revokes the lease,
    which removes the member and all its assignments at once: so stop the shards within the block.

    Args:
        store: Store of the group.
        keys: Keys of the group.
        spec: Specification of this member.
        ttl_seconds: Time after which the group takes a member that is silent for lost.
        zero_limit_on_exit: Whether an exit also sets the member's limit to 0. Groups need it that
            have members of Gazette up to v0.101.
        apply_delay_seconds: Time for which changes are gathered before they are applied.
        max_hot_standbys: Most hot standbys of a shard that this member assigns; None for no limit.
        on_round: Called after each successful round of a leader.
        on_solution: Called with the seconds that a solution of a leader took.

    Raises:
        ValidationError: From `async with`, if the specification is invalid.
        KeyValueStoreError: From `async with`, if the store fails.
        LeaseLostError: From `async with`, if the lease is lost before the member is announced.

    Attributes:
        keys: Keys of the group.
        key_space: Decoded keys of the group. It's loaded, and observers can be added.
        group: The group as this member sees it.

    Example:
        ```python
        async with MemberSession(store, keys, spec) as session:
            async with shards_of(session):
                await session.wait()
        ```
    """

    def __init__(
        self,
        store: KeyValueStore,
        keys: GroupKeys,
        spec: ConsumerSpec,
        *,
        ttl_seconds: int = 20,
        zero_limit_on_exit: bool = False,
        apply_delay_seconds: float = 0.03,
        max_hot_standbys: int | None = None,
        on_round: Callable[[Round], None] | None = None,
        on_solution: Callable[[float], None] | None = None,
    ) -> None:
        self._store = store
        self._spec = ConsumerSpec()
        self._spec.CopyFrom(spec)
        self._ttl_seconds = ttl_seconds
        self._zero_limit_on_exit = zero_limit_on_exit
        self._resources = AsyncExitStack()
        self._life = OwnedTask()
        self._has_joined = asyncio.Event()
        self._end: asyncio.Future[bool] | None = None
        self._reminder: ExitReminder | None = None
        self._is_exiting = asyncio.Event()
        named = spec.process_spec.id
        self.keys = keys
        self.key_space: KeySpace[GroupEntry] = new_key_space(
            store,
            keys,
            apply_delay_seconds=apply_delay_seconds,
            max_hot_standbys=max_hot_standbys,
        )
        self.group: ObservedGroup = ObservedGroup(MemberID(named.zone, named.suffix))
        self.key_space.observers.append(self.group.observe)
        self._allocator = Allocator(
            store, self.key_space, self.group, keys, on_round=on_round, on_solution=on_solution
        )

    def __repr__(self) -> str:
        id_ = self._spec.process_spec.id
        state = "exiting" if self.is_exiting else "active"
        return f"<MemberSession {id_.zone}#{id_.suffix} of {self.keys.root} {state}>"

    @property
    def is_exiting(self) -> bool:
        """Whether `exit_gracefully()` was called."""
        return self._is_exiting.is_set()

    async def __aenter__(self) -> Self:
        within("spec", validate, self._spec)
        self._end = asyncio.get_running_loop().create_future()
        # Retrieved, though nobody may wait for the end.
        self._end.add_done_callback(lambda end: end.cancelled() or end.exception())
        self._allocating = anyio.CancelScope()
        try:
            with _explained("establishing Etcd lease"):
                lease = await self._resources.enter_async_context(
                    self._store.lease(self._ttl_seconds)
                )
            name = f"gazette member {'#'.join(self.group.local)}"
            self._life.start(self._live(lease), name, on_end=self._ended)
            await self._has_joined.wait()
            if self._end.done():
                self._end.result()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def wait(self) -> bool:
        """Wait until the member has to stop.

        Returns:
            Whether other members hold all that this member held, after `exit_gracefully()`. If not,
            its deadline has passed, or it was called twice.

        Raises:
            LeaseLostError: The lease is lost, and others may hold the member's shards already.
            MemberLostError: Another process has deleted the key of this member.
            StoreRefusedError: Another process has modified the key, so that the member can't exit,
                or the store refuses the transactions by which this member, as leader, allocates.
            KeySpaceError: The store contradicts itself.
            KeyValueStoreError: The store refuses to be followed.

        Cancellation: safe.
        """
        assert self._end is not None, "the session isn't entered"
        return await asyncio.shield(self._end)

    def exit_gracefully(self, deadline_seconds: float | None = None) -> None:
        """Ask the group to take over what this member holds; `wait()` returns after that.

        A second call gives up waiting: `wait()` returns at once. After the end of the session,
        nothing happens. A member that nobody can replace, such as the only one, never ends by
        itself while it holds a shard; the log says so.

        Args:
            deadline_seconds: Time after which `wait()` returns anyway; None waits for ever.

        Raises:
            UsageError: The session isn't entered.
        """
        if self._end is None:
            raise UsageError("the member hasn't joined its group")
        if self._end.done():
            return
        if self.is_exiting:
            _logger.warning("member exits at once, though others may not hold its shards yet")
            self._allocating.cancel()
            return
        self._reminder = ExitReminder(self.group, deadline_seconds)
        self._is_exiting.set()
        if deadline_seconds is not None:
            self._allocating.deadline = anyio.current_time() + deadline_seconds

    async def aclose(self) -> None:
        """Leave the group. Idempotent.

        Cancellation: safe — raised after the lease is revoked, or given up.
        """
        await finish(self._close())

    async def _close(self) -> None:
        await self._life.aclose()
        await self._resources.aclose()

    async def _live(self, lease: Lease) -> None:
        """Join the group, then follow it and take part in it until cancelled, or until an error."""
        assert self._end is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell, partial(_lose, lease))
                announcement = await self._join(lease)
                tasks.start_soon(self._tell, self.key_space.watch)
                tasks.start_soon(self._tell, self._lose_key)
                tasks.start_soon(self._tell, partial(self._exit, announcement))
                self._has_joined.set()
                with self._allocating, _explained("allocating shards"):
                    await self._allocator.run()
                self._settle(end=self._has_handed_over())
        except ExceptionGroup as group:
            self._settle(end=group.exceptions[0])

    async def _tell(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the work, and tell its error at once.

        The task group ends only after a solution under way, which nothing interrupts.
        """
        try:
            await work()
        except Exception as error:
            self._settle(end=error)
            raise

    def _settle(self, *, end: bool | Exception) -> None:
        """Tell how the membership ended, unless that's told."""
        assert self._end is not None
        if self._end.done():
            return
        if isinstance(end, Exception):
            self._end.set_exception(end)
        else:
            self._end.set_result(end)

    def _ended(self) -> None:
        self._settle(end=False)
        self._has_joined.set()

    async def _lose_key(self) -> None:
        while self.group.local_member is not None:
            await self.key_space.next_change()
        raise MemberLostError("member key not found in Etcd")

    async def _join(self, lease: Lease) -> Announcement:
        with _explained("announcing the member"):
            announcement = await Announcement.announce(
                self._store,
                self.keys.member(*self.group.local),
                self._spec.SerializeToString(),
                lease.id,
            )
        with _explained("loading KeySpace"):
            revision = announcement.revision
            while True:
                try:
                    await self.key_space.load(revision)
                except CompactedError:
                    # The newest revision may be dropped, too, between the pages of a large group.
                    revision = 0
                else:
                    return announcement
                await asyncio.sleep(_RELOAD_SECONDS)

    async def _exit(self, announcement: Announcement) -> None:
        """Write that this member is exiting, once it is."""
        await self._is_exiting.wait()
        assert self._reminder is not None
        self._spec.exiting = True
        if self._zero_limit_on_exit:
            self._spec.shard_limit = 0
        for attempt in itertools.count():
            try:
                await announcement.update(self._spec.SerializeToString())
            except StoreUnavailableError as error:
                _logger.warning("failed to mark the member as exiting (will retry): %s", error)
            else:
                break
            await asyncio.sleep(backoff(attempt))
        # Without this wait, the group as it's known here may lack shards assigned before.
        await self.key_space.wait_for_revision(announcement.revision)
        await self._reminder.run()

    def _has_handed_over(self) -> bool:
        """Return whether others hold this member's shards, and log how the wait for that ended."""
        if not self._allocating.cancelled_caught:
            if self._reminder is not None:
                self._reminder.ended()
            return True
        if anyio.current_time() >= self._allocating.deadline:
            _logger.warning("the member exits at its deadline, though others don't hold its shards")
        return False


async def _lose(lease: Lease) -> None:
    await lease.lost.wait()
    raise LeaseLostError("unable to keep member lease alive")


@contextmanager
def _explained(step: str) -> Generator[None]:
    """Name a step of the beginning in the text of its error."""
    try:
        yield
    except KeyValueStoreError as error:
        error.args = (f"{step}: {error}",)
        raise
