"""All clients under random faults of the network and of the broker, for a while.

`GAZETTE_SOAK_SECONDS` sets for how long, and `GAZETTE_SOAK_SEED` repeats the choices of a run. For
longer ones there is `make soak SUITE=client`.
"""

from __future__ import annotations

import os
import secrets

import pytest

from benchmarks.soaks.client import END_SECONDS, soak

SECONDS = float(os.environ.get("GAZETTE_SOAK_SECONDS", "20"))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 4 * END_SECONDS)
async def test_invariants_hold_under_random_faults() -> None:
    seed = int(os.environ.get("GAZETTE_SOAK_SEED") or secrets.randbits(32))
    print(f"GAZETTE_SOAK_SEED={seed}")  # noqa: T201
    await soak(SECONDS, seed)
