"""Streaming compression of fragments.

A compressor takes content in pieces. A decompressor takes compressed bytes in pieces, and returns
at most as many bytes as the caller allows: a small input with a huge output can't exhaust memory.
The time of a call grows with its input: pass slices of up to 1 MiB, and use a worker thread if an
event loop must stay responsive.

    decompressor = decompressor(codec)
    for data in chunks:
        content = decompressor.decompress(data)
        while content:
            ...
            content = decompressor.decompress()
    decompressor.finish()
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol

from gazette_aio.protocol._generated.broker_pb2 import CompressionCodec
from gazette_aio.protocol.codecs.bounded import DEFAULT_MAX_BYTES, Decompressor
from gazette_aio.protocol.codecs.snappy import SnappyCompressor, SnappyDecompressor
from gazette_aio.protocol.codecs.zstandard import (
    DEFAULT_MAX_WINDOW,
    ZstandardCompressor,
    ZstandardDecompressor,
)
from gazette_aio.protocol.errors import FragmentError
from gazette_aio.protocol.fragment import codec_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_GZIP_SLICE: Final = 64 << 10


class Compressor(Protocol):
    """Compresses a stream."""

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        """Compress content, and return the compressed bytes so far, possibly none."""
        ...

    def finish(self) -> bytes:
        """End the stream, and return the remaining compressed bytes."""
        ...


def compressor(codec: int) -> Compressor:
    """Return a new compressor of a codec.

    Raises:
        FragmentError: The codec isn't supported.
    """
    match codec:
        case CompressionCodec.NONE:
            return _IdentityCompressor()
        case CompressionCodec.GZIP | CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return _GzipCompressor()
        case CompressionCodec.ZSTANDARD:
            return ZstandardCompressor()
        case CompressionCodec.SNAPPY:
            return SnappyCompressor()
        case _:
            raise FragmentError(f"unsupported codec {codec_name(codec)}")


def decompressor(
    codec: int, *, content_encoded: bool = False, max_window: int = DEFAULT_MAX_WINDOW
) -> Decompressor:
    """Return a new decompressor of a codec.

    Args:
        codec: The codec.
        content_encoded: Whether the bytes of `GZIP_OFFLOAD_DECOMPRESSION` are still compressed. By
            default the store has decompressed them.
        max_window: Largest accepted window of a Zstandard frame, in bytes.

    Raises:
        FragmentError: The codec isn't supported.
    """
    match codec:
        case CompressionCodec.NONE:
            return _IdentityDecompressor()
        case CompressionCodec.GZIP:
            return _GzipDecompressor()
        case CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return _GzipDecompressor() if content_encoded else _IdentityDecompressor()
        case CompressionCodec.ZSTANDARD:
            return ZstandardDecompressor(max_window)
        case CompressionCodec.SNAPPY:
            return SnappyDecompressor()
        case _:
            raise FragmentError(f"unsupported codec {codec_name(codec)}")


def decompress_all(
    codec: int, data: bytes | bytearray | memoryview, *, content_encoded: bool = False
) -> Iterator[bytes]:
    """Yield the content of a whole compressed stream in pieces of up to 1 MiB.

    Raises:
        FragmentError: The stream is damaged or cut short.
    """
    stream = decompressor(codec, content_encoded=content_encoded)
    content = stream.decompress(data)
    while content:
        yield content
        content = stream.decompress()
    stream.finish()


class _IdentityCompressor:
    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(data)

    def finish(self) -> bytes:
        return b""


class _IdentityDecompressor(Decompressor):
    def decompress(
        self, data: bytes | bytearray | memoryview = b"", *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> bytes:
        if not self._input and len(data) <= max_bytes:
            return bytes(data)
        return super().decompress(data, max_bytes=max_bytes)

    def _has_step(self) -> bool:
        return len(self._input) > 0

    def _step(self, max_bytes: int) -> bytes:
        return self._input.take(max_bytes)

    def _at_end(self) -> bool:
        return True


class _GzipCompressor:
    def __init__(self) -> None:
        self._stream = zlib.compressobj(wbits=_GZIP_WBITS)

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        return self._stream.compress(data)

    def finish(self) -> bytes:
        return self._stream.flush()


class _GzipDecompressor(Decompressor):
    """Decodes one or more concatenated members."""

    def __init__(self) -> None:
        super().__init__()
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self._has_more = False
        self._started = False

    def _has_step(self) -> bool:
        return self._has_more or len(self._input) > 0

    def _step(self, max_bytes: int) -> bytes:
        if self._member.eof:
            self._member = zlib.decompressobj(_GZIP_WBITS)
        self._started = True
        data = self._input.peek(_GZIP_SLICE)
        try:
            content = self._member.decompress(data, max_bytes)
        except zlib.error as error:
            raise FragmentError(f"corrupt gzip content: {error}") from None
        member = self._member
        self._input.skip(
            len(data) - len(member.unused_data if member.eof else member.unconsumed_tail)
        )
        # If the output is full, the decoder may hold more, although it consumed all input.
        self._has_more = len(content) == max_bytes and not self._member.eof
        return content

    def _at_end(self) -> bool:
        return self._started and self._member.eof
