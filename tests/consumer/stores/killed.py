"""Kill processes amid commits of several databases, at some calls that SQLite makes of its disk.

After each kill, the directory of the databases is moved.

`python -m tests.consumer.stores.killed DIRECTORY SEED` prints numbers of what became of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from gazette_aio.consumer.stores import SQLiteStore
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.faulty_disk import FaultyDisk
from tests.consumer.stores.sqlite_stores import SHARD

MOMENTS = 40
LATEST_MOMENTS = 15
TABLES = ("first", "second", "third")
SCHEMA = "".join(
    f"ATTACH '{name}.db' AS {name};"
    f"CREATE TABLE IF NOT EXISTS {name}.{name} (key INTEGER PRIMARY KEY, value BLOB);"
    for name in TABLES
)


class KillingDisk(FaultyDisk):
    """Disk whose process is killed before one of its calls."""

    is_synced = False

    def __init__(self, kill_at: int) -> None:
        super().__init__()
        self.count = 0
        self._kill_at = kill_at

    def check(self, operation: str, name: str) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


async def commit(directory: Path, say: int) -> None:
    """Check that all databases are of one commit, and make the next one."""
    store = SQLiteStore(None, schema=SCHEMA, directory=directory, pragmas={"cache_size": 2})
    checkpoint = await store.restore_checkpoint(SHARD)
    (number,) = [source.read_through for source in checkpoint.sources.values()] or [0]
    for table in TABLES:
        values = {value[:1] for (value,) in store.db.execute(f"SELECT value FROM {table}")}
        assert values == ({bytes([number % 256])} if number else set()), (table, number, values)
    os.write(say, b"restored %d\n" % number)
    for table in TABLES:
        # More than the cache has: some pages are written before the commit.
        rows = [(key, bytes([(number + 1) % 256]) * 1500) for key in range(4)]
        store.db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
    await store.start_commit(SHARD, checkpoint_at(number + 1), ())
    os.write(say, b"committed %d\n" % (number + 1))
    await store.destroy()


def run(directory: Path, kill_at: int) -> tuple[int, list[str]]:
    """Return what a process said, and its status. The last word of one that lives is a count."""
    hear, say = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            disk = KillingDisk(kill_at)
            asyncio.run(commit(directory, say))
            os.write(say, b"calls %d\n" % disk.count)
            code = 0
        finally:
            os._exit(code)
    os.close(say)
    with os.fdopen(hear, encoding="utf-8") as said:
        lines = said.read().splitlines()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), lines


def main(directory: Path, seed: int) -> None:
    directory /= "databases"
    run(directory, 0)
    _, lines = run(directory, 0)
    calls = int(lines[-1].split()[1])
    # The latest calls end the commit, and close the databases.
    moments = [
        *random.Random(seed).sample(range(1, calls + 1), MOMENTS),
        *range(calls - LATEST_MOMENTS, calls + 1),
    ]
    latest = 2
    outcomes = {True: 0, False: 0}
    is_unknown = False
    for moment in [*moments, 0]:
        directory = directory.rename(directory.with_name(f"moved to {moment}"))
        status, lines = run(directory, moment)
        assert status in ((-signal.SIGKILL,) if moment else (0,)), (moment, status, lines)
        for line in lines:
            word, number = line.split()
            if word == "restored":
                # A commit that was killed is there as a whole, or isn't.
                assert int(number) - latest in ((0, 1) if is_unknown else (0,)), (moment, lines)
                outcomes[int(number) > latest] += is_unknown
            if word != "calls":
                latest = int(number)
            is_unknown = word == "restored"
    sys.stdout.write(json.dumps({"done": outcomes[True], "undone": outcomes[False]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
