"""Brokers on Unix sockets, and the files of these."""

from __future__ import annotations

# ruff: noqa: ASYNC240 - Files are looked at by their paths.
import asyncio
import base64
import fcntl
import os
import socket
import stat
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.serving.unix_socket import UnixSocket
from gazette_aio.testing import BrokerProcess, create_journals
from tests.broker.caller import journal_spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sock"


async def works(broker: EmbeddedBroker) -> None:
    async with connect(broker.endpoint) as client:
        await client.list()


def leave_behind(path: Path) -> None:
    """Make a socket's file which nobody listens on."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()


async def test_a_broker_on_a_socket(tmp_path: Path, path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "data", socket=path, fsync="off") as broker:
        assert broker.endpoint == f"unix://127.0.0.1{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with connect(broker.endpoint) as client:
            await create_journals(client, journal_spec())
            await client.append("test/journal", b"content")
            async with client.read("test/journal", end_offset=7) as reader:
                assert [chunk async for chunk in reader] == [b"content"]
            (journal,) = (await client.list()).journals
            assert journal.route.endpoints == [broker.endpoint]
        # The gateway keeps its port.
        assert broker.http_endpoint.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{broker.http_endpoint}/test/journal") as response:
                assert await response.read() == b"content"
    assert not path.exists()


async def test_names_which_are_not_plain(tmp_path: Path) -> None:
    for name in ("with blanks", "ümlaut", "a:b+c&d"):
        path = tmp_path / name
        async with EmbeddedBroker(tmp_path / "data", socket=str(path), fsync="off") as broker:
            assert path.is_socket()
            await works(broker)


async def test_tokens_are_checked_on_sockets_too(tmp_path: Path, path: Path) -> None:
    keys = base64.b64encode(b"secret").decode()
    async with EmbeddedBroker(
        tmp_path / "data", socket=path, auth_keys=keys, fsync="off"
    ) as broker:
        async with connect(broker.endpoint, auth=pb.NoopAuth()) as client:
            with pytest.raises(pb.TransportError, match="UNAUTHENTICATED"):
                await client.list()
        async with connect(broker.endpoint, auth=pb.KeyedAuth(keys)) as client:
            await client.list()


async def test_permissions(tmp_path: Path, path: Path) -> None:
    async with EmbeddedBroker(
        tmp_path / "data", socket=path, socket_mode=0o666, http_port=None, fsync="off"
    ) as broker:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        await works(broker)


async def test_a_stale_file_is_replaced(tmp_path: Path, path: Path) -> None:
    leave_behind(path)
    async with EmbeddedBroker(tmp_path / "data", socket=path, fsync="off") as broker:
        await works(broker)
        assert path.is_socket()
    assert not path.exists()


async def test_a_socket_in_use_stays(tmp_path: Path, path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "data", socket=path, fsync="off") as broker:
        file = path.stat().st_ino
        other = EmbeddedBroker(tmp_path / "other", socket=path, fsync="off")
        with pytest.raises(pb.ConfigurationError, match=f"{path}: another server listens on it"):
            await other.start()
        assert path.stat().st_ino == file
        await works(broker)


async def test_a_queue_which_is_full_is_in_use(tmp_path: Path, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(os.fspath(path))
            with pytest.raises(pb.ConfigurationError, match="another server listens"):
                await EmbeddedBroker(tmp_path / "data", socket=path).start()
    assert path.is_socket()


async def test_what_is_no_socket_stays(tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link.sock"
    leave_behind(path)
    link.symlink_to(path)
    file = tmp_path / "file"
    file.write_text("content")
    for taken in (link, file, tmp_path):
        with pytest.raises(pb.ConfigurationError, match="isn't a socket"):
            await EmbeddedBroker(tmp_path / "data", socket=taken).start()
    assert link.is_symlink()
    assert path.is_socket()
    assert file.read_text() == "content"


async def test_a_directory_which_is_missing(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "broker.sock"
    with pytest.raises(pb.ConfigurationError, match=f"{missing}: No such file or directory"):
        await EmbeddedBroker(tmp_path / "data", socket=missing).start()


async def test_a_failed_start_leaves_no_file(tmp_path: Path, path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = EmbeddedBroker(tmp_path / "data", socket=path, http_port=port, fsync="off")
        with pytest.raises(pb.ConfigurationError, match=str(port)):
            await broker.start()
    assert not path.exists()


async def test_one_broker_after_the_other(tmp_path: Path, path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "data", socket=path, http_port=None, fsync="off")
    for _ in range(5):
        await broker.start()
        await works(broker)
        await broker.stop()


async def test_of_many_who_find_a_stale_file_one_gets_it(path: Path) -> None:
    leave_behind(path)
    listening: list[socket.socket] = []

    def listen() -> None:
        server = socket.socket(socket.AF_UNIX)
        listening.append(server)
        server.bind(os.fspath(path))
        server.listen()

    sockets = [UnixSocket(path, 0o600) for _ in range(8)]
    try:
        done = await asyncio.gather(
            *(each.bind(listen) for each in sockets), return_exceptions=True
        )
        assert len(listening) == 1
        assert [type(each) for each in done if each is not None] == [pb.ConfigurationError] * 7
    finally:
        for each in listening:
            each.close()
    for each in sockets:
        each.remove()
        each.remove()
    assert not path.exists()


async def test_binding_waits_for_its_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    turns: list[float] = []

    async def pause(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            os.close(lock)

    monkeypatch.setattr("gazette_aio.serving.unix_socket.asyncio.sleep", pause)
    with socket.socket(socket.AF_UNIX) as server:
        await UnixSocket(path, 0o600).bind(lambda: server.bind(os.fspath(path)))
    assert len(turns) == 3


async def test_the_file_of_another_is_not_removed(path: Path) -> None:
    first = UnixSocket(path, 0o600)
    await first.bind(lambda: leave_behind(path))
    kept = path.with_name("kept")
    path.rename(kept)
    leave_behind(path)
    first.remove()
    assert path.is_socket()


def test_paths_are_checked(tmp_path: Path) -> None:
    for wrong, problem in (
        ("relative.sock", "must be an absolute path"),
        ("/tmp/a%20b", "can't be part of a URL"),
        ("/tmp/a?b", "can't be part of a URL"),
        ("/tmp/a#b", "can't be part of a URL"),
        ("/tmp/a,b", "can't be part of a URL"),
        ("/tmp/a\nb", "can't be part of a URL"),
        (f"/tmp/{'x' * 120}", "longer than"),
    ):
        with pytest.raises(pb.ConfigurationError, match=problem):
            EmbeddedBroker(socket=wrong)


@pytest.mark.slow
async def test_a_process_which_was_killed(tmp_path: Path, path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", options=[f"--port=unix://{path}"])
    await process.start()
    await process.kill()
    assert path.is_socket()
    await process.start()
    assert process.endpoint == f"unix://127.0.0.1{path}"
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
    await process.stop()
    assert not path.exists()
