"""Committed rows against all of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Measure, Subject, register
from benchmarks.spark.queries import load, rate, stream_rate, warm
from benchmarks.spark.reads import RAW
from benchmarks.spark.world import ONE, PARTS, ROWS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMMITTED, ALL = {"isolation": "read-committed"}, {"isolation": "read-uncommitted"}


@asynccontextmanager
async def batch(form: str, **options: str) -> AsyncIterator[Subject]:
    """Compare batches of committed rows with those of all."""
    assert load(form=form, **options, **COMMITTED).count() == ROWS
    figure = rate(lambda: load(form=form, **options, **COMMITTED))
    yardstick = rate(lambda: load(**options, **ALL))
    async with warm(figure, yardstick) as subject:
        yield subject


@asynccontextmanager
async def stream() -> AsyncIterator[Subject]:
    """Compare streams of committed rows with those of all."""
    figure, yardstick = stream_rate(**RAW, **COMMITTED), stream_rate(**RAW, **ALL)
    await figure()
    yield Subject(figure, yardstick)


register(
    Measure(
        name="spark.committed",
        goal=0.8,
        unit="row/s",
        setup=partial(batch, "gazette", **RAW),
        rounds=3,
        about=f"committed rows of {len(PARTS)} journals, undecoded, against all rows of them",
    )
)
register(
    Measure(
        name="spark.committed.split",
        goal=0.8,
        unit="row/s",
        setup=partial(batch, "gazette_unknown", **RAW, journals=ONE),
        rounds=3,
        about="committed rows of one journal which is split and never was read before, undecoded,"
        " against all rows of it",
    )
)
register(
    Measure(
        name="spark.committed.split.again",
        goal=0.8,
        unit="row/s",
        setup=partial(batch, "gazette", **RAW, journals=ONE),
        rounds=3,
        about="the same of a journal which was read before",
    )
)
register(
    Measure(
        name="spark.committed.stream",
        goal=0.6,
        unit="row/s",
        setup=stream,
        rounds=3,
        about=f"a stream of committed rows of {len(PARTS)} journals, undecoded, against one of all",
    )
)
