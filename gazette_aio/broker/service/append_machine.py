"""State machine of an append stream: the meaning of each message.

    first message --> streaming --content--> streaming
                          |
                          +--empty message--> committing --end of stream--> done

A stream commits only if its empty message is followed by its end. Anything else, in particular an
end without an empty message, rolls the append back.
"""

from __future__ import annotations

import gazette_aio.protocol as pb
from gazette_aio.protocol.varint import decode_varint
from gazette_aio.serving.calls import parse_request


class AppendStreamError(Exception):
    """The client broke the rules of the stream. The text is for the client."""


class AppendMachine:
    """Decides on the messages of one append stream, in order.

    Args:
        request: First message, which is valid.
    """

    __slots__ = ("_is_committing", "_request", "content_bytes")

    def __init__(self, request: pb.AppendRequest) -> None:
        self.content_bytes: int = 0
        """Content received so far."""
        self._request = request
        self._is_committing = False

    def receive_content(self, length: int) -> None:
        """Process a message with only content, of `length` bytes; zero announces the commit.

        Raises:
            AppendStreamError: The message follows the empty message.
        """
        if self._is_committing:
            raise AppendStreamError("append stream: expected EOF after empty Content chunk")
        self.content_bytes += length
        self._is_committing = not length

    def receive(self, request: pb.AppendRequest) -> bytes:
        """Process a further message; return its content, which is empty if it announces the commit.

        Raises:
            AppendStreamError: The message isn't allowed here.
        """
        try:
            pb.validate(request)
        except pb.ValidationError as error:
            raise AppendStreamError(f"append stream: {error}") from None
        if request.journal:
            raise AppendStreamError("append stream: expected Content chunk")
        content = request.content
        self.receive_content(len(content))
        return content

    def end(self) -> None:
        """Process the end of the stream. If the method returns, the append commits.

        Raises:
            AppendStreamError: The append must be rolled back instead.
        """
        request = self._request
        if not self._is_committing:
            raise AppendStreamError("append stream: unexpected EOF")
        if not self.content_bytes and (
            request.HasField("union_registers") or request.HasField("subtract_registers")
        ):
            raise AppendStreamError(
                "append stream: register modification requires non-empty Append"
            )


def parse_message(message: bytes) -> pb.AppendRequest | bytes | memoryview:
    """Return a further message of a stream, or its content if it has no other fields.

    Raises:
        RpcError: The bytes don't parse.
    """
    if not message:
        return message
    content = content_of(message)
    return parse_request(pb.AppendRequest, message) if content is None else content


def content_of(message: bytes) -> memoryview | None:
    """Return the content of a serialized AppendRequest without other fields, without a copy.

    The result is None for every other message, which must be parsed.
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
