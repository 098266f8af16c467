"""Allocation loop of a member: it acts while the member leads, and returns when it may exit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import anyio

from gazette_aio.aio.threads import in_thread
from gazette_aio.client.retry import backoff
from gazette_aio.consumer.allocator.convergence import Convergence, pack
from gazette_aio.consumer.allocator.solver import solve
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError, StoreRefusedError
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

_LOOP_ITEMS = 500
"""Items up to which steps are decided by the event loop itself, rather than by a thread."""


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
        self._failures = 0  # Of rounds, since the last success.

    async def run(self) -> None:
        """Allocate until this member is exiting and holds nothing any longer.

        Errors of the store are logged, and the round is repeated after a while, up to 5 s.

        Raises:
            MemberLostError: The key of this member is gone.
            StoreRefusedError: The store refuses a transaction, as for a missing permission.

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
        with anyio.move_on_after(backoff(self._failures - 1) if self._failures else None):
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
        except StoreRefusedError:
            raise  # It would refuse each repetition, too.
        except KeyValueStoreError as error:
            _logger.warning("converge iteration failed (will retry): %s", error)
            self._failures += 1
        else:
            self._failures = 0
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
        replicas = await in_thread(solve, allocation)
        if self._on_solution is not None:
            self._on_solution(perf_counter() - began)
        if len(replicas) < allocation.item_slots:
            _logger.warning(
                "cannot reach desired replication for all items (%d of %d replicas, %d slots)",
                len(replicas),
                allocation.item_slots,
                allocation.member_slots,
            )
        _logger.info(
            "solved assignments: %d replicas of %d items", len(replicas), len(allocation.items)
        )
        return replicas

    def _steps(self, allocation: Allocation, fixed: Compare) -> tuple[Round, list[Checkpoint]]:
        convergence = Convergence(allocation, self._desired, self._keys)
        steps = list(pack(convergence.checkpoints(), [fixed]))
        return Round(convergence.added, convergence.removed, convergence.packed), steps


async def _off_loop(
    allocation: Allocation, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function, in a thread if the group is large."""
    if len(allocation.items) <= _LOOP_ITEMS:
        return function(*args, **kwargs)
    return await in_thread(function, *args, **kwargs)
