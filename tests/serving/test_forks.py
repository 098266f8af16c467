"""Restart of servers and logs while a worker lives on that their killed owner had forked."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.message import IntentLog

OWNER = """
import asyncio, os, sys
from aiohttp import web
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.message import IntentLog
from gazette_aio.serving.http_site import SiteRunner

async def main(directory):
    on_port = EmbeddedBroker(f"{directory}/port")
    on_socket = EmbeddedBroker(f"{directory}/socket", http_port=None, socket=f"{directory}/s")
    log = IntentLog(f"{directory}/log")
    await log.require_recovered()
    site = await SiteRunner(web.Application()).listen("127.0.0.1", 0)
    async with on_port, on_socket:
        ports = [each.rpartition(":")[2] for each in (on_port.endpoint, on_port.http_endpoint)]
        print(*ports, site, flush=True)
        await asyncio.to_thread(os.read, 0, 1)
        if not os.fork():
            print(os.getpid(), flush=True)
            os.read(0, 1)
            os._exit(0)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""

STOPPED = """
import asyncio, os, socket, stat
from gazette_aio.broker import EmbeddedBroker

async def ended():
    broker = EmbeddedBroker()
    async with broker:
        endpoints = broker.endpoint, broker.http_endpoint
    return broker, [int(each.rpartition(":")[2]) for each in endpoints]

broker, ports = asyncio.run(ended())
others = [socket.create_server(("127.0.0.1", port)) for port in ports]
if not (child := os.fork()):
    os._exit(not all(stat.S_ISSOCK(os.fstat(each.fileno()).st_mode) for each in others))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What a client of HTTP/2 sends first."""


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of gRPC are found by /proc")
def test_a_worker_of_a_killed_owner_keeps_nothing(tmp_path: Path) -> None:
    end, kept = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path],
        stdin=end,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as owner:
        os.close(end)
        assert owner.stdout is not None
        port, http_port, site = map(int, owner.stdout.readline().split())
        client = socket.create_connection(("127.0.0.1", port), timeout=60)
        client.sendall(PREFACE)
        client.recv(1)
        os.write(kept, b".")
        worker = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        try:
            os.kill(worker, 0)
            with client:
                while client.recv(1 << 16):
                    pass
            asyncio.run(succeed(tmp_path, port, http_port, site))
        finally:
            os.close(kept)


async def succeed(path: Path, port: int, http_port: int, site: int) -> None:
    """Use all that the killed owner used."""
    async with (
        EmbeddedBroker(path / "port", port=port, http_port=http_port),
        EmbeddedBroker(path / "socket", http_port=site, socket=path / "s"),
    ):
        log = IntentLog(path / "log")
        await log.require_recovered()
        await log.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of gRPC are found by /proc")
def test_a_child_keeps_what_others_serve_on_the_ports_of_a_stopped_broker() -> None:
    subprocess.run([sys.executable, "-c", STOPPED], check=True, cwd=Path(__file__).parents[2])
