"""All clients under random faults of the network and of the broker, for a while.

`GAZETTE_SOAK_SECONDS` sets for how long, and `GAZETTE_SEED` repeats the choices of a run. For longer
ones there is `make soak SUITE=client`.
"""

from __future__ import annotations

import os

import pytest

from benchmarks.soaks.client import END_SECONDS, soak
from tests import extent

SECONDS = float(os.environ.get("GAZETTE_SOAK_SECONDS") or extent.of(6, 60))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 10 * END_SECONDS)
async def test_invariants_hold_under_random_faults() -> None:
    seed = extent.seed()
    print(f"GAZETTE_SEED={seed}")  # noqa: T201
    await soak(SECONDS, seed)
