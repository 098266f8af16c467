"""A client of HTTP/2 which does what no library would: frames are written as they're told."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE = 0, 1, 3, 4, 8
END_STREAM, END_HEADERS = 1, 4
LONGEST_FRAME = 1 << 14


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    head = len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)
    return head + payload


def grpc_message(message: Message) -> bytes:
    """Return a message as gRPC frames it, uncompressed."""
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


def _literal(name: bytes, value: bytes) -> bytes:
    # Wire: a field which isn't indexed, with strings of less than 127 plain bytes.
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def request_headers(path: bytes) -> bytes:
    """Return the block of headers which opens an RPC."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path,
        b":authority": b"broker",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    return b"".join(_literal(name, value) for name, value in fields.items())


class RawConnection:
    """A connection whose responses are never read, other than by `drain`.

    Args:
        reader: Its reader.
        writer: Its writer.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next = 1

    async def begin(self) -> None:
        """Open the connection, with windows which hold back nothing."""
        huge = (1 << 31) - 1
        settings = struct.pack(">HI", 4, huge)  # The window of each stream.
        grow = frame(WINDOW_UPDATE, 0, 0, (huge - 65535).to_bytes(4))
        await self.send(PREFACE, frame(SETTINGS, 0, 0, settings), grow)

    async def send(self, *data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(b"".join(data))
        await self._writer.drain()

    def opening(self, method: str, *messages: Message, end: bool = True) -> tuple[int, bytes]:
        """Return the number of a new stream, and the frames of its request."""
        stream, self._next = self._next, self._next + 2
        headers = request_headers(f"/protocol.Journal/{method}".encode())
        frames = [frame(HEADERS, END_HEADERS, stream, headers)]
        data = b"".join(map(grpc_message, messages))
        starts = range(0, len(data), LONGEST_FRAME)
        frames += [frame(DATA, 0, stream, data[at : at + LONGEST_FRAME]) for at in starts]
        if end:
            frames.append(frame(DATA, END_STREAM, stream))
        return stream, b"".join(frames)

    async def open(self, method: str, *messages: Message, end: bool = True) -> int:
        """Begin an RPC; return the number of its stream."""
        stream, data = self.opening(method, *messages, end=end)
        await self.send(data)
        return stream


@asynccontextmanager
async def connected(endpoint: str) -> AsyncIterator[RawConnection]:
    """Yield a connection which has sent nothing. It's cut in the end."""
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    # Nothing is read ahead: what isn't read stays with the operating system, and the server.
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
