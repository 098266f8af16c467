"""Stores of fragments which tests of reading them directly share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import gazette_aio.protocol as pb
from gazette_aio.client import FragmentReader
from tests.client.support import JOURNAL

URL = "http://store/f?X-Signature=secret"
CODECS = tuple(pb.CompressionCodec.values())[1:]


def stored(data: bytes, codec: int, *, members: int = 1) -> bytes:
    """Return `data` as it's in a store, as so many members, frames or streams."""
    if codec == pb.CompressionCodec.NONE:
        return data
    if codec == pb.CompressionCodec.SNAPPY:
        members = 1
    size = -(-len(data) // members) or 1
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return b"".join(_compressed(part, codec) for part in parts)


def _compressed(data: bytes, codec: int) -> bytes:
    compressor = pb.compressor(codec)
    return compressor.compress(data) + compressor.finish()


def fragment_of(
    data: bytes, codec: int = pb.CompressionCodec.NONE, *, begin: int = 100, end: int | None = None
) -> pb.Fragment:
    return pb.Fragment(
        journal=JOURNAL,
        begin=begin,
        end=begin + len(data) if end is None else end,
        sum=pb.sha1_sum(data),
        compression_codec=pb.CompressionCodec.ValueType(codec),
    )


class FakeBody:
    """Hands out chunks, suspending before each of them."""

    def __init__(
        self,
        chunks: Iterable[bytes | BaseException],
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.reason = ""
        self.headers = headers or {}
        self.chunks = iter(chunks)
        self.taken = 0
        self.closed = 0
        self.after: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        self.gate = asyncio.Event()
        self.gate.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            await asyncio.sleep(0)
            await self.gate.wait()
            if isinstance(chunk, BaseException):
                raise chunk
            self.taken += len(chunk)
            yield chunk
        await self.after()

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class FakeFetcher:
    """A store of one answer after the other, or the same again and again."""

    def __init__(
        self, *bodies: FakeBody | BaseException, make: Callable[[], FakeBody] | None = None
    ):
        self.bodies = list(bodies)
        self.make = make
        self.opened: list[FakeBody] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.closed = 0

    async def open(self, url: str, headers: Mapping[str, str]) -> FakeBody:
        self.requests.append((url, dict(headers)))
        await asyncio.sleep(0)
        body = self.make() if self.make is not None else self.bodies.pop(0)
        if isinstance(body, BaseException):
            raise body
        self.opened.append(body)
        return body

    async def aclose(self) -> None:
        self.closed += 1


async def read_all(reader: FragmentReader) -> bytes:
    async with reader:
        return b"".join([chunk async for chunk in reader])


async def read_until_error(reader: FragmentReader) -> tuple[bytes, BaseException | None]:
    data = bytearray()
    async with reader:
        try:
            async for chunk in reader:
                data += chunk
        except pb.GazetteError as error:
            assert reader.offset == reader.fragment.begin + len(data)
            return bytes(data), error
    return bytes(data), None


def open_files() -> set[tuple[str, str]]:
    """Return all that is open: connections of earlier tests may end at any time."""
    gc.collect(1)
    found: set[tuple[str, str]] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add((entry.name, str(entry.readlink())))
    return found


class RawStore:
    """A web server which says exactly what a test has it say, for each connection anew."""

    def __init__(
        self, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        self._answer = answer
        self.heads: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def url(self, path: str = "/f?X-Signature=secret") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                    await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


def head(status: str = "200 OK", **headers: object) -> bytes:
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
