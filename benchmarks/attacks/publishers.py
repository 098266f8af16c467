"""Processes that publish rows exactly once, killed over and over at any time.

Invariants: each journal has the committed rows from the first to the last, once and in order, and
those of a transaction are in all journals or in none.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.soaks.invariant import require
from gazette_aio import IntentLog, Publisher, ReadCommittedIter, connect, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.testing import create_journals, journal_spec

_NDJSON = "application/x-ndjson"
_JOURNALS = ("attack/rows/one", "attack/rows/two", "attack/rows/three")


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    kills = 0
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "rows.intents")
        async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
            labels = {"content-type": _NDJSON}
            specs = [journal_spec(name, labels=labels) for name in _JOURNALS]
            await create_journals(client, *specs)
            end = time.monotonic() + duration
            while not kills or time.monotonic() < end:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", __name__, broker.endpoint, str(log),
                    stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                assert process.stdout is not None
                try:
                    # It tells of each commit, so that it's killed amid its work.
                    for _ in range(rng.randrange(1, 30)):
                        require(await process.stdout.readline(), "a publisher has ended")
                    await asyncio.sleep(rng.uniform(0, 0.01))
                finally:
                    process.kill()
                    await process.communicate()
                kills += 1
            async with IntentLog(log) as intents:
                state = await intents.recover(client.appends)
            require(isinstance(state, dict), "no transaction was committed")
            assert isinstance(state, dict)
            expected = list(range(state["rows"]))
            source = ReadCommittedIter(_JOURNALS, json_adapter(), client=client, skip_acks=True)
            rows: dict[str, list[int]] = {journal: [] for journal in _JOURNALS}
            async with source as messages:
                async for envelope in messages:
                    rows[envelope.journal].append(envelope.message["row"])
            for journal, found in rows.items():
                require(found == expected, f"{journal} has {found} of {len(expected)} rows")
    print(f"publishers: {kills} kills, {len(expected)} rows in each journal, intact", flush=True)


async def publish(endpoint: str, path: str) -> None:
    """Publish rows until killed, and print a line for each transaction."""
    async with connect(endpoint) as client, IntentLog(path) as log:
        publisher = Publisher(client.appends, json_adapter())
        state = await log.recover(client.appends)
        row = state["rows"] if isinstance(state, dict) else 0
        rng = random.Random(row)
        while True:
            async with publisher.transaction(intents=log) as transaction:
                for _ in range(rng.randrange(1, 20)):
                    for journal in _JOURNALS:
                        await publisher.publish_uncommitted(
                            lambda _, journal=journal: (journal, _NDJSON), {"row": row}
                        )
                    row += 1
                transaction.state = {"rows": row}
            print(row, flush=True)


if __name__ == "__main__":
    asyncio.run(publish(*sys.argv[1:]))
