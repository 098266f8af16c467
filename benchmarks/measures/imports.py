"""Time that importing the package takes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, measure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ALLOWED_SECONDS = 0.060

GRPC = "import grpc, grpc.aio"
PACKAGE = "import gazette_aio"
# Names of the package are imported when they're first used, which the first measure doesn't see.
NAMES = "import gazette_aio as g; g.connect, g.Publisher, g.ReadCommittedIter, g.json_adapter"


async def seconds_of(statement: str, bytecode: str) -> float:
    """Return how long `statement` takes in a fresh interpreter."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    # Users have byte code, also where the environment of a build forbids to write it.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=environment
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, f"{statement}: exit code {process.returncode}"
    return float(out)


async def setup(statement: str) -> AsyncGenerator[Subject]:
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as bytecode:
        await seconds_of(f"{GRPC}; {statement}", bytecode)  # Writes it.

        async def figure() -> float:
            return await seconds_of(f"{GRPC}; {statement}", bytecode)

        async def yardstick() -> float:
            return await seconds_of(GRPC, bytecode) + ALLOWED_SECONDS

        yield Subject(figure, yardstick)


for name, statement, goal, what in [
    ("import", PACKAGE, 1.0, "importing gazette_aio and grpc"),
    ("import.names", NAMES, 0.8, "importing what a typical program uses, and grpc"),
]:
    measure(
        name,
        goal=goal,
        unit="s",
        better="less",
        rounds=9,
        about=f"{what}, against grpc alone plus 60 ms",
    )(partial(setup, statement))
