"""`python -m benchmarks [--suite peers|spark|spark.kafka] [--name NAME] [--rounds N] [--strict]`.

Prints one line for each measure: name, figure, yardstick, ratio, goal, and `ok` or `short`.
Measures of messages have a second line, for the plain core.
Exits 0; with `--strict` 1 when a measure is short of its goal.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from benchmarks import harness, measures, peers, spark

SUITES = {
    "main": measures.load,
    "peers": peers.load,
    "spark": spark.load,
    "spark.kafka": spark.load_beside_kafka,
}


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
    is_native = importlib.import_module("gazette_aio.message.core").FORM == "native"
    if not is_native:
        print("The core of messages is plain: see `gazette-aio doctor`", file=sys.stderr)
    short = 0
    for measure in chosen:
        if is_native or measure.plain is None:
            short += not harness.report(measure, rounds=options.rounds)
        if measure.plain is not None:
            short += not harness.report_plain(SUITES[options.suite], measure, rounds=options.rounds)
    return 1 if short and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
