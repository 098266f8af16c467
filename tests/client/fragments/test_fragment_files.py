"""Fragments below a file root."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import threading
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    FragmentSource,
    connect,
    install_file_transport,
    open_fragment,
    open_fragment_url,
)
from gazette_aio.client.fragments import stream as fragment_stream
from gazette_aio.client.fragments.file_transport import FileBody, FileTransport
from gazette_aio.client.fragments.stream import FragmentStream
from tests.cancellation import cancel_at_every_await
from tests.client.fragments.fragment_support import (
    CODECS,
    fragment_of,
    open_files,
    read_all,
    read_until_error,
    stored,
)
from tests.waiting import eventually, turns

CODEC = pb.CompressionCodec
TEXT = b"XXXXXhello, world!!!"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file root, beside which there are files that nobody is to see."""
    root = tmp_path / "root"
    (root / "a" / "journal").mkdir(parents=True)
    (root / "a" / "journal" / "f").write_bytes(TEXT)
    (tmp_path / "secret").write_bytes(TEXT)
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "secret").write_bytes(TEXT)
    return root


async def read(root: Path, url: str, offset: int = 100) -> bytes:
    source = FragmentSource(file_root=root)
    return await read_all(await source.open(fragment_of(TEXT), offset, url))


@pytest.mark.parametrize("codec", CODECS)
async def test_codecs(root: Path, codec: int) -> None:
    fragment = fragment_of(TEXT, codec)
    path = pb.content_path(fragment)
    (root / path).write_bytes(stored(TEXT, codec, members=2))
    before = open_files()
    with install_file_transport(root):
        url = f"file:///{path}"
        assert await read_all(await open_fragment_url(fragment, 100, url, verify=True)) == TEXT
        assert await read_all(await open_fragment_url(fragment, 105, url)) == TEXT[5:]
        assert await read_all(await open_fragment_url(fragment, 120, url)) == b""
        fragment.end = 121
        got, error = await read_until_error(await open_fragment_url(fragment, 105 - 5, url))
        assert (got, type(error)) == (TEXT, pb.UnexpectedEOFError)
        fragment.end = 117
        got, error = await read_until_error(await open_fragment_url(fragment, 100, url))
        assert type(error) is pb.DidNotReadExpectedEOFError
        assert got in (b"", TEXT[:10]), "the last member is withheld"
    assert open_files() <= before


async def test_large_files(root: Path) -> None:
    content = os.urandom(5_000_000)
    (root / "f").write_bytes(content)
    fragment = fragment_of(content)
    source = FragmentSource(file_root=root)
    async with await source.open(fragment, 100, "file:///f", verify=True) as reader:
        assert len(await reader.read()) == 1 << 20
        # The next slices are read while we do something else.
        await eventually(lambda: reader.waiting_bytes == 2 << 20)
        await reader.seek(4_000_000)
        assert await read_all(reader) == content[3_999_900:]
    fragment.end += 1
    with pytest.raises(pb.UnexpectedEOFError):
        await source.open(fragment, fragment.end - 1, "file:///f")


async def test_paths(root: Path) -> None:
    (root / "a b").write_bytes(TEXT)
    (root / "link").symlink_to("a/journal")
    (root.parent / "mounted").symlink_to(root)
    for url in (
        "file:///a/journal/f",
        "file://localhost/a/journal/f",
        "file:////a//journal/./f?query",
        "file:///%61/journal%2Ff",
        "file:///a/x/../journal/f",
        "file:///%2fa/journal/f",
        "file:///a%20b",
        "file:///link/f",
    ):
        assert await read(root, url) == TEXT, url
        assert await read(root.parent / "mounted", url, 105) == TEXT[5:], url


@pytest.mark.parametrize(
    "url",
    [
        "file:///../secret",
        "file:///%2e%2e/secret",
        "file:///%2E%2E%2Fsecret",
        "file:///..%2fsecret",
        "file:///a/../../secret",
        "file:///a/%2e%2e/%2e%2e/root-2/secret",
        "file:///a/journal/f%00",
        "file://host/a/journal/f",
        "file:a/journal/f",
    ],
)
async def test_paths_out_of_the_root(root: Path, url: str) -> None:
    with pytest.raises(pb.ConfigurationError) as caught:
        await read(root, url)
    assert not caught.value.retryable


async def test_absolute_paths_are_relative_to_the_root(root: Path) -> None:
    secret = root.parent / "secret"
    for url in (f"file://{secret}", f"file:///%2f{secret}", f"file:////{secret}"):
        with pytest.raises(pb.TransportError, match="404 Not Found"):
            await read(root, url)


@pytest.mark.parametrize("target", ["../secret", "{parent}/secret", "../root-2/secret"])
async def test_links_out_of_the_root(root: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(parent=root.parent))
    with pytest.raises(pb.ConfigurationError, match="leads out of the file root"):
        await read(root, "file:///link")
    (root / "up").symlink_to("..")
    with pytest.raises(pb.ConfigurationError, match="leads out of the file root"):
        await read(root, "file:///up/secret")


async def test_links_which_appear_late(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Race: a directory becomes a link out of the root after the path was checked."""
    real, done = os.open, False

    def swap(*args: object, **kwargs: object) -> int:
        nonlocal done
        if not done:
            done = True
            (root / "a" / "journal").rename(root / "moved")
            (root / "a" / "journal").symlink_to(root.parent / "outside")
        return real(*args, **kwargs)  # type: ignore[arg-type]

    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "f").write_bytes(TEXT)
    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(pb.TransportError, match="404 Not Found"):
        await read(root, "file:///a/journal/f")
    assert done


async def test_what_is_not_a_file(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    (root / "closed").write_bytes(TEXT)
    before = open_files()
    for path in ("missing", "a", "", "pipe", "loop", "a/journal/f/g", "x" * 300):
        with pytest.raises(pb.TransportError) as caught:
            await read(root, f"file:///{path}")
        assert f'!OK fetching (404 Not Found, "file:///{path}")' in str(caught.value)
        assert caught.value.retryable
    assert open_files() <= before
    if os.geteuid():
        (root / "closed").chmod(0)
        with pytest.raises(pb.TransportError, match="403 Forbidden"):
            await read(root, "file:///closed")
    with pytest.raises(pb.TransportError, match="404 Not Found"):
        await read(root / "missing", "file:///a/journal/f")


async def test_a_failing_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(
            pb.TransportError, match='fetching "file:///a/journal/f": Input/output'
        ) as caught:
            await read(root, "file:///a/journal/f")
        assert caught.value.retryable
    source = FragmentSource(file_root=root)
    with monkeypatch.context() as patch:
        patch.setattr("gazette_aio.client.fragments.file_transport.FileBody.read_blocking", fail)
        with pytest.raises(pb.TransportError, match='reading "file:///a/journal/f": Input/output'):
            await read_all(await source.open(fragment_of(TEXT), 100, "file:///a/journal/f"))


async def test_which_root_holds(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[Path] = []
    for name in ("first", "second", "own"):
        roots.append(tmp_path / name)
        roots[-1].mkdir()
        (roots[-1] / "f").write_bytes(name.encode().ljust(20))
    first, second, own = roots

    async def which(source: FragmentSource | None = None) -> bytes:
        if source is not None:
            return (await read_all(await source.open(fragment_of(TEXT), 100, "file:///f"))).strip()
        return (
            await read_all(await open_fragment_url(fragment_of(TEXT), 100, "file:///f"))
        ).strip()

    with pytest.raises(pb.ConfigurationError, match='no transport for "file:///f"'):
        await which()
    source = FragmentSource()
    with pytest.raises(pb.ConfigurationError, match="install_file_transport"):
        await which(source)

    remove_first = install_file_transport(first)
    with install_file_transport(str(second)) as installed:
        assert await which(source) == await which() == b"second"
        assert repr(installed) == f"<InstalledFileTransport of {second}, installed>"
    assert repr(installed) == f"<InstalledFileTransport of {second}, removed>"
    assert await which() == b"first"
    # What was installed before holds again, in whatever order they're removed.
    remove_second = install_file_transport(second)
    remove_first()
    remove_first()
    assert await which() == b"second"

    monkeypatch.setenv("BROKER_FILE_ROOT", str(own))
    async with connect("http://127.0.0.1:1") as client:
        assert await which(client.fragments) == b"second"
        remove_second()
        assert await which(client.fragments) == b"own"
    with install_file_transport(second):
        async with connect("http://127.0.0.1:1", file_root=own) as client:
            assert await which(client.fragments) == b"own"
    with pytest.raises(pb.ConfigurationError):
        await open_fragment_url(fragment_of(TEXT), 100, "s3://bucket/f?X-Signature=secret")


async def test_relative_roots(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    transport = install_file_transport("root")
    monkeypatch.chdir("/")
    with transport:
        url = "file:///a/journal/f"
        assert await read_all(await open_fragment_url(fragment_of(TEXT), 100, url)) == TEXT


async def test_a_slice_does_not_wait_for_the_next_and_two_at_most_are_ahead() -> None:
    content = bytes(10 << 20)
    go_on, reads = threading.Event(), 0

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal reads
            reads += 1
            assert reads == 1 or go_on.wait(60)
            return super().read(size)

    async with await open_fragment(Slow(content), fragment_of(content)) as reader:
        try:
            assert len(await reader.read()) == 1 << 20
        finally:
            go_on.set()
        await eventually(lambda: reader.waiting_bytes == 2 << 20)
        await turns(10)
        assert (reads, reader.waiting_bytes) == (3, 2 << 20)
        assert len(await read_all(reader)) == 9 << 20


async def test_the_transport_alone(root: Path) -> None:
    transport = FileTransport(root)
    assert repr(transport) == f"<FileTransport of {root}>"
    body = await transport.open("file:///a/journal/f", {"Range": "bytes=15-"})
    assert (body.status, body.headers["Content-Range"]) == (206, "bytes 15-19/20")
    assert b"".join([chunk async for chunk in body]) == TEXT[15:]
    await body.aclose()
    await body.aclose()
    assert (await transport.open("file:///a/journal/f", {"Range": "bytes=20-"})).status == 416
    await transport.aclose()


async def test_cancellation(root: Path) -> None:
    (root / "f").write_bytes(stored(os.urandom(3 << 20), CODEC.ZSTANDARD))
    source, before = FragmentSource(file_root=root), open_files()
    fragment = fragment_of(b"", CODEC.ZSTANDARD, end=100 + (3 << 20))

    async def operation() -> None:
        async with await source.open(fragment, 2_000_000, "file:///f") as reader:
            await reader.read(1000)
            await reader.seek(3_000_000)
            assert len(await read_all(reader)) == 100 + (3 << 20) - 3_000_000

    async def check() -> None:
        await eventually(lambda: "0 open" in repr(source))
        assert open_files() <= before

    assert await cancel_at_every_await(operation, check) >= 3
    await source.aclose()


async def test_closing_waits_for_the_threads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "f").write_bytes(bytes(50 << 20))
    before = open_files()
    source = FragmentSource(file_root=root)
    at_work = 0
    # Threads at work are seen from within only.
    real = FragmentStream._read_file  # pyright: ignore[reportPrivateUsage]

    def counted(self: FragmentStream, body: object) -> bool:
        nonlocal at_work
        at_work += 1
        try:
            return real(self, body)  # type: ignore[arg-type]
        finally:
            at_work -= 1

    monkeypatch.setattr(FragmentStream, "_read_file", counted)
    readers = [
        await source.open(fragment_of(b"", end=100 + (50 << 20)), 100, "file:///f")
        for _ in range(5)
    ]
    await asyncio.gather(*(reader.read() for reader in readers))
    await source.aclose()
    assert at_work == 0
    assert open_files() <= before


async def test_files_that_hang_do_not_hold_up_closing(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def hang(*_: object) -> bytes:
        begun.release()
        end.wait(60)
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(FileBody, "read_blocking", hang)
    monkeypatch.setattr(fragment_stream, "CLOSE_SECONDS", 0.05)
    source = FragmentSource(file_root=root)
    url = "file:///a/journal/f?signature=secret"
    before = open_files()
    readers = [await source.open(fragment_of(TEXT), 100, url) for _ in range(3)]
    try:
        for _ in readers:
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        with caplog.at_level(logging.WARNING):
            await source.aclose()
            await source.aclose()
            for reader in readers:
                await reader.aclose()
        assert not end.is_set()
    finally:
        end.set()
    [record] = caplog.records
    assert "closing 3 fragment files takes too long" in record.getMessage()
    assert "secret" not in record.getMessage()
    # The files are closed after all.
    await eventually(lambda: repr(source) == "<FragmentSource, closed>" and open_files() <= before)
