"""Allocation loop of a member: it acts while the member leads, and returns when it may exit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio
from anyio import BrokenWorkerProcess
from anyio.to_process import run_sync as run_in_process

from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.allocator.batches import pack
from gazette_aio.consumer.allocator.convergence import Convergence
from gazette_aio.consumer.allocator.model import change_summary
from gazette_aio.consumer.allocator.solver import Problem, desired, solve_packed
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import Compare
from gazette_aio.protocol.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.consumer.allocator.convergence import Checkpoint
    from gazette_aio.consumer.allocator.model import Allocation, Desired, GroupEntry, Member
    from gazette_aio.consumer.allocator.observed import ObservedGroup
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

THREAD_PAIRS = 20_000
"""Pairs of an item and a member up to which a thread solves, in a few milliseconds.

The solution of a larger problem would hold the interpreter's lock for longer than an event loop
should wait, and runs in a process.
"""
_LOOP_ITEMS = 500
"""Items up to which steps are decided by the event loop itself, rather than by a thread."""
FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 5.0


class MemberLostError(GazetteError):
    """The key of this member is gone: another process deleted it, or its lease ended."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a leader did in a round."""

    added: int
    """Number of assignments that were added."""
    removed: int
    """Number of assignments that were removed."""
    packed: int
    """Number of assignments that got another slot, promotions among them."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing was left to do."""
        return not (self.added or self.removed or self.packed)


class Allocator:
    """Keeps the assignments of a group as they should be, while this member leads.

    Args:
        store: Store of the group.
        key_space: Mirror of the group's keys, which another task keeps up to date.
        group: View of the mirror. Its `observe` is one of the mirror's observers.
        keys: Keys of the group.
        on_round: Called after each successful round of a leader.
        on_solution: Called with the seconds that a solution took.
    """

    def __init__(
        self,
        store: KeyValueStore,
        key_space: KeySpace[GroupEntry],
        group: ObservedGroup,
        keys: GroupKeys,
        *,
        on_round: Callable[[Round], None] | None = None,
        on_solution: Callable[[float], None] | None = None,
    ) -> None:
        self._store = store
        self._key_space = key_space
        self._group = group
        self._keys = keys
        self._on_round = on_round
        self._on_solution = on_solution
        self._desired: list[Desired] = []
        self._network: int | None = None
        self._retry_seconds = 0.0

    async def run(self) -> None:
        """Allocate until this member is exiting and holds nothing any longer.

        Errors of the store and of worker processes are logged, and the round is repeated after
        0.1 s, doubling up to 5 s.

        Raises:
            MemberLostError: The key of this member is gone.
            ConfigurationError: This member leads, and scipy isn't installed.

        Cancellation: safe — a transaction under way may take effect.
        """
        while True:
            member = self._group.local_member
            if member is None:
                raise MemberLostError("member key not found in Etcd")
            if self._group.should_exit:
                return
            revision = self._key_space.header.revision + 1
            if self._group.leads:
                revision = max(revision, await self._lead(member))
            await self._wait(revision)

    async def _wait(self, revision: int) -> None:
        if not self._retry_seconds:
            await self._key_space.wait_for_revision(revision)
            return
        with anyio.move_on_after(self._retry_seconds):
            await self._key_space.wait_for_revision(revision)

    async def _lead(self, member: Member) -> int:
        """Take a round of steps, and return the revision of the last one, 0 for none."""
        applied = 0
        try:
            allocation = await self._solve()
            # Transactions fail once another process has changed or removed this member.
            fixed = Compare.unchanged(member.raw)
            round_, steps = await _off_loop(allocation, self._steps, allocation, fixed)
            for step in steps:
                result = await self._store.transact(step.compares, step.operations)
                if not result.succeeded:
                    raise KeyValueStoreError("transaction checks did not succeed")
                applied = result.header.revision
        except (KeyValueStoreError, BrokenWorkerProcess, OSError) as error:
            # A process that solves can be killed, or fail to start, where memory is short.
            reason = str(error) or "the worker process ended"
            _logger.warning("converge iteration failed (will retry): %s", reason)
            self._retry_seconds = min(
                max(self._retry_seconds * 2, FIRST_RETRY_SECONDS), _LAST_RETRY_SECONDS
            )
        else:
            self._retry_seconds = 0.0
            if self._on_round is not None:
                self._on_round(round_)
        return applied

    async def _solve(self) -> Allocation:
        """Have a solution of the newest network, and return the allocation to converge from."""
        allocation = self._group.allocation
        while allocation.network != self._network:
            desired = await self._solution(allocation)
            solved, allocation = allocation, self._group.allocation
            # Race: members or items may have changed meanwhile; the solution is outdated then.
            if solved.network == allocation.network:
                self._desired, self._network = desired, solved.network
        return allocation

    async def _solution(self, allocation: Allocation) -> list[Desired]:
        began = perf_counter()
        problem = await _off_loop(allocation, Problem.of, allocation)
        if len(problem.items) * len(problem.members) <= THREAD_PAIRS:
            packed = await in_thread(solve_packed, problem)
        else:
            packed = await run_in_process(solve_packed, problem, cancellable=True)
        replicas = await _off_loop(allocation, desired, problem, packed)
        if self._on_solution is not None:
            self._on_solution(perf_counter() - began)
        if len(replicas) < allocation.item_slots:
            _logger.warning(
                "cannot reach desired replication for all items (%d of %d replicas, %d slots)",
                len(replicas),
                allocation.item_slots,
                allocation.member_slots,
            )
        change = await _off_loop(allocation, change_summary, allocation, replicas)
        _logger.info("solved assignments: %s", change)
        return replicas

    def _steps(self, allocation: Allocation, fixed: Compare) -> tuple[Round, list[Checkpoint]]:
        convergence = Convergence(
            allocation,
            self._desired,
            self._keys,
        )
        steps = list(pack(convergence.checkpoints(), [fixed]))
        return Round(convergence.added, convergence.removed, convergence.packed), steps


async def _off_loop(
    allocation: Allocation, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function, in a thread if the group is large."""
    if len(allocation.items) <= _LOOP_ITEMS:
        return function(*args, **kwargs)
    return await in_thread(function, *args, **kwargs)
