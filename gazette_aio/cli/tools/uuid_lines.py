"""Lines with UUIDs attached, by a template."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.message.framing import NDJSONFraming
from gazette_aio.message.uuid import OUTSIDE_TXN, build_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_aio.message.uuid import Clock

_ACTION: Final = re.compile(rb"\{\{[ \t]*\.(Line|UUID)[ \t]*\}\}")


class LineStamper:
    """Attaches UUIDs of committed messages to lines.

    Args:
        template: Output of each line: text with `{{.UUID}}` and `{{.Line}}`.
        producer: ID of the producer, of 6 bytes.
        clock: Clock of the producer, which ticks for each line.
        max_length: Bytes from which a line is too long.
        skip_header: Whether the first line of each input is left out.

    Raises:
        ValidationError: The template has another action.
    """

    def __init__(
        self,
        template: str,
        producer: bytes,
        clock: Clock,
        *,
        max_length: int,
        skip_header: bool = False,
    ) -> None:
        self._render = renderer(template)
        self._producer = producer
        self._clock = clock
        self._max_length = max_length
        self._skip_header = skip_header
        self.restart()

    def restart(self) -> None:
        """Begin the next input."""
        # A decoder counts the newline.
        self._decoder = NDJSONFraming().decoder(max_frame_bytes=self._max_length)
        self._skips_line = self._skip_header

    def feed(self, chunk: bytes) -> bytes:
        """Process the next bytes, and return the output of the lines that they complete.

        Raises:
            FrameTooLargeError: A line is too long.
        """
        self._decoder.feed(chunk)
        output = b"".join(self._lines())
        if self._decoder.buffered >= self._max_length:
            raise _too_long(self._max_length)
        return output

    def end(self) -> bytes:
        """Take the end of an input, and return the output of a last line without a newline."""
        if self._decoder.buffered:
            self._decoder.feed(b"\n")
        return b"".join(self._lines())

    def _lines(self) -> Iterator[bytes]:
        while (frame := self._decoder.next_frame()) is not None:
            yield self._stamped(frame.payload)

    def _stamped(self, line: bytes) -> bytes:
        if self._skips_line:
            self._skips_line = False
            return b""
        uuid = build_uuid(self._producer, self._clock.tick(), OUTSIDE_TXN)
        return self._render(line.removesuffix(b"\r"), str(uuid).encode())


def _too_long(limit: int) -> pb.FrameTooLargeError:
    return pb.FrameTooLargeError(f"line is longer than {limit} bytes", begin=0, end=limit)


def renderer(template: str) -> Callable[[bytes, bytes], bytes]:
    """Return a function of a line and a UUID, which returns their output.

    Raises:
        ValidationError: The template has another action than `{{.Line}}` and `{{.UUID}}`.
    """
    parts = _ACTION.split(template.encode("utf-8", "surrogateescape"))
    texts, names = parts[::2], parts[1::2]
    for text in texts:
        _, opening, action = text.decode("utf-8", "replace").partition("{{")
        if opening:
            raise pb.ValidationError(
                f"unsupported {opening + action!r}: a template has {{{{.UUID}}}} and {{{{.Line}}}}"
            )

    def render(line: bytes, uuid: bytes) -> bytes:
        values = {b"Line": line, b"UUID": uuid}
        filled = [texts[0]]
        for name, text in zip(names, texts[1:], strict=True):
            filled += (values[name], text)
        return b"".join(filled)

    return render
