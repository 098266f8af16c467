"""A broker as a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from tests.cancellation import cancel_at


@pytest.mark.slow
async def test_content_survives_kill_and_stop(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data", options=["--min-append-rate=0"]) as broker:
        async with connect(broker.endpoint) as client:
            await create_journals(client, journal_spec("a/journal"))
            await client.append("a/journal", b"one")
        first = broker.pid
        await broker.kill()
        await broker.kill()
        assert repr(broker) == f"<BrokerProcess {tmp_path / 'data'} stopped>"

        await broker.start()
        assert broker.pid != first
        async with connect(broker.endpoint) as client:
            assert (await client.append("a/journal", b"two")).commit.begin == 3
        await broker.stop()
        await broker.stop()

        await broker.start()
        assert f"pid={broker.pid} at {broker.endpoint}" in repr(broker)
        async with connect(broker.endpoint) as client:
            async with client.read("a/journal", end_offset=6) as reader:
                assert b"".join([chunk async for chunk in reader]) == b"onetwo"


async def test_start_says_why_it_failed(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data"):
        with pytest.raises(pb.ConfigurationError, match=str(tmp_path / "data")):
            await BrokerProcess(tmp_path / "data").start()


async def test_properties_need_a_running_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")

    with pytest.raises(RuntimeError, match="isn't running"):
        _ = broker.endpoint


async def test_stop_tells_when_the_broker_ended_by_itself(tmp_path: Path) -> None:
    import os
    import signal

    broker = BrokerProcess(tmp_path / "data")
    await broker.start()
    os.kill(broker.pid, signal.SIGKILL)

    with pytest.raises(RuntimeError, match="ended with exit code -9"):
        await broker.stop()


async def test_a_leaked_process_warns(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    await broker.start()

    with pytest.warns(ResourceWarning, match="unclosed <BrokerProcess") as caught:
        del broker

    leaked = caught[0].source
    assert isinstance(leaked, BrokerProcess)
    await leaked.kill()


async def test_stop_may_be_cancelled_and_called_again(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    await broker.start()
    for number in range(3):
        await cancel_at(broker.stop(), number)
    await broker.stop()
    assert repr(broker).endswith("stopped>")
    await broker.start()
    await broker.stop()
