"""Publish all flights of 2013 exactly once, through crashes and restarts, and prove it.

A broker process serves a directory; several producer processes publish 336,776 flights to journals
partitioned by carrier, and one of them is killed in mid-transaction; the broker is stopped, and
started again on the same directory; then everything is read back and compared with the CSV file.

Three members of a consumer, on a real Etcd, sum the delays by carrier meanwhile; one of them is
killed while it counts. Their sums are compared with the file as well.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.flights import report
from examples.flights.consumer import read_flights
from examples.flights.data import DataSetMissingError, count_rows
from examples.flights.fleet import Fleet, ProducerFailedError, shares
from examples.flights.members import MemberFailedError, create_recovery_logs, members
from examples.flights.progress import Progress, progress_for_stderr
from gazette_aio import GazetteError, JournalClient, connect, load_journal_space
from gazette_aio.testing import BrokerProcess
from gazette_aio.testing.ports import free_port

JOURNALS = Path(__file__).with_name("journals.yaml")
SELECTOR = "app.gazette.dev/message-type=Flight"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the demo did."""

    rows: int
    publish_seconds: float
    read_seconds: float
    killed_in: tuple[int, int] | None
    tally: report.Tally
    consumed: dict[str, report.Figures] | None
    """Figures of the consumer; None if it was left out."""


async def create_journals(client: JournalClient) -> list[str]:
    """Apply the journal space, and return the names of the partitions."""
    space = load_journal_space(JOURNALS.read_text("utf-8"), source=str(JOURNALS))
    await client.apply(space.to_apply_request())
    listing = await client.list(SELECTOR)
    return [journal.spec.name for journal in listing.journals]


async def run(options: argparse.Namespace, directory: Path, progress: Progress) -> Outcome:
    """Publish and read back, with everything kept in `directory`."""
    total = count_rows(options.rows)
    async with BrokerProcess(directory / "broker", port=free_port()) as broker:
        progress.note(f"broker at {broker.endpoint}, on {broker.data_dir}")
        async with connect(broker.endpoint) as client:
            journals = await create_journals(client)
            await create_recovery_logs(client, journals)
        progress.note(f"journals: {', '.join(journals)}")
        async with members(broker.endpoint, directory, progress) as group:
            if group is not None:
                await group.create_shards(journals)
            progress.begin("published", total)
            half_way = group.kill_one if group is not None else None
            fleet = Fleet(broker.endpoint, options.transaction_rows, progress, half_way)
            work = shares(total, options.producers, directory)
            publish_seconds = await fleet.publish(work, victim=len(work) // 2)

            await broker.stop()
            await broker.start()
            progress.note(f"broker stopped, and started again at {broker.endpoint}")

            consumed = None
            if group is not None:
                consumed = await group.figures()
                progress.note(f"the members have summed {_flights(consumed):,} flights")
        progress.begin("read back", total)
        begun = time.monotonic()
        async with connect(broker.endpoint) as client:
            tally = await read_flights(client, journals, total, progress)
        read_seconds = time.monotonic() - begun
    return Outcome(total, publish_seconds, read_seconds, fleet.killed_in, tally, consumed)


def _flights(figures: dict[str, report.Figures]) -> int:
    return sum(each.flights for each in figures.values())


def show(
    options: argparse.Namespace, outcome: Outcome, expected: dict[str, report.Figures]
) -> list[str]:
    """Print the outcome, and return what is wrong with it."""
    wrong = report.differences(expected, outcome.tally)
    if outcome.consumed is not None and outcome.consumed != expected:
        wrong.append(f"the consumer summed {outcome.consumed}, but the file has {expected}")
    report.draw_chart(outcome.tally, options.chart)
    rates = {
        "published": outcome.rows / outcome.publish_seconds,
        "read": outcome.rows / outcome.read_seconds,
    }
    if options.json:
        carriers = {
            carrier: dataclasses.asdict(figures)
            for carrier, figures in sorted(outcome.tally.carriers.items())
        }
        result: dict[str, Any] = {
            "rows": outcome.rows,
            "messages_per_second": {name: round(rate) for name, rate in rates.items()},
            "killed_in_transaction": outcome.killed_in,
            "consumed": None if outcome.consumed is None else _flights(outcome.consumed),
            "carriers": carriers,
            "chart": str(options.chart),
            "differences": wrong,
        }
        print(json.dumps(result))
        return wrong
    console = Console(highlight=False)
    console.print(report.table(expected, outcome.tally))
    console.print(f"chart: {options.chart}", soft_wrap=True)
    console.print(
        f"published {rates['published']:,.0f} messages/s, read back {rates['read']:,.0f} messages/s"
    )
    if not wrong:
        console.print(f"all {outcome.rows:,} rows are there once, and the same as in the CSV file")
    return wrong


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--rows", type=int, help="publish only so many flights (default: all)")
    parser.add_argument("--producers", type=int, default=3, help="producer processes")
    parser.add_argument("--transaction-rows", type=int, default=2000, help="rows per transaction")
    parser.add_argument("--dir", type=Path, help="keep journals here (default: a temporary one)")
    parser.add_argument("--chart", type=Path, default=Path(".demo/flights.png"), help="PNG file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    if options.rows is not None and options.rows < options.producers:
        parser.error("each producer needs a row")
    return options


def main() -> int:
    """Run the demo, and return its exit code: 1 if anything failed or is wrong."""
    options = parse_arguments()
    failed: list[BaseException] = []
    try:
        return demonstrate(options)
    except* (
        GazetteError,
        DataSetMissingError,
        ProducerFailedError,
        MemberFailedError,
    ) as group:
        failed.extend(group.exceptions)
    for error in failed:
        print(f"FAILED: {error}", file=sys.stderr)
    return 1


def demonstrate(options: argparse.Namespace) -> int:
    """Run the demo with `options`, and return its exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gazette-flights-") as temporary:
        directory = options.dir or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            print(f"{directory} isn't empty", file=sys.stderr)
            return 2
        with progress_for_stderr() as progress:
            outcome = asyncio.run(run(options, directory, progress))
            expected = report.figures_of_csv(options.rows)
    wrong = show(options, outcome, expected)
    print(f"took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for text in wrong:
        print(f"WRONG: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
