"""Maximum flow of items to members, found in stages.

A flow of one unit from an item over one of its zones to a member is a replica. Each stage relaxes
capacities and only augments the flow of earlier stages, so that earlier stages have priority:
replicas stay where they are, then spread evenly over zones and members, then go wherever there is
room. Augmenting paths may move replicas, but never lose one.

This module imports scipy, and with it numpy. Its maximum flow is Dinic's algorithm (E. A. Dinitz,
1970), whose shortest paths prefer placing a replica directly over moving others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]

MAX_ARCS = 1_250_000
"""Pairs of an item and a member in one network. Larger groups are solved in parts, item by item."""


def place(
    replication: Sequence[int],
    limits: Sequence[int],
    zones: Sequence[str],
    current: Sequence[tuple[int, int]],
) -> Iterator[tuple[int, int]]:
    """Yield the replicas to have, as indices of an item and of a member, in order.

    Args:
        replication: Replicas of each item.
        limits: Slots of each member.
        zones: Zone of each member.
        current: Replicas that are there, as indices of an item and of a member.
    """
    items, members = len(replication), len(limits)
    if not items or not members:
        return
    wanted = np.minimum(np.array(replication, np.int64), members)
    remaining = np.array(limits, np.int64)
    held_now = np.array(current, np.int64).reshape(-1, 2)
    zone_index = {zone: index for index, zone in enumerate(sorted(set(zones)))}
    zone_of = np.array([zone_index[zone] for zone in zones], np.int64)

    # Items are served in their order, as far as there are slots.
    before = np.cumsum(wanted) - wanted
    wanted = np.clip(remaining.sum() - before, 0, wanted)
    step = max(1, MAX_ARCS // members)
    for begin in range(0, items, step):
        end = min(begin + step, items)
        chosen = (begin <= held_now[:, 0]) & (held_now[:, 0] < end)
        # A part may use its share of what's left, rounded up; the last part all of it.
        slots, all_slots = int(wanted[begin:end].sum()), int(wanted[begin:].sum())
        share = remaining if end == items else -(-remaining * slots // max(all_slots, 1))
        part = held_now[chosen] - np.array([begin, 0])
        held = _solve_part(wanted[begin:end], share, zone_of, len(zone_index), part)
        remaining = remaining - held.sum(axis=0)
        for item, member in zip(*(axis.tolist() for axis in np.nonzero(held)), strict=True):
            yield begin + item, member


def _solve_part(
    wanted: Integers, limits: Integers, zone_of: Integers, zones: int, current: Integers
) -> NDArray[np.bool_]:
    """Return, for each item and member, whether the member should hold a replica."""
    items, members = len(wanted), len(limits)
    is_current = np.zeros((items, members), bool)
    is_current[current[:, 0], current[:, 1]] = True
    in_zone = np.zeros((items, zones), np.int64)
    np.add.at(in_zone, (current[:, 0], zone_of[current[:, 1]]), 1)

    replicas = wanted[:, None]
    # With a second zone, an item of several replicas isn't all in one.
    spread = np.maximum(replicas - 1, 1) if zones > 1 else replicas
    kept = np.minimum(in_zone, np.minimum(spread, replicas))
    even = np.minimum(np.maximum(kept, -(-replicas // zones)), replicas)
    spread, whole = (
        np.broadcast_to(np.minimum(each, replicas), kept.shape) for each in (spread, replicas)
    )

    slots, room = int(wanted.sum()), max(int(limits.sum()), 1)
    fair = np.minimum(limits, -(-limits * slots // room))
    floor = np.minimum(fair, limits * slots // room)
    anywhere = np.ones_like(is_current)
    # Each line is a stage: pairs of item and member, replicas in a zone, replicas of a member.
    stages = (
        (is_current, kept, floor),
        (is_current, kept, fair),
        (anywhere, even, floor),
        (anywhere, even, fair),
        (anywhere, spread, fair),
        (anywhere, spread, limits),
        (anywhere, whole, limits),
    )
    flow = _Flow(wanted, zone_of, zones)
    for arcs, zone_slots, member_slots in stages:
        if flow.value == slots:
            break
        # A member has no use for more slots than there are items, and scipy takes 32 bits.
        usable = np.minimum(member_slots, items)
        flow.augment(
            np.concatenate([wanted, zone_slots.ravel(), arcs.ravel().astype(np.int64), usable])
        )
    return flow.pairs()


class _Flow:
    """A flow from a source over items, items' zones and members to a sink.

    Its arcs are, in this order: source to items, items to their zones, those to members, members to
    the sink. The residual graph has the same arcs and their reverses, in all stages.
    """

    def __init__(self, wanted: Integers, zone_of: Integers, zones: int) -> None:
        self._items, self._members = items, members = len(wanted), len(zone_of)
        source, sink = 0, 1
        item_nodes = 2 + np.arange(items)
        zone_nodes = 2 + items + np.arange(items * zones)
        member_nodes = 2 + items + items * zones + np.arange(members)
        pair_zones = zone_nodes.reshape(items, zones)[:, zone_of].ravel()
        tails = [np.full(items, source), np.repeat(item_nodes, zones), pair_zones, member_nodes]
        heads = [item_nodes, zone_nodes, np.tile(member_nodes, items), np.full(members, sink)]
        self._first_pair = items + items * zones
        self._flow = np.zeros(sum(map(len, tails)), np.int64)

        rows = np.concatenate(tails + heads).astype(np.int32)
        columns = np.concatenate(heads + tails).astype(np.int32)
        # Entries of a compressed matrix are ordered by row and column: `_order` are their arcs.
        self._order = np.lexsort((columns, rows))
        self._columns = columns[self._order]
        nodes = 2 + items + items * zones + members
        self._row_starts = np.zeros(nodes + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=nodes), out=self._row_starts[1:])

    @property
    def value(self) -> int:
        """Replicas placed so far."""
        return int(self._flow[: self._items].sum())

    def augment(self, capacities: Integers) -> None:
        """Place more replicas, within `capacities` of the arcs. No replica is lost."""
        residual = np.concatenate([capacities - self._flow, self._flow])[self._order]
        size = len(self._row_starts) - 1
        graph = csr_array(
            (residual.astype(np.int32), self._columns, self._row_starts), shape=(size, size)
        )
        found: Any = maximum_flow(graph, 0, 1)
        if found.flow_value == 0:
            return
        # Invariant: the graph has all reverse arcs, so scipy's result has the same entries.
        change = np.empty(2 * len(self._flow), np.int64)
        change[self._order] = found.flow.data
        self._flow += change[: len(self._flow)]

    def pairs(self) -> NDArray[np.bool_]:
        """Return which items and members the flow joins."""
        end = self._first_pair + self._items * self._members
        pairs: NDArray[np.bool_] = self._flow[self._first_pair : end] > 0
        return pairs.reshape(self._items, self._members)
