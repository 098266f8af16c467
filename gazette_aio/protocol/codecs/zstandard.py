"""Zstandard streams."""

from __future__ import annotations

from typing import Any, Final

from gazette_aio.protocol.codecs.bounded import Decompressor
from gazette_aio.protocol.errors import FragmentError

DEFAULT_MAX_WINDOW: Final = 32 << 20
"""Default limit of the window of a frame, in bytes."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAGIC_SKIPPABLE: Final = b"\x2a\x4d\x18"
_BLOCK_HEADER: Final = 3
_CHECKSUM_SIZE: Final = 4
_MAX_BLOCK: Final = 128 << 10


class ZstandardCompressor:
    """Compresses into one frame with a checksum."""

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415

        self._stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        """Compress content, and return the compressed bytes so far, possibly none."""
        return self._stream.compress(data)

    def finish(self) -> bytes:
        """End the stream, and return the remaining compressed bytes."""
        return self._stream.flush()


class ZstandardDecompressor(Decompressor):
    """Decodes one or more frames, as many blocks at a time as fit the output's limit.

    A block expands to at most 128 KiB. Content of blocks decoded together with a damaged block is
    lost.

    Source: RFC 8878, section 3.1.
    """

    def __init__(self, max_window: int) -> None:
        import zstandard  # noqa: PLC0415

        super().__init__()
        self._zstandard = zstandard
        self._max_window = max_window
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=max_window)
        self._frame: Any = None
        self._has_checksum = False
        self._ended = False
        self._started = False

    def _has_step(self) -> bool:
        size = len(self._input)
        if self._frame is None:
            return size >= 4 and size >= self._header_size()
        if self._ended:
            return size >= _CHECKSUM_SIZE
        return size >= _BLOCK_HEADER and size >= self._block(0)[0]

    def _step(self, max_bytes: int) -> bytes:
        if self._frame is None:
            return self._begin_frame()
        if self._ended:
            return self._feed(_CHECKSUM_SIZE, ends_frame=True)
        size, last = self._block(0)
        # Hot: a call per block would take longer than decoding the block.
        for _ in range(1, max_bytes // _MAX_BLOCK):
            if last or size + _BLOCK_HEADER > len(self._input):
                break
            more, ends = self._block(size)
            if size + more > len(self._input):
                break
            size, last = size + more, ends
        self._ended = last
        return self._feed(size, ends_frame=last and not self._has_checksum)

    def _header_size(self) -> int:
        head = self._input.peek(5)
        if head[:4] != _MAGIC:
            # A skippable frame, or garbage.
            return 8
        return self._zstandard.frame_header_size(head) if len(head) == 5 else 5

    def _begin_frame(self) -> bytes:
        header = self._input.peek(self._header_size())
        self._started = True
        if header[:4] != _MAGIC:
            if header[1:4] != _MAGIC_SKIPPABLE or header[0] >> 4 != 5:
                raise FragmentError("corrupt Zstandard content: no frame begins here")
            self._to_skip = int.from_bytes(header[4:8], "little")
            self._input.skip(8)
            return b""
        try:
            frame = self._zstandard.get_frame_parameters(header)
        except self._zstandard.ZstdError as error:
            raise FragmentError(f"corrupt Zstandard content: {error}") from None
        if frame.window_size > self._max_window:
            raise FragmentError(
                f"Zstandard window of {frame.window_size} bytes exceeds the limit of "
                f"{self._max_window}"
            )
        self._has_checksum = frame.has_checksum
        self._ended = False
        self._frame = self._decompressor.decompressobj()
        return self._feed(len(header), ends_frame=False)

    def _block(self, at: int) -> tuple[int, bool]:
        """Return the size of the block at offset `at` of the input, and whether it's the last."""
        header = int.from_bytes(self._input.peek(_BLOCK_HEADER, at), "little")
        kind, size = header >> 1 & 3, header >> 3
        if kind == 3 or size > _MAX_BLOCK:
            # The size can't be known, thus the step must fail now.
            return _BLOCK_HEADER, True
        return _BLOCK_HEADER + (1 if kind == 1 else size), bool(header & 1)

    def _feed(self, size: int, *, ends_frame: bool) -> bytes:
        try:
            content: bytes = self._frame.decompress(self._input.take(size))
        except self._zstandard.ZstdError as error:
            raise FragmentError(f"corrupt Zstandard content: {error}") from None
        if ends_frame:
            self._frame = None
        return content

    def _at_end(self) -> bool:
        return self._started and self._frame is None
