"""`python -m benchmarks.soak --suite SUITE [--duration SECONDS] [--seed SEED]`, see `--help`.

Prints its seed first. Exits 0, or 1 when an invariant was broken. A run with the same seed makes
the same choices; what the machine does between them differs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
from typing import Any

from benchmarks.soaks import broker, client, consumer, services, spark
from benchmarks.soaks.invariant import BrokenInvariantError

SUITES = {
    "broker": broker.soak,
    "client": client.soak,
    "consumer": consumer.soak,
    "services": services.soak,
    "spark": spark.soak,
}


def main() -> int:
    """Run one suite, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="broker")
    parser.add_argument("--duration", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--store", choices=consumer.STORES, help="of the suite `consumer`")
    parser.add_argument(
        "--cluster", action="store_true", help="of the suite `spark`: on a standalone cluster"
    )
    options = parser.parse_args()
    if options.store is not None and options.suite != "consumer":
        parser.error("--store is of the suite consumer")
    if options.cluster and options.suite != "spark":
        parser.error("--cluster is of the suite spark")
    chosen: dict[str, Any] = {} if options.store is None else {"store": options.store}
    chosen |= {"cluster": True} if options.cluster else {}
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    # Faults are the point here, and clients warn of each.
    logging.basicConfig(level=logging.ERROR)
    try:
        asyncio.run(SUITES[options.suite](options.duration, seed, **chosen))
    except BrokenInvariantError as error:
        print(f"BROKEN: {error} (seed {seed})", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
