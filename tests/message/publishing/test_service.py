"""A service whose requests publish in transactions: through an outage, and killed in commits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio import IntentLog, Publisher, connect, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy
from gazette_aio.protocol.errors import GazetteError, OperationTimeoutError
from gazette_aio.testing import create_journals, journal_spec
from tests.message.publishing.service_worker import STEPS
from tests.message.publishing.two_journals import JOURNALS, NDJSON, ONE, TWO, committed, rows, to

REQUESTS = 100
QUICK = RetryPolicy(backoff=lambda _attempt: 0.05)
"""An outage of seconds is over soon after its end."""


@pytest.fixture
async def broker(tmp_path: Path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            labels = {"content-type": NDJSON}
            await create_journals(client, *(journal_spec(name, labels=labels) for name in JOURNALS))
        yield broker


@pytest.mark.parametrize("interrupted", ["messages", "acknowledgements"])
async def test_requests_through_an_outage(broker: Any, tmp_path: Path, interrupted: str):
    """Each is answered, those in doubt are decided by later requests, and none counts twice."""
    errors: list[GazetteError] = []
    answers: dict[str, list[int]] = {"committed": [], "nothing": [], "unknown": []}
    async with (
        connect(broker.endpoint, timeout=3.0, retry=QUICK) as client,
        IntentLog(tmp_path / "intents") as log,
    ):
        publisher = Publisher(client.appends, json_adapter())

        async def answer(number: int) -> None:
            try:
                async with publisher.transaction(intents=log):
                    for journal in JOURNALS:
                        await publisher.publish_uncommitted(to(journal), {"v": number})
            except GazetteError as error:
                errors.append(error)
                answers["unknown" if error.outcome_unknown else "nothing"].append(number)
            else:
                answers["committed"].append(number)

        await answer(0)
        persist = log.persist
        outage: Any = None

        async def fail_then_persist(*record: Any) -> None:
            nonlocal outage
            await persist(*record)
            if outage is None:
                outage = broker.control.keep("append", fail="UNAVAILABLE")

        if interrupted == "messages":
            outage = broker.control.keep("append", fail="UNAVAILABLE")
        else:
            log.persist = fail_then_persist  # type: ignore[method-assign]
        await asyncio.gather(*(answer(number) for number in range(1, REQUESTS)))
        assert answers["committed"] == [0]
        assert bool(answers["unknown"]) == (interrupted == "acknowledgements")
        assert sum(map(len, answers.values())) == REQUESTS
        for error in errors:
            meaning = "may commit" if error.outcome_unknown else "nothing of it becomes visible"
            assert meaning in str(error) or "isn't ready" in str(error)
        outage.remove()
        # The service needs no help afterwards.
        await asyncio.gather(*(answer(number) for number in range(REQUESTS, REQUESTS + 10)))
        assert set(range(REQUESTS, REQUESTS + 10)) <= set(answers["committed"])
        decided = answers["unknown"]  # All of them were stored.
        assert await committed(client) == rows(*answers["committed"], *decided)


async def test_a_committed_message_is_written_when_the_call_returns(broker: Any):
    async with connect(broker.endpoint, timeout=3.0, retry=QUICK) as client:
        publisher = Publisher(client.appends, json_adapter())
        response = await publisher.publish_committed(to(ONE), {"v": 1})
        assert response.commit.begin == 0
        await publisher.publish_committed_batch((ONE, NDJSON), [{"v": 2}])
        assert await committed(client) == [(ONE, 1), (ONE, 2)]
        with broker.control.keep("append", fail="UNAVAILABLE"):
            with pytest.raises(OperationTimeoutError):
                await publisher.publish_committed(to(ONE), {"v": 3})
            with pytest.raises(OperationTimeoutError):
                await publisher.publish_committed_batch((ONE, NDJSON), [{"v": 4}])
            append = await publisher.start_publish_committed(to(ONE), {"v": 5})
        await append


async def test_a_refused_journal_fails_no_later_transaction(broker: Any, tmp_path: Path):
    async with connect(broker.endpoint, timeout=10) as client, IntentLog(tmp_path / "log") as log:
        publisher = Publisher(client.appends, json_adapter())

        async def publish(number: int, *journals: str) -> None:
            async with publisher.transaction(intents=log):
                for journal in journals:
                    await publisher.publish_uncommitted(to(journal), {"v": number})

        broker.control.once("append", journal=ONE, status=pb.Status.WRONG_APPEND_OFFSET)
        ended = await asyncio.gather(publish(0, ONE, TWO), publish(1, TWO), return_exceptions=True)
        assert isinstance(ended[0], pb.WrongAppendOffsetError)
        assert "nothing of it becomes visible: WRONG_APPEND_OFFSET" in str(ended[0])
        assert ended[1] is None
        await publish(2, ONE, TWO)
        assert await committed(client) == sorted([(TWO, 1), *rows(2)])


@pytest.mark.crash
@pytest.mark.slow
async def test_a_service_killed_at_each_step_of_shared_commits(broker: Any, tmp_path: Path):
    """Each request is there wholly or not at all, and once; those that were answered are there."""
    log = tmp_path / "intents"
    first, answered = 1, []
    for step in (*STEPS, ""):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.message.publishing.service_worker",
            broker.endpoint, str(log), str(first), step,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        with contextlib.ExitStack() as stack:
            stack.callback(lambda process=process: _kill(process))
            output, _ = await process.communicate()
        assert process.returncode == (-signal.SIGKILL if step else 0)
        answered += [int(line) for line in output.split()]
        first += 100
    async with connect(broker.endpoint) as client:
        found = await committed(client)
    numbers = [number for journal, number in found if journal == ONE]
    assert found == rows(*numbers)
    assert len(numbers) == len(set(numbers))
    assert set(answered) <= set(numbers)
    assert len(answered) > 100
    assert set(numbers) - set(answered)  # Some were decided, and recovered by the next process.


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
