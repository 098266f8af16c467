"""Variable-length integers of the protobuf wire format."""

from __future__ import annotations

from gazette_aio.protocol.errors import ValidationError

MAX_VARINT_BYTES = 10
"""Length of the longest varint, which has 64 bits."""

_MORE = 0x80


def encode_varint(value: int) -> bytes:
    """Return the varint of a number of 0 or more."""
    if value < _MORE:
        return bytes((value,))
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & 0x7F | _MORE)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_varint(
    data: bytes | memoryview, position: int, max_bytes: int = MAX_VARINT_BYTES
) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    Args:
        data: Bytes that contain the number.
        position: Index of the number's first byte.
        max_bytes: Length of the longest number to accept.

    Raises:
        ValidationError: The number is cut off, or too long.
    """
    value = shift = 0
    for byte in data[position : position + max_bytes]:
        position += 1
        if byte < _MORE:
            return value | byte << shift, position
        value |= (byte & 0x7F) << shift
        shift += 7
    raise ValidationError("varint is truncated")
