"""Snappy's framed format."""

from __future__ import annotations

from typing import Final

from gazette_aio.protocol.codecs.bounded import Decompressor
from gazette_aio.protocol.errors import FragmentError

_STREAM: Final = b"\xff\x06\x00\x00sNaPpY"
_HEADER: Final = 4
_BLOCK: Final = 64 << 10
# Greatest sizes of compressed and plain chunks: a block with its possible growth, and a checksum.
_MAX_CHUNK: Final = {0: 32 + _BLOCK + _BLOCK // 6 + 4, 1: _BLOCK + 4}


class SnappyCompressor:
    """Compresses in blocks of 64 KiB."""

    def __init__(self) -> None:
        import cramjam  # noqa: PLC0415

        self._compress = cramjam.snappy.compress
        self._buffer = bytearray()
        self._started = False

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        """Compress content, and return the compressed bytes so far, possibly none."""
        self._buffer += data
        whole = len(self._buffer) - len(self._buffer) % _BLOCK
        return self._emit(whole) if whole else b""

    def finish(self) -> bytes:
        """End the stream, and return the remaining compressed bytes."""
        return self._emit(len(self._buffer))

    def _emit(self, size: int) -> bytes:
        block = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        framed = bytes(self._compress(block)) if block else _STREAM
        begin = len(_STREAM) if self._started else 0
        self._started = True
        return framed[begin:]


class SnappyDecompressor(Decompressor):
    """Decodes the framed format, whose chunks of data expand to at most 64 KiB.

    This class splits chunks; the library decodes them in groups, and verifies their checksums.

    Source: https://github.com/google/snappy/blob/main/framing_format.txt
    """

    def __init__(self) -> None:
        import cramjam  # noqa: PLC0415

        super().__init__()
        self._cramjam = cramjam
        self._started = False

    def _has_step(self) -> bool:
        size = len(self._input)
        return size >= _HEADER and size >= self._chunk_size()

    def _chunk_size(self) -> int:
        """Return the number of bytes which a step needs for the next chunk."""
        header = self._input.peek(_HEADER)
        kind, length = header[0], int.from_bytes(header[1:4], "little")
        if kind == 0xFF:
            return len(_STREAM)
        if kind in _MAX_CHUNK and 4 <= length <= _MAX_CHUNK[kind]:
            return _HEADER + length
        # The chunk is skipped as it arrives, or refused.
        return _HEADER

    def _step(self, max_bytes: int) -> bytes:
        size = self._chunk_size()
        chunk = self._input.take(size)
        kind = chunk[0]
        if kind == 0xFF:
            if chunk != _STREAM:
                raise FragmentError("corrupt Snappy content: invalid stream identifier")
            self._started = True
            return b""
        if not self._started:
            raise FragmentError("corrupt Snappy content: no stream identifier")
        if kind >= 0x80:
            self._to_skip = int.from_bytes(chunk[1:4], "little")
            return b""
        if size == _HEADER:
            raise FragmentError(
                f"corrupt Snappy content: chunk of type {kind:#04x} "
                f"and {int.from_bytes(chunk[1:4], 'little')} bytes"
            )
        return self._decode(chunk, (max_bytes - 1) // _BLOCK)

    def _decode(self, chunk: bytes, more: int) -> bytes:
        """Decode a chunk of data, and up to `more` whole chunks which follow."""
        chunks = [_STREAM, chunk]
        while more > 0 and len(self._input) >= _HEADER:
            size = self._chunk_size()
            if self._input.peek(1)[0] not in _MAX_CHUNK or size == _HEADER:
                break
            if len(self._input) < size:
                break
            chunks.append(self._input.take(size))
            more -= 1
        try:
            return bytes(self._cramjam.snappy.decompress(b"".join(chunks)))
        except self._cramjam.DecompressionError as error:
            raise FragmentError(f"corrupt Snappy content: {error}") from None

    def _at_end(self) -> bool:
        return self._started
