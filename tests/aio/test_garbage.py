"""Full collections of garbage in parts."""

from __future__ import annotations

import gc
import weakref

import pytest

from gazette_aio.aio import garbage
from gazette_aio.aio.garbage import collected_in_parts
from tests.waiting import eventually


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


async def test_a_full_collection_looks_only_at_what_is_younger() -> None:
    """The time of a collection is that of the objects it looks at."""
    thresholds = gc.get_threshold()
    async with collected_in_parts():
        old = Cycle()
        gc.collect()  # As the interpreter does by itself.
        freed, kept = weakref.ref(Cycle()), weakref.ref(old)
        del old
        assert len(gc.get_objects()) < 100
        gc.collect()
        assert freed() is None
        assert kept() is not None
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, thresholds)
    gc.collect()
    assert kept() is None


async def test_what_was_set_aside_is_collected_while_little_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "QUIET_SECONDS", 0.0)
    async with collected_in_parts():
        old = Cycle()
        gc.collect()
        kept = weakref.ref(old)
        del old
        await eventually(lambda: kept() is None)
