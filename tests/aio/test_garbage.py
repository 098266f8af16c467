"""Full collections of garbage in parts."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gazette_aio.aio import garbage
from gazette_aio.aio.garbage import collected_in_parts
from tests.waiting import eventually, turns

if TYPE_CHECKING:
    from collections.abc import Generator


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def set_aside() -> weakref.ref[Cycle]:
    """Make a cycle that nobody needs, once a full collection has left it."""
    old = Cycle()
    gc.collect()  # As the interpreter does by itself.
    return weakref.ref(old)


@pytest.fixture(autouse=True)
def no_parts_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PART_SECONDS", 1e9)


async def test_a_full_collection_looks_only_at_what_is_younger() -> None:
    """The time of a collection is that of the objects it looks at."""
    thresholds = gc.get_threshold()
    async with collected_in_parts():
        kept = set_aside()
        freed = weakref.ref(Cycle())
        assert len(gc.get_objects()) < 100
        gc.collect()
        assert freed() is None
        assert kept() is not None
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, thresholds)
    gc.collect()
    assert kept() is None


class Memory:
    """Blocks of memory that are held until a cycle is collected."""

    def __init__(self) -> None:
        self.blocks = 100
        self._kept: weakref.ref[Cycle] | None = None

    def add(self) -> None:
        self._kept = set_aside()

    def is_free(self) -> bool:
        return self._kept is None or self._kept() is None

    def held(self) -> int:
        return 100 if self.is_free() else self.blocks


@contextmanager
def full_collections() -> Generator[list[str]]:
    """Note the beginning and the end of each full collection."""
    phases: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if info["generation"] == 2:
            phases.append(phase)

    gc.callbacks.append(note)
    try:
        yield phases
    finally:
        gc.callbacks.remove(note)


async def test_many_objects_are_collected_as_a_whole_only_if_there_are_half_as_many_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collection of all objects would hold up the event loop."""
    memory = Memory()
    monkeypatch.setattr(garbage, "blocks_of_memory", memory.held)
    monkeypatch.setattr(garbage, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(garbage, "LONG_SECONDS", -1.0)
    async with collected_in_parts():
        for _ in range(3):  # What was freed counts no more.
            memory.add()
            for memory.blocks in (100, 149):
                await turns(10)
                assert not memory.is_free()
            memory.blocks = 150
            await eventually(memory.is_free)
        # What grew is what there is.
        with full_collections() as later:
            gc.collect()
            await turns(10)
        assert later == ["start", "stop"]


async def test_parts_stay_small_after_a_collection_of_all_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many: list[list[int]] = [[] for _ in range(400_000)]
    monkeypatch.setattr(garbage, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(garbage, "LONG_SECONDS", 60.0)
    async with collected_in_parts():
        kept = set_aside()
        await eventually(lambda: kept() is None)
        monkeypatch.setattr(garbage, "QUIET_SECONDS", 60.0)
        await turns(2)
        with full_collections() as parts:
            young: list[list[int]] = [[] for _ in range(len(many) // 8)]
        assert parts
    assert young


async def test_there_are_full_collections_while_as_many_objects_are_freed_as_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter would look at all that were made in one step, later."""
    monkeypatch.setattr(garbage, "PART_SECONDS", 0.0)
    held: list[list[int]] = [[] for _ in range(100)]
    async with collected_in_parts():
        with full_collections() as parts:

            def is_collected() -> bool:
                held[:] = [[] for _ in held]
                return bool(parts)

            await eventually(is_collected)


async def test_work_is_counted_from_collections_of_any_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new thread has worked for less time than the event loop's."""
    monkeypatch.setattr(garbage, "PART_SECONDS", time.thread_time() / 2)
    monkeypatch.setattr(garbage, "_TICK_SECONDS", 0.0)
    async with collected_in_parts():
        with full_collections() as parts:
            await asyncio.to_thread(gc.collect)
            await turns(10)
        assert parts == ["start", "stop"]


async def test_what_was_set_aside_is_collected_while_little_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "QUIET_SECONDS", 0.0)
    async with collected_in_parts():
        kept = set_aside()
        await eventually(lambda: kept() is None)
