"""State machine of an append stream: the meaning of each message.

    opening --first message--> streaming --content--> streaming
                                   |
                                   +--empty message--> committing --end of stream--> done

A stream commits only if its empty message is followed by its end. Anything else, in particular an
end without an empty message, rolls the append back. After an error a machine stays in error.
"""

from __future__ import annotations

import enum

import gazette_aio.protocol as pb
from gazette_aio.protocol.varint import decode_varint

UNDERFLOW_TEXT = "client stream didn't sustain the minimum append data rate"


class AppendStreamError(Exception):
    """The client broke the rules of the stream. The text is for the client."""


class AppendState(enum.Enum):
    """State of an append stream."""

    OPENING = enum.auto()
    STREAMING = enum.auto()
    COMMITTING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class AppendMachine:
    """Decides on the messages of one append stream, in order."""

    __slots__ = ("content_bytes", "request", "state")

    def __init__(self) -> None:
        self.state: AppendState = AppendState.OPENING
        self.request: pb.AppendRequest = pb.AppendRequest()
        self.content_bytes: int = 0
        """Content received so far."""

    def open(self, request: pb.AppendRequest | None) -> pb.AppendRequest:
        """Take the first message, None if the stream ended without one; return it.

        Raises:
            AppendStreamError: If there's none, or it's invalid.
        """
        assert self.state is AppendState.OPENING
        if request is None:
            raise self._fail("EOF")
        try:
            pb.validate(request)
        except pb.ValidationError as error:
            raise self._fail(str(error)) from None
        self.state = AppendState.STREAMING
        self.request = request
        return request

    def receive_content(self, length: int) -> None:
        """Take a message of `length` bytes of content, and nothing else: zero announces the commit.

        Raises:
            AppendStreamError: If it follows the empty message.
        """
        if self.state is not AppendState.STREAMING:
            raise self._fail("append stream: expected EOF after empty Content chunk")
        if length:
            self.content_bytes += length
        else:
            self.state = AppendState.COMMITTING

    def receive(self, request: pb.AppendRequest) -> bytes:
        """Take a further message; return its content, empty if it announces the commit.

        Raises:
            AppendStreamError: If it isn't allowed here.
        """
        try:
            pb.validate(request)
        except pb.ValidationError as error:
            raise self._fail(f"append stream: {error}") from None
        if request.journal:
            raise self._fail("append stream: expected Content chunk")
        content = request.content
        self.receive_content(len(content))
        return content

    def end(self) -> None:
        """Take the end of the stream; returning means that the append is to commit.

        Raises:
            AppendStreamError: If the append must be rolled back instead.
        """
        if self.state is not AppendState.COMMITTING:
            raise self._fail("append stream: unexpected EOF")
        if not self.content_bytes and (
            self.request.HasField("union_registers") or self.request.HasField("subtract_registers")
        ):
            raise self._fail("append stream: register modification requires non-empty Append")
        self.state = AppendState.DONE

    def underflow(self) -> AppendStreamError:
        """Return the error for a client which sends too slowly."""
        return self._fail(f"append stream: {UNDERFLOW_TEXT}")

    def _fail(self, text: str) -> AppendStreamError:
        self.state = AppendState.FAILED
        return AppendStreamError(text)


def content_of(message: bytes) -> memoryview | None:
    """Return the content of a serialized AppendRequest which holds nothing else, without a copy.

    Returns None for every other message, which is then to be parsed.
    """
    # Wire: field 4, length-delimited, is the tag 0x22.
    size = len(message)
    if size < 3 or message[0] != 0x22:
        return None
    if size < 130:
        return memoryview(message)[2:] if message[1] == size - 2 else None
    try:
        length, begin = decode_varint(message, 1)
    except pb.ValidationError:
        return None
    return memoryview(message)[begin:] if begin + length == size else None
