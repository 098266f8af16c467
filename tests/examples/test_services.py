"""The web services as processes that are asked to end, or are killed."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest

from benchmarks.soaks.services import ENDED, Events, ServiceProcess, read_all
from gazette_aio import load_journal_space
from tests.examples.test_examples import EVENTS

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.fixture
async def broker(gazette_broker, gazette_client):
    await gazette_client.apply(load_journal_space(EVENTS.read_text()).to_apply_request())
    return gazette_broker


@pytest.mark.parametrize(
    ("name", "number"),
    [("fastapi", signal.SIGTERM), ("aiohttp", signal.SIGKILL)],
)
async def test_nothing_acknowledged_is_lost(broker, name, number):
    async with aiohttp.ClientSession() as session, ServiceProcess(name, broker.endpoint) as service:
        events = Events(session, service)
        assert all(await asyncio.gather(*(events.send() for _ in range(5))))
        hold = broker.control.hold("append")
        requests = [asyncio.ensure_future(events.send()) for _ in range(5)]
        await hold.held(1)
        service.signal(number)
        if number is signal.SIGTERM:
            hold.release()
        answers = await asyncio.gather(*requests)
        hold.release()
        code = await service.ended()

    # A request whose append has begun is answered, unless the process is killed.
    assert any(answers) == (number is signal.SIGTERM)
    assert code == (ENDED[name] if number is signal.SIGTERM else -number)
    events.check(await read_all(broker.endpoint))
