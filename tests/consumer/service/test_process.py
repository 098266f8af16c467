"""Process of a member: command line, signals, diagnostics and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from click.testing import CliRunner

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.consumer.service.diagnostics import Diagnostics
from gazette_aio.consumer.service.logs import configure_logs
from gazette_aio.consumer.service.process import command
from tests.consumer.service.applications import Summing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.etcd import Etcd

ROOT = Path(__file__).parents[3]


def test_settings_are_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONSUMER_LIMIT", "7")
    result = CliRunner().invoke(command(Summing()), ["print-config", "--etcd.lease", "9s"])
    assert result.exit_code == 0
    assert "[consumer]\n" in result.output
    assert "\nlimit = 7\n" in result.output
    assert "\nlease = 9s\n" in result.output


@pytest.mark.parametrize(
    "args",
    [["serve", "--consumer.limit", "no"], ["serve", "--unknown"], ["nothing"]],
    ids=" ".join,
)
def test_wrong_usage(args: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command(Summing()), args)
    assert result.exit_code == 2


def test_help_names_variables() -> None:
    result = CliRunner().invoke(command(Summing()), ["serve", "--help"])
    assert result.exit_code == 0
    assert "$ETCD_LEASE_TTL" in result.output


@pytest.mark.parametrize("is_ready", [True, False])
async def test_diagnostics(is_ready: bool) -> None:
    diagnostics = Diagnostics(lambda: is_ready, lambda: (b"one 1\n", "text/plain"))
    async with diagnostics, aiohttp.ClientSession() as session:
        port = await diagnostics.start("127.0.0.1", 0)
        async with session.get(f"http://127.0.0.1:{port}/debug/ready") as response:
            assert response.status == (200 if is_ready else 503)
        async with session.get(f"http://127.0.0.1:{port}/debug/metrics") as response:
            assert (await response.read(), response.content_type) == (b"one 1\n", "text/plain")


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
            "tests.consumer.service.program",
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_member_without_shards(etcd: Etcd, number: signal.Signals) -> None:
    async with serving(etcd) as process:
        await record(process, "serves at")
        process.send_signal(number)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_an_etcd_that_refuses_fails_the_process(etcd: Etcd) -> None:
    async with serving(etcd, "--etcd.prefix=not/absolute") as process:
        await record(process, "prefix of keys isn't an absolute, clean path")
        assert await process.wait() == 1
