"""Decoder of the messages of a Read RPC, most of which hold only content."""

from __future__ import annotations

from typing import Final, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.protocol.varint import decode_varint

_FIELDS: Final = pb.ReadResponse.DESCRIPTOR.fields_by_name
_OFFSET_TAG: Final = _FIELDS["offset"].number << 3
_CONTENT_TAG: Final = _FIELDS["content"].number << 3 | 2
_OFFSET_BYTES: Final = 9  # Of 63 bits.


class ReadContent:
    """A message with only content and its offset."""

    __slots__ = ("content", "offset")

    def __init__(self, offset: int, content: bytes) -> None:
        self.offset: int = offset
        self.content: bytes = content

    def message(self) -> pb.ReadResponse:
        """Return the message that this was decoded from."""
        return pb.ReadResponse(offset=self.offset, content=self.content)


ReadMessage: TypeAlias = pb.ReadResponse | ReadContent


def decode_read_message(data: bytes) -> ReadMessage:
    """Return a message of a Read RPC: metadata, a refusal, or content.

    Raises:
        google.protobuf.message.DecodeError: The data isn't such a message.
    """
    # Hot: protobuf copies content twice, into its own memory and out of it.
    offset = position = 0
    end = len(data)
    try:
        if end and data[0] == _OFFSET_TAG:
            offset, position = decode_varint(data, 1, _OFFSET_BYTES)
        if position < end and data[position] == _CONTENT_TAG:
            length, begin = decode_varint(data, position + 1)
            # Wire: fields may come in any form and order; brokers write them in this one.
            if 0 < length == end - begin:
                return ReadContent(offset, data[begin:])
    except pb.ValidationError:
        pass  # A negative offset, or no message at all.
    return pb.ReadResponse.FromString(data)
