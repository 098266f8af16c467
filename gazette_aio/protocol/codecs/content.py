"""Decompression and verification of the raw bytes of a fragment file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.broker_pb2 import CompressionCodec
from gazette_aio.protocol.codecs.codec import decompressor
from gazette_aio.protocol.errors import (
    ConfigurationError,
    DidNotReadExpectedEOFError,
    FragmentError,
    UnexpectedEOFError,
)
from gazette_aio.protocol.fragment import sum_from_digest, sum_is_zero

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gazette_aio.protocol._generated.broker_pb2 import Fragment

SLICE_BYTES: Final = 1 << 20
"""Most content that one step returns."""

INPUT_BYTES: Final = 256 << 10
"""Most compressed bytes to feed to one step."""


class FragmentContent:
    """Decompresses a fragment, and checks its length and, if asked to, its sum.

    Feed raw bytes whenever `needs_input`, and call `end()` after the last ones. A step takes
    milliseconds. The last content, of up to `SLICE_BYTES`, is withheld until the end of the raw
    bytes proves the fragment. A caller that receives all content thus receives the right content.
    If only a part is wanted, and no sum is verified, the content ends with the part.

    Args:
        fragment: The fragment.
        begin: Offset of the first byte of the raw bytes.
        codec: Compression of the raw bytes, which may differ from the codec of the fragment.
        verify: Whether to verify the SHA-1 sum of the fragment; `begin` must be its begin.
        part: Bounds of the content to return; by default from `begin` to the fragment's end.

    Raises:
        ConfigurationError: The codec isn't supported.
        FragmentError: The fragment has no sum.
    """

    def __init__(
        self,
        fragment: Fragment,
        begin: int,
        codec: int,
        *,
        verify: bool,
        part: tuple[int, int] | None = None,
    ) -> None:
        assert not verify or begin == fragment.begin, "a part has no sum"
        self._begin, self._end = part or (begin, fragment.end)
        self.position: int = begin
        """Offset of the next byte to be returned, or to be passed over before the part."""
        self.has_ended: bool = False
        """Whether all content was returned."""
        self._fragment = fragment
        self._withheld = b""
        self._left = fragment.end - begin
        self._digest = hashlib.sha1(usedforsecurity=False) if verify else None
        if verify and self._left and sum_is_zero(fragment.sum):
            self._refuse("no sum to verify")
        try:
            self._decompressor = decompressor(codec)
        except FragmentError as error:
            raise ConfigurationError(f"{error.text} of {fragment.journal}") from None
        is_compressed = codec not in (
            CompressionCodec.NONE,
            CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
        )
        self.is_plain: bool = not is_compressed and not verify
        """Whether steps return their input, and thus cost nothing."""
        self.input_bytes = INPUT_BYTES if is_compressed else SLICE_BYTES
        """Most raw bytes to feed to one step."""

    @property
    def needs_input(self) -> bool:
        """Whether a step without input would return nothing."""
        return self._decompressor.needs_input

    def read_from(self, read: Callable[[int], bytes]) -> bytes:
        """Do a step with bytes of a file if it needs any, or end the content at the file's end.

        Args:
            read: Returns up to so many bytes of the file, and none at its end.

        Raises:
            ReadError: The file doesn't hold the fragment, as from `step()` and `end()`.
        """
        if not self.needs_input:
            return self.step()
        data = read(self.input_bytes)
        return self.step(data) if data else self.end()

    def step(self, data: bytes | memoryview = b"") -> bytes:
        """Take raw bytes, and return up to `SLICE_BYTES` of content, or nothing.

        Raises:
            FragmentError: The file is damaged.
            DidNotReadExpectedEOFError: The file holds more than the fragment.
        """
        # Invariant: damage and excess are raised after everything before them was returned, but for
        # what is withheld.
        left = self._left
        try:
            content = self._decompressor.decompress(data, max_bytes=min(left, SLICE_BYTES) or 1)
        except FragmentError as error:
            self._refuse(error.text)
        if not content:
            return b""
        if not left:
            raise DidNotReadExpectedEOFError(
                "did not read EOF at expected Fragment.End",
                journal=self._fragment.journal,
                offset=self.position,
            )
        if self._digest is not None:
            self._digest.update(content)
        self._left = left - len(content)
        at, reached = self._fragment.end - left, self._fragment.end - self._left
        if at < self._begin or reached > self._end:
            content = content[max(self._begin - at, 0) : max(self._end - at, 0)]
        if reached >= self._end and (self._digest is not None or not self._left):
            self._withheld += content
            self.position = reached if self._left else at
            return b""
        self.position = reached
        self.has_ended = reached >= self._end
        return content

    def end(self) -> bytes:
        """End the content, and return the withheld rest.

        Raises:
            FragmentError: The file is damaged.
            DidNotReadExpectedEOFError: The file holds more than the fragment.
            UnexpectedEOFError: The raw bytes were cut short, or hold less than the fragment.
        """
        self.step()  # Raises damage found after the last content.
        try:
            self._decompressor.finish()
        except FragmentError:
            is_cut = True
        else:
            is_cut = self._left > 0
        if is_cut:
            raise cut_short(self._fragment.journal, self.position)
        rest, self._withheld = self._withheld, b""
        digest = self._digest
        if digest is not None and rest and sum_from_digest(digest.digest()) != self._fragment.sum:
            self._refuse(f"wrong SHA-1 sum {digest.hexdigest()}")
        self.position = self._fragment.end
        self.has_ended = True
        return rest

    def _refuse(self, text: str) -> NoReturn:
        fragment, at = self._fragment, self.position
        raise FragmentError(
            f"{text} (fragment [{fragment.begin}, {fragment.end}) of {fragment.journal} at {at})",
            journal=fragment.journal,
            offset=at,
        ) from None


def cut_short(journal: str, offset: int) -> UnexpectedEOFError:
    """Return the error of content that ends at `offset`, before its fragment does."""
    error = UnexpectedEOFError("unexpected EOF", journal=journal, offset=offset)
    # The file may be whole: some connections end in the same way when they fail.
    error.retryable = True
    return error
