"""A consumer under faults of members, Etcd and the broker, for a while.

`GAZETTE_SEED` repeats the choices of a run. For longer ones there is `make soak SUITE=consumer`.
"""

from __future__ import annotations

import pytest

from benchmarks.soaks.consumer import END_SECONDS, soak
from tests import extent
from tests.etcd import binary

SECONDS = float(extent.of(45, 120))
RECOVERED_SECONDS = 120.0
"""`make soak` has the real bound, three times that of leases. A machine that runs tests may be too busy."""
STORES = extent.of(["sqlite"], ["json", "rocksdb", "sql", "sqlite"])


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 4 * END_SECONDS + RECOVERED_SECONDS)
@pytest.mark.parametrize("store", STORES)
async def test_each_message_counts_once_under_random_faults(store: str) -> None:
    binary()
    seed = extent.seed()
    print(f"GAZETTE_SEED={seed}")  # noqa: T201
    await soak(SECONDS, seed, store=store, shards=12, recovered_seconds=RECOVERED_SECONDS)
