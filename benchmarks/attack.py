"""`python -m benchmarks.attack [--part PART] [--duration SECONDS] [--seed SEED]`.

Runs all parts, each for its share of the time, or one of them. Prints its seed first. Exits 0, or 1
when an invariant was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import traceback

from benchmarks.attacks import (
    clients,
    console,
    damage,
    decoders,
    floods,
    frames,
    group_keys,
    publishers,
    terminals,
    tokens,
    turns,
)
from benchmarks.soaks import broker, client
from benchmarks.soaks.invariant import BrokenInvariantError

PARTS = {
    "decoders": decoders.attack,
    "tokens": tokens.attack,
    "clients": clients.attack,
    "console": console.attack,
    "terminals": terminals.attack,
    "group keys": group_keys.attack,
    "turns": turns.attack,
    "frames": frames.attack,
    "floods": floods.attack,
    "damage": damage.attack,
    "publishers": publishers.attack,
    "durability": broker.soak,
    "faults": client.soak,
}


def main() -> int:
    """Run the parts, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--part", choices=PARTS, default=None)
    parser.add_argument("--duration", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    logging.basicConfig(level=logging.ERROR)
    parts = [options.part] if options.part else list(PARTS)
    for part in parts:
        try:
            asyncio.run(PARTS[part](options.duration / len(parts), seed))
        except BrokenInvariantError as error:
            print(f"BROKEN: {part}: {error} (seed {seed})", flush=True)
            return 1
        except Exception as error:  # noqa: BLE001 - Whatever it is, the seed repeats it.
            traceback.print_exc()
            print(f"BROKEN: {part}: {error!r} (seed {seed})", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
