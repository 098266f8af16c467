"""Records of an input, each with the key before it if the input has keys."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.message.framing import Framing


class Record(NamedTuple):
    """A record with its framing, and its key."""

    key: bytes
    content: bytes


class RecordSplitter:
    """Splits an input into records.

    Args:
        framing: Framing of records, and of keys.
        keyed: Whether a key stands before each record.
        base64_keys: Whether keys are base64.
    """

    def __init__(self, framing: Framing, *, keyed: bool, base64_keys: bool = False) -> None:
        self._framing = framing
        self._decoder = framing.decoder()
        self._keyed = keyed
        self._base64_keys = base64_keys
        self._key: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[Record]:
        """Take the next bytes, and yield the records that they complete.

        Raises:
            FramingError: The input isn't of the framing.
            ValidationError: A key isn't base64.
        """
        self._decoder.feed(chunk)
        while (frame := self._decoder.next_frame()) is not None:
            if self._keyed and self._key is None:
                self._key = self._decoded(frame.payload)
                continue
            key, self._key = self._key or b"", None
            yield Record(key, self._framing.encode(frame.payload))

    def end(self) -> None:
        """Take the end of the input.

        Raises:
            UnexpectedEOFError: The input ends within a record, or after a key.
        """
        self._decoder.end()
        self._decoder.next_frame()
        if self._key is not None:
            raise pb.UnexpectedEOFError("unexpected EOF: a key without its record")

    def _decoded(self, payload: bytes) -> bytes:
        if not self._framing.is_lines:
            return payload
        key = payload.rstrip(b"\r\n")
        if not self._base64_keys:
            return key
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error as error:
            raise pb.ValidationError(f"key isn't base64: {error}") from None
