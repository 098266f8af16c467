"""Session of a member: its lease, its key, its view of the group, and its part in allocation."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.consumer.allocator.allocate import Allocator
from gazette_aio.consumer.allocator.announce import Announcement
from gazette_aio.consumer.allocator.handover import HandoverLog
from gazette_aio.consumer.allocator.model import MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from gazette_aio.consumer.allocator.shard_group import new_key_space
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    LeaseLostError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.protocol.consumer import ConsumerSpec
from gazette_aio.protocol.errors import UsageError, ValidationError
from gazette_aio.protocol.validation.rules import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from gazette_aio.consumer.allocator.allocate import Round
    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore, Lease

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.1
_LAST_RETRY_SECONDS: Final = 5.0


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
        announce_retry_seconds: Pause before a failed announcement is repeated.
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
        announce_retry_seconds: float = 10.0,
        on_round: Callable[[Round], None] | None = None,
        on_solution: Callable[[float], None] | None = None,
    ) -> None:
        self._store = store
        self._spec = ConsumerSpec()
        self._spec.CopyFrom(spec)
        self._ttl_seconds = ttl_seconds
        self._zero_limit_on_exit = zero_limit_on_exit
        self._announce_retry_seconds = announce_retry_seconds
        self._resources = AsyncExitStack()
        self._tasks = {name: OwnedTask() for name in ("exit", "allocate", "lease", "watch")}
        self._announcement: Announcement | None = None
        self._end: asyncio.Future[bool] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._handover: HandoverLog | None = None
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
        return self._tasks["exit"].has_begun

    async def __aenter__(self) -> Self:
        with _named("spec.Validate"):
            validate(self._spec)
            key = self.keys.member(*self.group.local)
        try:
            with _named("establishing Etcd lease"):
                lease = await self._resources.enter_async_context(
                    self._store.lease(self._ttl_seconds)
                )
            await _unless_lost(lease, self._join(key, lease))
        except BaseException:
            await self.aclose()
            raise
        self._end = end = asyncio.get_running_loop().create_future()
        end.add_done_callback(lambda ended: ended.exception())  # Retrieved if nobody waits.
        self._start("watch", self.key_space.watch())
        self._start("lease", _lose(lease))
        self._start("allocate", self._allocate())
        return self

    async def wait(self) -> bool:
        """Wait until the member has to stop.

        Returns:
            Whether other members hold all that this member held, after `exit_gracefully()`. If not,
            its deadline has passed, or it was called twice.

        Raises:
            LeaseLostError: The lease is lost, and others may hold the member's shards already.
            MemberLostError: Another process has deleted the key of this member.
            StoreRefusedError: Another process has modified the key, so that the member can't exit.
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
            self._settle(handed_over=False)
            return
        self._handover = HandoverLog(self.group, deadline_seconds)
        self._start("exit", self._exit(self._handover))
        if deadline_seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(
                deadline_seconds, self._give_up, deadline_seconds
            )

    async def aclose(self) -> None:
        """Leave the group. Idempotent.

        Cancellation: safe — raised after the lease is revoked, or given up.
        """
        await finish(self._close())

    async def _close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for task in self._tasks.values():
            await task.aclose()
        self._settle(handed_over=False)
        await self._resources.aclose()

    async def _join(self, key: str, lease: Lease) -> None:
        self._announcement = await Announcement.announce(
            self._store,
            key,
            self._spec.SerializeToString(),
            lease.id,
            retry_seconds=self._announce_retry_seconds,
        )
        with _named("loading KeySpace"):
            revision = self._announcement.revision
            while True:
                try:
                    return await self.key_space.load(revision)
                except CompactedError:
                    # The newest revision may be dropped, too, between the pages of a large group.
                    revision = 0
                await asyncio.sleep(_FIRST_RETRY_SECONDS)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        member = "#".join(self.group.local)
        self._tasks[name].start(self._supervised(work), f"gazette {name} of member {member}")

    async def _supervised(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - The session ends with it.
            if self._end is not None and not self._end.done():
                self._end.set_exception(error)

    async def _allocate(self) -> None:
        await self._allocator.run()
        if self._handover is not None:
            self._handover.ended()
        self._settle(handed_over=True)

    async def _exit(self, handover: HandoverLog) -> None:
        """Write that this member is exiting."""
        assert self._announcement is not None
        self._spec.exiting = True
        if self._zero_limit_on_exit:
            self._spec.shard_limit = 0
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._announcement.update(self._spec.SerializeToString())
            except StoreRefusedError:
                raise
            except KeyValueStoreError as error:
                _logger.warning("failed to mark the member as exiting (will retry): %s", error)
            else:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_RETRY_SECONDS)
        # Without this wait, the group as it's known here may lack shards assigned before.
        await self.key_space.wait_for_revision(self._announcement.revision)
        await handover.run()

    def _give_up(self, seconds: float) -> None:
        _logger.warning("the member exits, though others don't hold its shards after %g s", seconds)
        self._settle(handed_over=False)

    def _settle(self, *, handed_over: bool) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(handed_over)


async def _lose(lease: Lease) -> None:
    await lease.lost.wait()
    raise LeaseLostError("unable to keep member lease alive")


async def _unless_lost(lease: Lease, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, but give up if the lease is lost."""
    losing, working = asyncio.ensure_future(_lose(lease)), asyncio.ensure_future(work)
    both = (losing, working)
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await finish(asyncio.wait(both))
        for task in both:
            if not task.cancelled():
                task.exception()  # Retrieved: only one of them is raised.
    for task in both:
        if task in done:
            task.result()


@contextmanager
def _named(step: str) -> Generator[None]:
    """Name a step of the beginning in the text of its error."""
    try:
        yield
    except ValidationError as error:
        raise ValidationError(f"{step}: {error}") from error
    except CompactedError:
        raise
    except (StoreRefusedError, StoreUnavailableError) as error:
        raise type(error)(
            f"{step}: {error}", code=error.code, outcome_unknown=error.outcome_unknown
        ) from error
    except KeyValueStoreError as error:
        raise KeyValueStoreError(f"{step}: {error}", code=error.code) from error
