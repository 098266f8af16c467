"""Measure a figure against its yardstick, both in the same run.

Absolute speeds say more about the machine than about the code. So every measure has two parts: the
figure, which is the path of ours, and the yardstick, which bounds it: a bare loop over the same
data, another way of doing the same, or a fixed limit. They run in turns for several rounds, and the
ratio is that of their medians.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import multiprocessing
import os
import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

Run = Callable[[], Awaitable[float]]
"""Runs one round and returns what it measured."""

Better = Literal["more", "less"]


@dataclasses.dataclass(frozen=True)
class Subject:
    """The two sides of a measure, ready to run."""

    figure: Run
    yardstick: Run


Setup = Callable[..., AsyncGenerator[Subject]]
"""Prepares both sides of a measure, yields them, and cleans up after them."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """One line of the results.

    Args:
        name: Name by which it's chosen.
        goal: The ratio of figure to yardstick to reach, or not to exceed. None: it's only reported.
        unit: Unit of both sides, such as `msg/s`.
        setup: Prepares both sides, and cleans up after them.
        better: Whether more or less of the unit is better.
        rounds: How often each side runs.
        about: What figure and yardstick are.
        plain: The goal with the plain core of messages, or 0 to report only. None: it isn't used.
    """

    name: str
    goal: float | None
    unit: str
    setup: Callable[[], AbstractAsyncContextManager[Subject]]
    better: Better = "more"
    rounds: int = 5
    about: str = ""
    plain: float | None = None

    def with_plain_core(self) -> Measure:
        """Return the line of the same with the plain core."""
        return dataclasses.replace(self, name=f"{self.name}.plain", goal=self.plain or None)


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a measure."""

    measure: Measure
    figure: float
    yardstick: float

    @property
    def ratio(self) -> float:
        """Figure over yardstick."""
        return self.figure / self.yardstick

    @property
    def ok(self) -> bool:
        """Whether the goal is met, if there is any."""
        if self.measure.goal is None:
            return True
        if self.measure.better == "more":
            return self.ratio >= self.measure.goal
        return self.ratio <= self.measure.goal

    def line(self) -> str:
        """Return `name figure yardstick ratio goal ok|short`, or `- reported` without a goal."""
        sign = ">=" if self.measure.better == "more" else "<="
        unit = self.measure.unit
        verdict = "- reported"
        if self.measure.goal is not None:
            verdict = f"{sign}{self.measure.goal:g} {'ok' if self.ok else 'short'}"
        return (
            f"{self.measure.name} {_number(self.figure)}{unit} {_number(self.yardstick)}{unit}"
            f" {self.ratio:.3f} {verdict}"
        )


def constant(value: float) -> Run:
    """Return a side which is always `value`: a limit."""

    async def run() -> float:
        return value

    return run


_measures: dict[str, Measure] = {}


def measure(
    name: str,
    *,
    goal: float | None,
    unit: str,
    about: str,
    better: Better = "more",
    rounds: int = 5,
    plain: float | None = None,
) -> Callable[[Setup], Setup]:
    """Return a decorator which adds a measure to those that `python -m benchmarks` runs.

    It decorates the setup of the measure: an async generator which yields both sides once.
    """
    assert name not in _measures, f"two measures named {name}"

    def add(setup: Setup) -> Setup:
        _measures[name] = Measure(
            name, goal, unit, asynccontextmanager(setup), better, rounds, about, plain
        )
        return setup

    return add


def registered() -> dict[str, Measure]:
    """Return all measures by name, in order of registration."""
    return dict(_measures)


async def run(measure: Measure, *, rounds: int | None = None) -> Result:
    """Run the two sides of `measure` in turns, and return their medians."""
    figures: list[float] = []
    yardsticks: list[float] = []
    async with measure.setup() as subject:
        # What the setup holds isn't part of what's measured: spare the collector from walking it.
        gc.collect()
        gc.freeze()
        for _ in range(rounds or measure.rounds):
            figures.append(await subject.figure())
            yardsticks.append(await subject.yardstick())
    gc.unfreeze()
    return Result(measure, statistics.median(figures), statistics.median(yardsticks))


def report(measure: Measure, *, rounds: int | None = None) -> bool:
    """Run a measure, print its line, and return whether it's ok."""
    logging.basicConfig(level=logging.ERROR)  # What measures publish stays uncommitted.
    result = asyncio.run(run(measure, rounds=rounds))
    print(result.line(), flush=True)
    return result.ok


def report_plain(load: Callable[[], None], measure: Measure, *, rounds: int | None) -> bool:
    """Do the same with the plain core, in a process that hasn't imported the package.

    Args:
        load: Registers the measure there.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_report_plain, load, measure.name, rounds).result()


def _report_plain(load: Callable[[], None], name: str, rounds: int | None) -> bool:
    os.environ["GAZETTE_AIO_CORE"] = "plain"
    load()
    return report(_measures[name].with_plain_core(), rounds=rounds)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"
