"""Replicas of a member: started, promoted and cancelled as its assignments change."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import anyio

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Scope
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.task import start_task
from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.allocator.model import Assignment, Item
from gazette_aio.consumer.shards.replica import Replica
from gazette_aio.consumer.shards.transitions import Transition, transition
from gazette_aio.protocol.consumer import ReplicaStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from anyio.abc import TaskGroup

    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.allocator.observed import LocalItem
    from gazette_aio.consumer.keyspace.entries import Change
    from gazette_aio.consumer.service.service import Service

_logger = logging.getLogger(__name__)

ENDS_PER_TURN = 16


class LocalShards(Scope):
    """Replicas of the shards that are assigned to this member.

    Within its block as an async context manager, it follows the key space, whose first observer is
    that of the group. The end of the block cancels the replicas, and waits until each has released
    what it holds.

    Args:
        service: The member.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._replicas: dict[str, Replica] = {}
        self._starting: dict[str, None] = {}  # In the order of their assignments.
        self._ending: deque[Replica] = deque()
        self._supervisor: asyncio.Task[None] | None = None
        self._is_open = asyncio.Event()
        self._running: dict[str, Replica] = {}  # By ID of the shard, also cancelled ones.
        self._limits: dict[Replica, asyncio.TimerHandle] = {}  # Of ends.
        self._changed = Signal()
        self.end_seconds: float = 60.0
        """Seconds within which hooks must end, beside `ConsumerOptions.release_timeout`."""
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails if replicas can't be run any longer, which stops all of them. It never succeeds."""
        self.failure.add_done_callback(lambda failure: failure.exception())  # Maybe nobody looks.
        self.has_stopped: bool = False
        """Whether `stop()` was called."""

    def __repr__(self) -> str:
        state = ", stopped" if self.has_stopped else ""
        return f"<LocalShards with {len(self._replicas)} replicas{state}>"

    @property
    def replicas(self) -> Mapping[str, Replica]:
        """Replicas that aren't cancelled, by ID of the shard."""
        return self._replicas

    def status_codes(self) -> dict[str, str]:
        """Return the name of each replica's status code, as the key space shows it."""
        return {
            shard: ReplicaStatus.Code.Name(replica.assignment.status.code)
            for shard, replica in tuple(self._replicas.items())
        }

    async def __aenter__(self) -> Self:
        # A task of its own, so that another task than this one may end the block.
        self._supervisor = start_task(self._supervise(), "shards")
        self._supervisor.add_done_callback(self._supervised)
        try:
            await self._is_open.wait()
        except BaseException:
            await self._leave(None)
            raise
        self._service.key_space.observers.append(self.observe)
        for item in self._service.group.local_items:
            self._follow(item.item.id, item)
        return self

    async def _leave(self, error: BaseException | None) -> None:  # noqa: ARG002
        """End the block.

        A hook that goes on in spite of its cancellation is left running after some minutes.

        Cancellation: safe — raised after the replicas have released what they hold.
        """
        self.stop()
        if self.observe in self._service.key_space.observers:
            self._service.key_space.observers.remove(self.observe)
        if (supervisor := self._supervisor) is None:
            return
        seconds = self._longest_end_seconds
        limit = None if math.isinf(seconds) else seconds
        if (await finish(asyncio.wait((supervisor,), timeout=limit)))[1]:
            shards = ", ".join(sorted(self._running))
            _logger.error("hooks of shards are left running after their end: %s", shards)

    def stop(self) -> None:
        """Have all replicas cancelled, and start no others. Idempotent.

        Resolutions of these shards fail from now on; those of other members' shards don't.
        The key space may still show assignments, which end with the lease of the member.
        """
        self.has_stopped = True
        self._starting.clear()
        for limit in self._limits.values():
            limit.cancel()
        self._limits.clear()
        self._changed.set()

    def store_hints(self) -> None:
        """Store hints of all recorders soon, since other members are to take the shards over."""
        for replica in self.replicas.values():
            replica.store_hints()

    async def replica(self, shard: str) -> Replica | None:
        """Return the replica of a shard, once it's made; None if there's none, or after `stop()`.

        Cancellation: safe.
        """
        while not self.has_stopped:
            changed = self._changed.next()
            if shard not in self._starting:
                return self._replicas.get(shard)
            await changed.wait()
        return None

    def observe(self, changes: Sequence[Change[GroupEntry]]) -> None:
        """Take changes of the key space, which the group has taken before."""
        if self.has_stopped:
            return
        group = self._service.group
        for shard in _affected(changes):
            self._follow(shard, group.local_item(shard))
            if shard not in group.items:
                self._service.restarts.forget(shard)

    def _follow(self, shard: str, item: LocalItem | None) -> None:
        replica = self._replicas.get(shard)
        wanted = item.assignment if item is not None else None
        held = replica.assignment if replica is not None else None
        step = transition(held, wanted, has_failed=replica is not None and replica.has_failed)
        if item is None and shard in self._starting:
            del self._starting[shard]
            self._changed.set()
        if replica is not None and step in {Transition.CANCEL, Transition.REPLACE}:
            _logger.info("stopping local shard %s", shard)
            del self._replicas[shard]
            self._ending.append(replica)
            self._changed.set()
        if step in {Transition.START, Transition.REPLACE}:
            self._starting[shard] = None
            self._changed.set()
        elif replica is not None and item is not None:
            replica.update(item)
            if step is Transition.PROMOTE:
                _logger.info("promoted local shard %s to primary", shard)
                replica.promote()

    async def _supervise(self) -> None:
        """Start and cancel replicas in turns: there may be thousands."""
        turns = Turns()
        async with anyio.create_task_group() as tasks:
            self._is_open.set()
            while not self.has_stopped:
                changed = self._changed.next()
                await self._cancel()
                # A store may lock files, which the shard's next one needs.
                for shard in [each for each in self._starting if each not in self._running]:
                    if self._ending or shard not in self._starting:
                        break  # It has changed: once more.
                    try:
                        self._start(tasks, shard)
                    except Exception as error:  # noqa: BLE001 - It ends the member.
                        self._fail(shard, error)
                        break
                    del self._starting[shard]
                    self._changed.set()
                    await turns.rest()
                if not self.has_stopped:
                    await changed.wait()
            self._ending.extend(self._replicas.values())
            self._replicas.clear()
            await self._cancel()

    @property
    def _longest_end_seconds(self) -> float:
        """Each step of a tear-down is bounded, so that only a hook that resists takes longer."""
        return self.end_seconds + 4 * self._service.options.release_timeout

    async def _cancel(self) -> None:
        loop, seconds = asyncio.get_running_loop(), self._longest_end_seconds
        while self._ending:
            for _ in range(min(ENDS_PER_TURN, len(self._ending))):
                replica = self._ending.popleft()
                replica.cancel()
                if not (self.has_stopped or math.isinf(seconds)):
                    self._limits[replica] = loop.call_later(seconds, self._leave_behind, replica)
            await asyncio.sleep(0)  # The tasks that were cancelled end in the next turn.

    def _supervised(self, supervisor: asyncio.Task[None]) -> None:
        self._is_open.set()
        error: BaseException | None
        if supervisor.cancelled():
            error = RuntimeError("the task that runs all shards was cancelled")
        else:
            error = supervisor.exception()
        if error is not None:
            _logger.error("local shards can't be run", exc_info=error)
            self._fail_all(error)

    def _start(self, tasks: TaskGroup, shard: str) -> None:
        item = self._service.group.local_item(shard)
        if item is None:
            return
        _logger.info("starting local shard %s, slot %d", shard, item.assignment.slot)
        self._replicas[shard] = self._running[shard] = replica = Replica(item, self._service)
        if item.assignment.slot == 0:
            replica.promote()
        tasks.start_soon(self._run, replica, name=f"shard {shard}")

    async def _run(self, replica: Replica) -> None:
        try:
            await replica.run()
        except Exception as error:  # noqa: BLE001 - It ends the member.
            self._fail(replica.id, error)
        finally:
            self._give_way(replica)

    def _leave_behind(self, replica: Replica) -> None:
        _logger.error("a hook of shard %s is left running after its end", replica.id)
        self._give_way(replica)

    def _give_way(self, replica: Replica) -> None:
        """Let the next replica of a shard start, since one has ended, or takes too long to."""
        if (limit := self._limits.pop(replica, None)) is not None:
            limit.cancel()
        if self._running.get(replica.id) is not replica:
            return
        del self._running[replica.id]
        self._changed.set()

    def _fail(self, shard: str, error: Exception) -> None:
        _logger.error("local shard %s can't be run", shard, exc_info=error)
        self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
        self.stop()


def _affected(changes: Sequence[Change[GroupEntry]]) -> dict[str, None]:
    """Return the IDs of shards whose item or assignments changed, in order."""
    shards: dict[str, None] = {}
    for change in changes:
        for entry in change:
            match entry:
                case Item() as item:
                    shards[item.id] = None
                case Assignment() as assignment:
                    shards[assignment.item] = None
                case _:
                    pass
    return shards
