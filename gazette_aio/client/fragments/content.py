"""Decompression and verification of the raw bytes of a fragment file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client.fragments.request import cut_short

if TYPE_CHECKING:
    from typing import NoReturn

SLICE_BYTES: Final = 1 << 20
"""Most content that one step returns."""

INPUT_BYTES: Final = 256 << 10
"""Most compressed bytes to feed to one step."""


class FragmentContent:
    """Decompresses a fragment, and checks its length and, if asked to, its sum.

    Feed raw bytes whenever `needs_input`, and call `end()` after the last ones. A step takes
    milliseconds.

    Args:
        fragment: The fragment.
        begin: Offset of the first byte of content.
        codec: Compression of the raw bytes, which may differ from the codec of the fragment.
        verify: Whether to verify the SHA-1 sum of the fragment; `begin` must be its begin. The
            last step is withheld until the sum is verified.

    Raises:
        ConfigurationError: The codec isn't supported.
        FragmentError: The fragment has no sum.
    """

    def __init__(self, fragment: pb.Fragment, begin: int, codec: int, *, verify: bool) -> None:
        assert not verify or begin == fragment.begin, "a part has no sum"
        self.position = begin
        """Offset of the next byte to be returned."""
        self._fragment = fragment
        self._digest = hashlib.sha1(usedforsecurity=False) if verify else None
        if verify and fragment.begin < fragment.end and pb.sum_is_zero(fragment.sum):
            self._refuse("no sum to verify")
        try:
            self._decompressor = pb.decompressor(codec)
        except pb.FragmentError as error:
            raise pb.ConfigurationError(f"{error.text} of {fragment.journal}") from None
        is_compressed = codec not in (
            pb.CompressionCodec.NONE,
            pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
        )
        self.is_plain = not is_compressed and not verify
        """Whether steps return their input, and thus cost nothing."""
        self.input_bytes = INPUT_BYTES if is_compressed else SLICE_BYTES
        """Most raw bytes to feed to one step."""

    @property
    def needs_input(self) -> bool:
        """Whether a step without input would return nothing."""
        return self._decompressor.needs_input

    def step(self, data: bytes | memoryview = b"") -> bytes:
        """Take raw bytes, and return up to `SLICE_BYTES` of content, or nothing.

        Raises:
            FragmentError: The file is damaged.
            DidNotReadExpectedEOFError: The file holds more than the fragment.
        """
        # Invariant: damage and excess are raised after everything before them was returned.
        left = self._fragment.end - self.position
        try:
            content = self._decompressor.decompress(data, max_bytes=min(left, SLICE_BYTES) or 1)
        except pb.FragmentError as error:
            self._refuse(error.text)
        if not content:
            return b""
        if not left:
            raise pb.DidNotReadExpectedEOFError(
                "did not read EOF at expected Fragment.End",
                journal=self._fragment.journal,
                offset=self.position,
            )
        if self._digest is not None:
            self._digest.update(content)
            if len(content) == left and pb.sum_from_digest(self._digest.digest()) != (
                self._fragment.sum
            ):
                self._refuse(f"wrong SHA-1 sum {self._digest.hexdigest()}")
        self.position += len(content)
        return content

    def end(self) -> None:
        """End the content, after all of it was returned.

        Raises:
            FragmentError: The file is damaged.
            UnexpectedEOFError: The raw bytes were cut short, or hold less than the fragment.
        """
        self.step()  # Raises damage found after the last content.
        try:
            self._decompressor.finish()
        except pb.FragmentError:
            is_cut = True
        else:
            is_cut = self.position < self._fragment.end
        if is_cut:
            raise cut_short(self._fragment.journal, self.position)

    def _refuse(self, text: str) -> NoReturn:
        fragment, at = self._fragment, self.position
        raise pb.FragmentError(
            f"{text} (fragment [{fragment.begin}, {fragment.end}) of {fragment.journal} at {at})",
            journal=fragment.journal,
            offset=at,
        ) from None
