"""Process of a member: command line, signals, diagnostics and exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import re
import signal
import ssl
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import trustme
from click.testing import CliRunner

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.service import service as service_module
from gazette_aio.consumer.service.diagnostics import Diagnostics
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.process import command, run_consumer
from gazette_aio.consumer.service.signals import StopSignals
from gazette_aio.logs import configure_logs
from gazette_aio.serving import http_site
from gazette_aio.serving.tls import read_tls
from gazette_aio.testing import no_leaks
from tests.cancellation import cancel_at
from tests.consumer.service.applications import Summing
from tests.waiting import eventually, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gazette_aio.consumer.service.service import Service
    from tests.etcd import Etcd

ROOT = Path(__file__).parents[3]


def test_help_names_variables() -> None:
    result = CliRunner().invoke(command(Summing()), ["serve", "--help"])
    assert result.exit_code == 0
    assert "ETCD_LEASE_TTL" in result.output


@pytest.mark.parametrize("is_ready", [True, False])
async def test_diagnostics(is_ready: bool) -> None:
    diagnostics = Diagnostics(lambda: is_ready, lambda: (b"one 1\n", "text/plain"))
    async with diagnostics, aiohttp.ClientSession() as session:
        port = await diagnostics.start("127.0.0.1", 0)
        async with session.get(f"http://127.0.0.1:{port}/debug/ready") as response:
            assert response.status == (200 if is_ready else 503)
        async with session.get(f"http://127.0.0.1:{port}/debug/metrics") as response:
            assert (await response.read(), response.content_type) == (b"one 1\n", "text/plain")


@pytest.mark.parametrize(("origin", "is_allowed"), [("http://a", True), ("http://c", False)])
async def test_scripts_of_allowed_origins_may_read_diagnostics(
    origin: str, is_allowed: bool
) -> None:
    diagnostics = Diagnostics(lambda: True, None, allow_origin=("http://a", "http://b"))
    async with diagnostics, aiohttp.ClientSession(headers={"Origin": origin}) as session:
        port = await diagnostics.start("127.0.0.1", 0)
        async with session.get(f"http://127.0.0.1:{port}/debug/ready") as response:
            allowed = response.headers.get("Access-Control-Allow-Origin")
            assert allowed == (origin if is_allowed else None)
            assert response.headers["Vary"] == "Origin"


async def test_diagnostics_end_half_sent_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_site, "FIRST_REQUEST_SECONDS", 0.1)
    async with Diagnostics(lambda: True, None) as diagnostics:
        port = await diagnostics.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /debug/ready HTTP/1.1\r\nHost: ")
            # A reset, if a busy machine sends this later than it may.
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionResetError):
                await writer.wait_closed()


async def test_the_end_of_diagnostics_may_be_cancelled_at_every_await() -> None:
    number, was_cancelled = 0, True
    while was_cancelled:
        diagnostics = Diagnostics(lambda: True, None)
        port = await diagnostics.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /debug/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await reader.readuntil(b"ready\n")
        was_cancelled = await cancel_at(diagnostics.aclose(), number)
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        number += 1


async def test_metrics_that_are_missing_say_so() -> None:
    async with Diagnostics(lambda: True, None) as diagnostics, aiohttp.ClientSession() as session:
        port = await diagnostics.start("127.0.0.1", 0)
        async with session.get(f"http://127.0.0.1:{port}/debug/metrics") as response:
            assert response.status == 501
            assert "gazette-aio[metrics]" in await response.text()


@pytest.fixture
def _logs() -> AsyncIterator[None]:  # type: ignore[misc]
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("_logs")
def test_logs_are_objects_of_json() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    logger = logging.getLogger("one")
    logger.debug("hidden")
    logger.warning("shard %s", "a", extra={"shard": "a"})
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["msg"], first["shard"]) == ("warn", "shard a", "a")
    assert "ValueError: no" in second["error"]


@pytest.mark.usefixtures("_logs")
@pytest.mark.parametrize(("form", "level"), [("text", "error"), ("color", "\x1b[31merror")])
def test_logs_are_lines(form: str, level: str) -> None:
    stream = io.StringIO()
    configure_logs("warn", form, stream)  # type: ignore[arg-type]
    logging.getLogger("one").error("it broke", extra={"journal": "a/b"})
    assert f" {level}" in stream.getvalue()
    assert stream.getvalue().endswith("one: it broke journal=a/b\n")


@asynccontextmanager
async def serving(etcd: Etcd, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    async with EmbeddedBroker() as broker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.consumer.service.recorded",
            "serve",
            f"--broker.address={broker.endpoint}",
            f"--etcd.address={etcd.endpoint}",
            "--etcd.lease=5s",
            "--consumer.host=127.0.0.1",
            "--consumer.bind=127.0.0.1",
            "--log.level=info",
            "--log.format=json",
            *args,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def record(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stderr is not None
    seen: list[str] = []
    async for line in process.stderr:
        seen.append(line.decode())
        if text in seen[-1]:
            return seen[-1]
    raise AssertionError("".join(seen))


@pytest.fixture
def unhandled() -> Iterator[list[int]]:
    """Signals that the program under test doesn't handle, which would end its process."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


async def run(application: Summing, **options: Any) -> bool:
    async with EmbeddedStore() as store, connect("http://127.0.0.1:1") as client, no_leaks():
        consumer = ConsumerOptions(
            bind="127.0.0.1", host="127.0.0.1", **options.pop("consumer", {})
        )
        return await run_consumer(
            application, options=consumer, store=store, client=client, **options
        )


async def test_full_collections_of_a_member_look_only_at_what_is_younger() -> None:
    """A collection of all objects would hold up its event loop."""
    looked_at: list[int] = []

    def collect(service: Service) -> None:
        gc.collect()  # As the interpreter does by itself.
        looked_at.append(len(gc.get_objects()))
        service.exit_gracefully()

    assert await run(Summing(), on_start=collect)
    assert looked_at[0] < 1000


async def test_a_signal_during_the_start_ends_it(unhandled: list[int]) -> None:
    class Signalled(Summing):
        async def init_application(self, service: Service) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    started: list[Service] = []
    assert not await run(Signalled(), on_start=started.append)
    assert not started
    assert not unhandled


@pytest.mark.parametrize("turns_before", range(4))
async def test_a_signal_as_soon_as_the_member_has_joined_hands_over(
    unhandled: list[int], turns_before: int
) -> None:
    class Signalled(Summing):
        async def work(self) -> None:
            await turns(turns_before)
            os.kill(os.getpid(), signal.SIGTERM)

        def init_application(self, service: Service) -> None:
            service.spawn(self.work())

    assert await run(Signalled())
    assert not unhandled


@pytest.mark.usefixtures("unhandled")
async def test_the_second_signal_ends_the_member_and_the_third_acts_as_by_default() -> None:
    class Member:
        exits = 0

        def exit_gracefully(self) -> None:
            self.exits += 1

    member: Any = Member()
    async with StopSignals() as signals:
        signals.has_started(member)
        for exits in (1, 2):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda exits=exits: member.exits == exits)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("with_tls", [False, True])
async def test_the_port_of_diagnostics_is_told(
    with_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer: dict[str, Any] = {"http_port": 0}
    tls, reads = None, []
    if with_tls:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
        consumer["server_cert_file"] = tmp_path / "cert.pem"
        consumer["server_cert_key_file"] = tmp_path / "key.pem"
        # Clients of RPCs need certificates, but neither probes nor Prometheus have any.
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        consumer["server_ca_file"] = tmp_path / "ca.pem"
        tls = ssl.create_default_context()
        authority.configure_trust(tls)
        monkeypatch.setattr(
            service_module, "read_tls", lambda files: reads.append(files) or read_tls(files)
        )
    told: list[str] = []

    class Asking(Summing):
        async def ask(self, service: Service) -> None:
            told.append(service.http_endpoint)
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{service.http_endpoint}/debug/ready", ssl=tls or False) as response,
            ):
                assert response.status == 200
            service.exit_gracefully()

        def init_application(self, service: Service) -> None:
            service.spawn(self.ask(service))

    assert await run(Asking(), consumer=consumer)
    assert re.fullmatch(rf"http{'s' * with_tls}://127\.0\.0\.1:[1-9]\d+", told[0])
    assert len(reads) == with_tls


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_member_without_shards(etcd: Etcd, number: signal.Signals) -> None:
    async with serving(etcd, "--debug.port=0") as process:
        await record(process, "serves at http://127.0.0.1:")
        line = await record(process, "serves diagnostics at http://127.0.0.1:")
        assert re.search(r"at http://127\.0\.0\.1:[1-9]\d*\"", line)
        process.send_signal(number)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_an_etcd_that_refuses_fails_the_process(etcd: Etcd) -> None:
    async with serving(etcd, "--etcd.prefix=not/absolute") as process:
        await record(process, "prefix of keys isn't an absolute, clean path")
        assert await process.wait() == 1
