"""Committed rows against all of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, measure
from benchmarks.spark.queries import load, rate, stream_rate, warm
from benchmarks.spark.reads import RAW
from benchmarks.spark.world import ONE, PARTS, ROWS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

COMMITTED, ALL = {"isolation": "read-committed"}, {"isolation": "read-uncommitted"}


async def batch(form: str, **options: str) -> AsyncGenerator[Subject]:
    """Compare batches of committed rows with those of all."""
    assert load(form=form, **options, **COMMITTED).count() == ROWS
    figure = rate(lambda: load(form=form, **options, **COMMITTED))
    yardstick = rate(lambda: load(**options, **ALL))
    async with warm(figure, yardstick) as subject:
        yield subject


@measure(
    "spark.committed.stream",
    goal=0.6,
    unit="row/s",
    rounds=3,
    about=f"a stream of committed rows of {len(PARTS)} journals, undecoded, against one of all",
)
async def stream() -> AsyncGenerator[Subject]:
    """Compare streams of committed rows with those of all."""
    figure, yardstick = stream_rate(**RAW, **COMMITTED), stream_rate(**RAW, **ALL)
    await figure()
    yield Subject(figure, yardstick)


measure(
    "spark.committed",
    goal=0.8,
    unit="row/s",
    rounds=3,
    about=f"committed rows of {len(PARTS)} journals, undecoded, against all rows of them",
)(partial(batch, "gazette", **RAW))
measure(
    "spark.committed.split",
    goal=0.8,
    unit="row/s",
    rounds=3,
    about="committed rows of one journal which is split and never was read before, undecoded,"
    " against all rows of it",
)(partial(batch, "gazette_unknown", **RAW, journals=ONE))
measure(
    "spark.committed.split.again",
    goal=0.8,
    unit="row/s",
    rounds=3,
    about="the same of a journal which was read before",
)(partial(batch, "gazette", **RAW, journals=ONE))
