"""The process of a server: its ready line, its signals, and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.serving.address import listen_address, parse_port, url_host
from gazette_aio.serving.process import flush_within, run_until_signal


class Fake:
    """A server which ends itself by a signal, and notes what's asked of it."""

    def __init__(self, ready_file: Path | None = None) -> None:
        self.calls: list[str] = []
        self.ready_file = ready_file

    def note(self, call: str) -> None:
        is_there = self.ready_file is not None and self.ready_file.exists()
        self.calls.append(f"{call}, ready" if is_there else call)

    async def start(self) -> None:
        self.note("start")
        signal.raise_signal(signal.SIGTERM)

    def ready(self) -> dict[str, object]:
        return {"endpoint": "here"}

    async def flush(self) -> None:
        self.note("flush")

    async def stop(self, grace: float) -> None:
        assert grace > 0
        self.note("stop")


async def test_a_signal_flushes_and_stops(capsys: pytest.CaptureFixture[str]) -> None:
    server = Fake()
    await run_until_signal(server, drain_seconds=30)
    assert server.calls == ["start", "flush", "stop"]
    line = {"endpoint": "here", "pid": os.getpid()}
    assert capsys.readouterr().out == json.dumps(line) + "\n"


async def test_a_ready_file_is_there_while_the_server_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ready.json"
    path.write_text("of a process which was killed")
    server = Fake(path)
    await run_until_signal(server, drain_seconds=30, ready_file=path)
    # Neither before the server has started, nor once it's about to end.
    assert server.calls == ["start", "flush", "stop"]
    assert [each.name for each in tmp_path.iterdir()] == []  # noqa: ASYNC240
    assert capsys.readouterr().out == ""


async def test_a_second_signal_ends_the_flush() -> None:
    class Hanging(Fake):
        async def flush(self) -> None:
            await super().flush()
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    server = Hanging()
    async with asyncio.timeout(30):
        await run_until_signal(server, drain_seconds=3600)
    assert server.calls == ["start", "flush", "stop"]


async def test_a_failed_start_is_stopped_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Fake):
        async def start(self) -> None:
            raise pb.ConfigurationError("no port")

    server = Broken()
    with pytest.raises(pb.ConfigurationError, match="no port"):
        await run_until_signal(server, drain_seconds=1)
    assert server.calls == ["stop"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "level"),
    [(OSError("full"), logging.WARNING), (ValueError("a bug"), logging.ERROR)],
)
async def test_a_flush_which_fails_is_logged(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def flush() -> None:
        raise error

    await flush_within(flush(), 30, asyncio.Event().wait())
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (level, "unable to flush everything")
    ]


async def test_a_flush_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def flush() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await flush_within(flush(), 0.001, asyncio.Event().wait())
    assert ended.is_set()
    assert not caplog.records


def test_addresses() -> None:
    assert (parse_port("8080"), parse_port("unix:///a/b")) == (8080, Path("/a/b"))
    for wrong in ("", "-1", "65536", "unix://a", "http"):
        with pytest.raises(ValueError, match=r"expected|invalid literal"):
            parse_port(wrong)
    assert [listen_address(host, 1) for host in ("h", "::1")] == ["h:1", "[::1]:1"]
    shown = {"h": "h", "0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1", "::2": "[::2]"}
    assert {host: url_host(host) for host in shown} == shown
