"""Messages under random faults: those of transactions are read exactly once and in order."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient
from gazette_aio.message import IntentLog, Publisher, ReadCommittedIter, json_adapter
from gazette_aio.testing import FaultProxy, Faults
from tests.faults.support import CONTENT_TYPE, JOURNAL, JOURNALS, running, seeded
from tests.waiting import eventually

FAULTS = Faults(calm_seconds=(0.0, 0.05), fault_seconds=(0.0, 0.03), most_bytes=5_000)
SEEDS = (1, 2, 3)


class AbortedError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_transactions(
    proxy: FaultProxy, client: JournalClient, tmp_path: Path, seed: int
) -> None:
    rng = seeded(seed)
    publisher = Publisher(client.appends, json_adapter(dict))
    log = IntentLog(tmp_path / "intents")
    committed: dict[str, list[int]] = {journal: [] for journal in JOURNALS}
    read: dict[str, list[int]] = {journal: [] for journal in JOURNALS}

    async def consume() -> None:
        messages = ReadCommittedIter(
            JOURNALS, json_adapter(dict), client=client, block=True, skip_acks=True
        )
        async with messages:
            async for envelope in messages:
                message: Any = envelope.message
                read[envelope.journal].append(message["number"])

    async with running(consume()):
        async with running(proxy.suffer(FAULTS, rng)):
            for transaction in range(12):
                published: list[tuple[str, int]] = []
                with contextlib.suppress(AbortedError):
                    async with publisher.transaction(intents=log) as open_transaction:
                        for number in range(transaction * 100, transaction * 100 + 20):
                            journal = JOURNALS[number % 2]
                            target = (journal, CONTENT_TYPE)
                            await publisher.publish_uncommitted(
                                lambda _, target=target: target, {"number": number}
                            )
                            published.append((journal, number))
                            if number % 7 == 0:  # Faults strike in the midst of it, too.
                                passed = proxy.passed_bytes()
                                await eventually(lambda: proxy.passed_bytes() > passed)  # noqa: B023
                        open_transaction.state = {"transaction": transaction}
                        if transaction % 4 == 3:
                            raise AbortedError
                if transaction % 4 != 3:
                    for journal, number in published:
                        committed[journal].append(number)
        await eventually(
            lambda: all(len(read[journal]) >= len(committed[journal]) for journal in JOURNALS)
        )
    assert read == committed
    assert log.state == {"transaction": 10}


@pytest.mark.parametrize("seed", SEEDS)
async def test_appends_with_registers(proxy: FaultProxy, client: JournalClient, seed: int) -> None:
    """Who checks a register knows whether an append whose acknowledgement was lost was made."""
    name, lost = "writer", 0
    async with running(proxy.suffer(FAULTS, seeded(seed))):
        for number in range(60):
            request = pb.AppendRequest(
                journal=JOURNAL, union_registers=pb.label_set(name, str(number))
            )
            if number:
                request.check_registers.include.CopyFrom(pb.label_set(name, str(number - 1)))
            else:
                request.check_registers.exclude.CopyFrom(pb.label_set(name, ""))
            while True:
                try:
                    await client.append(request, b"%03d" % number)
                except pb.RegisterMismatchError as error:
                    mismatch = error
                    lost += 1
                except pb.TransportError:
                    continue  # Such as a stream which was too slow.
                else:
                    break
                assert mismatch.response is not None
                assert pb.value_of(mismatch.response.registers, name) == str(number)
                break
    print(f"{lost} acknowledgements were lost")  # noqa: T201
    async with client.read(JOURNAL, end_offset=180) as reader:
        content = b"".join([chunk async for chunk in reader])
    assert content == b"".join(b"%03d" % number for number in range(60))
    assert (await client.append(JOURNAL)).commit.end == 180
