"""A broker which is killed while writers append: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from pathlib import Path

import grpc.aio
import pytest

import gazette_aio.protocol as pb
from tests import extent
from tests.broker.caller import Caller, calling, journal_spec
from tests.waiting import eventually

ROUNDS = extent.of(8, 60)
"""How often brokers are killed, of all modes together."""

SHARES = {"off": 0.7, "commit": 0.3}
WRITERS = 4

_CHILD = """
import asyncio, sys
from pathlib import Path
from gazette_aio.broker import BrokerOptions, serve

directory, fsync = Path(sys.argv[1]), sys.argv[2]
options = BrokerOptions(
    data_dir=directory / "data",
    fsync=fsync,
    pulse_interval=0.02,
    persist_delay=0.0,
    min_append_rate=0,
)
asyncio.run(serve(options, ready_file=directory / "ready"))
"""


class Journal:
    """What's known of a journal: acknowledged records by their offsets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: set[bytes] = set()
        self.count = 0
        self.last = -1


async def _start(directory: Path, fsync: str) -> tuple[asyncio.subprocess.Process, str]:
    ready = directory / "ready"
    ready.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CHILD, str(directory), fsync, cwd=Path(__file__).parents[2]
    )

    def is_ready() -> bool:
        assert process.returncode is None, "the broker didn't start"
        return ready.exists()

    await eventually(is_ready)
    return process, json.loads(ready.read_text())["endpoint"]


async def _write(caller: Caller, journal: Journal, rng: random.Random) -> None:
    while True:
        number = journal.count
        journal.count += 1
        record = f"[{number}:{'x' * rng.choice([1, 10, 100, 700])}]".encode()
        journal.attempted.add(record)
        registers = pb.label_set("last", f"{number:08}")
        response = await caller.append(record, journal.name, union_registers=registers)
        assert response.status == pb.Status.OK, response
        journal.acknowledged[response.commit.begin] = record
        journal.last = number
        if rng.random() < 0.1:  # Roll-backs leave no trace.
            call = caller.append_call()
            await call.write(pb.AppendRequest(journal=journal.name))
            await call.write(pb.AppendRequest(content=b"never committed" * 60))
            call.cancel()


async def _verify(caller: Caller, journal: Journal) -> None:
    content = await caller.read(journal.name)
    position = 0
    found: set[bytes] = set()
    while position < len(content):
        end = content.index(b"]", position) + 1
        record = content[position:end]
        assert record in journal.attempted, f"{journal.name}: garbage at {position}"
        assert record not in found, f"{journal.name}: twice at {position}"
        found.add(record)
        # What was never acknowledged may be there too, as a whole.
        journal.acknowledged.setdefault(position, record)
        assert journal.acknowledged[position] == record
        position = end
    assert found >= set(journal.acknowledged.values()), f"{journal.name}: lost records"
    response = await caller.append(b"", journal.name)
    assert response.commit.begin == len(content)
    if journal.last >= 0:
        assert int(pb.value_of(response.registers, "last")) >= journal.last


_FAILURES = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)


async def _acknowledged(journals: list[Journal]) -> bool:
    return all(journal.acknowledged for journal in journals)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(600 + 10 * ROUNDS)
@pytest.mark.parametrize("fsync", SHARES)
async def test_killed_brokers_lose_nothing(tmp_path: Path, fsync: str) -> None:
    seed = extent.seed()
    print(f"GAZETTE_SEED={seed}")  # noqa: T201 - Shown if the test fails.
    rng = random.Random(seed)
    journals = [Journal(f"test/journal-{number}") for number in range(WRITERS)]
    revision = 0
    rounds = max(2, round(ROUNDS * SHARES[fsync]))
    for turn in range(rounds):
        process, endpoint = await _start(tmp_path, fsync)
        try:
            async with calling(endpoint) as caller:
                for journal in journals if turn else ():
                    await _verify(caller, journal)
                specs = [
                    journal_spec(
                        journal.name,
                        length=1024,
                        # One journal has no store, and two codecs are persisted.
                        stores=["file:///"] if index else [],
                        compression_codec=rng.choice([1, 2, 4]),
                    )
                    for index, journal in enumerate(journals)
                ]
                response = await caller.create(*specs)
                assert response.header.etcd.revision == revision + 1 or not turn
                revision = response.header.etcd.revision
                writers = [asyncio.create_task(_write(caller, j, rng)) for j in journals]
                # It's killed anywhere in the midst of appends.
                enough = sum(len(j.acknowledged) for j in journals) + rng.randrange(100)
                await eventually(lambda: sum(len(j.acknowledged) for j in journals) >= enough)  # noqa: B023
                if turn == rounds - 1:  # There must have been something to lose.
                    await eventually(lambda: _acknowledged(journals))
                process.send_signal(signal.SIGKILL)
                await process.wait()
                for writer in writers:
                    # The client of grpc.aio may fail to end a stream, rather than see how it ended.
                    with pytest.raises(_FAILURES):
                        await writer
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    process, endpoint = await _start(tmp_path, fsync)
    try:
        async with calling(endpoint) as caller:
            for journal in journals:
                await _verify(caller, journal)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(40):
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    # The end has persisted what was complete.
    assert list((tmp_path / "data" / "fragments").rglob("*.*"))
