"""`python -m benchmarks [--suite peers|spark] [--name NAME] [--rounds N] [--strict]`.

Prints one line for each measure: name, figure, yardstick, ratio, goal, and `ok` or `short`.
Exits 0; with `--strict` 1 when a measure is short of its goal.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from benchmarks import harness, measures, peers, spark

SUITES = {"main": measures.load, "peers": peers.load, "spark": spark.load}


def main() -> int:
    """Run the chosen measures, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="main", help="what it needs to run")
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="run only measures whose name begins so"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each side")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a measure is short")
    parser.add_argument("--list", action="store_true", help="print the measures, and what they are")
    options = parser.parse_args()
    SUITES[options.suite]()
    known = harness.registered()
    chosen = [
        measure
        for name, measure in known.items()
        if not options.name or any(name.startswith(wanted) for wanted in options.name)
    ]
    if not known:
        return 0
    if not chosen:
        parser.error(f"no such measure; there are: {', '.join(known)}")
    if options.list:
        for measure in chosen:
            print(f"{measure.name}: {measure.about}")
        return 0
    short = 0
    for measure in chosen:
        result = asyncio.run(harness.run(measure, rounds=options.rounds))
        short += not result.ok
        print(result.line(), flush=True)
    return 1 if short and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
