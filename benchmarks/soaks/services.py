"""Send 1,000 concurrent requests to the services of the examples, and end these, over and over.

Both services run as processes, and append to one broker. In turns, each is asked to end by SIGTERM
or killed while requests are in progress, and started again.

Invariants:
    - an event that a service acknowledged is in the journal at the offsets of the answer;
    - a service asked to end answers all requests that it has begun, and ends within a bound.

Prints the median and the 99th percentile of the answers of each service, before faults begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp

from benchmarks.soaks.invariant import require
from gazette_aio import connect, load_journal_space
from gazette_aio.testing import BrokerProcess
from gazette_aio.testing.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[2]
JOURNAL = "examples/events"
SPEC = ROOT / "examples" / "events.yaml"
COMMANDS = {
    "fastapi": "-m uvicorn examples.fastapi_app:app --log-level=warning --port={port}",
    "aiohttp": "-m aiohttp.web --hostname=127.0.0.1 --port={port} examples.aiohttp_app:create_app",
}
CONCURRENT = 1_000
END_SECONDS = 60.0
"""Seconds within which a service must start, and must end, also on a busy machine."""
ENDED = {"fastapi": -signal.SIGTERM, "aiohttp": 0}
"""Exit code after SIGTERM: uvicorn ends by the signal once it's done."""


class ServiceProcess:
    """A service of the examples as a process.

    Args:
        name: One of `COMMANDS`.
        broker: Endpoint of its broker.
    """

    def __init__(self, name: str, broker: str) -> None:
        self.name = name
        self.url = ""
        """URL of the service, once it's started."""
        self._broker = broker
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await self.end(signal.SIGKILL)

    async def start(self) -> None:
        """Start the process, and wait until it's ready."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = COMMANDS[self.name].format(port=port).split()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=ROOT,
            env={**os.environ, "BROKER_ADDRESS": self._broker},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,  # Of aiohttp: each request.
        )
        async with asyncio.timeout(END_SECONDS), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"{self.url}/ready") as answer:
                        if answer.status == 200:
                            return
                require(self._process.returncode is None, f"{self.name} ended while it started")
                await asyncio.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        assert self._process is not None
        async with asyncio.timeout(END_SECONDS):
            code = await self._process.wait()
        self._process = None
        return code

    async def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code."""
        self.signal(number)
        return await self.ended()


class Events:
    """Events that were sent to a service, and where those that it acknowledged are."""

    def __init__(self, session: aiohttp.ClientSession, service: ServiceProcess) -> None:
        self.service = service
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.seconds: list[float] = []
        self.sent = 0
        self._session = session

    async def send(self) -> bool:
        """Send one event, and return whether it was acknowledged."""
        number, began = self.sent, time.monotonic()
        self.sent += 1
        body = {"service": self.service.name, "number": number}
        try:
            async with self._session.post(f"{self.service.url}/events", json=body) as answer:
                if answer.status != 201:
                    return False
                placed = await answer.json()
        except aiohttp.ClientError:
            return False  # The process has ended.
        self.seconds.append(time.monotonic() - began)
        self.acknowledged[number] = placed["begin"], placed["end"]
        return True

    def check(self, content: bytes) -> None:
        """Require that all acknowledged events are where they were said to be."""
        for number, (begin, end) in self.acknowledged.items():
            sent = {"service": self.service.name, "number": number}
            require(content[begin:end].endswith(b"\n"), f"{sent} isn't there")
            require(json.loads(content[begin:end]) == sent, f"{sent} isn't there")


async def read_all(endpoint: str) -> bytes:
    """Return the content of the journal."""
    async with connect(endpoint) as client:
        head = (await client.append(JOURNAL)).commit.end
        async with client.read(JOURNAL, end_offset=head) as reader:
            return b"".join([chunk async for chunk in reader]) if head else b""


async def soak(duration: float, seed: int) -> None:
    """Run for `duration` seconds.

    Raises:
        BrokenInvariantError: An invariant was broken.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        async with BrokerProcess(Path(directory) / "broker") as broker:
            async with connect(broker.endpoint) as client:
                space = load_journal_space(SPEC.read_text("utf-8"))
                await client.apply(space.to_apply_request())
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                events = [
                    Events(session, ServiceProcess(name, broker.endpoint)) for name in COMMANDS
                ]
                for each in events:
                    async with each.service:
                        await _measure(each)
                until = time.monotonic() + duration
                while time.monotonic() < until:
                    for each in events:
                        await _interrupt(each, rng)
            content = await read_all(broker.endpoint)
            for each in events:
                each.check(content)
                print(
                    f"{each.service.name}: {len(each.acknowledged):,} of {each.sent:,} events"
                    " acknowledged, all are there",
                    flush=True,
                )


async def _measure(events: Events) -> None:
    """Send requests, 1,000 at a time, and print how long they take."""
    for _ in range(5):
        answers = await asyncio.gather(*(events.send() for _ in range(CONCURRENT)))
        require(all(answers), "a request failed without a cause")
    hundredths = statistics.quantiles(events.seconds, n=100)
    print(
        f"{events.service.name}: {CONCURRENT:,} concurrent requests: p50 {hundredths[49]:.3f} s,"
        f" p99 {hundredths[98]:.3f} s",
        flush=True,
    )


async def _interrupt(events: Events, rng: random.Random) -> None:
    number = rng.choice((signal.SIGTERM, signal.SIGKILL))
    async with events.service as service:
        requests = [asyncio.ensure_future(events.send()) for _ in range(CONCURRENT)]
        enough = rng.randrange(CONCURRENT)
        for request in asyncio.as_completed(requests):
            await request
            if (enough := enough - 1) < 0:
                break
        code = await service.end(number)
        await asyncio.gather(*requests)
    expected = ENDED[service.name] if number is signal.SIGTERM else -signal.SIGKILL
    require(code == expected, f"{service.name} ended with {code} after {number.name}")
