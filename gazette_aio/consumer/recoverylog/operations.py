"""Encoding of recorded operations, and the checksum that chains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

try:
    import google_crc32c
except ImportError as _error:
    raise ImportError(
        "recovery logs need google-crc32c: pip install 'gazette-aio[consumer]'"
    ) from _error

from gazette_aio.message.framing import FixedFraming
from gazette_aio.protocol.errors import RecoveryError
from gazette_aio.protocol.recoverylog import RecordedOp

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Greatest length of an operation's payload that is read. Greater ones aren't frames."""

_MAX_INT64: Final = (1 << 63) - 1

_parse: Callable[[bytes], Any] = RecordedOp.FromString
_extend: Callable[[int, bytes], int] = getattr(google_crc32c, "extend")  # noqa: B009 - untyped.


class OperationError(RecoveryError):
    """A frame of a log that doesn't hold a sound operation."""


def next_checksum(checksum: int, payload: bytes) -> int:
    """Return the checksum of a history that `payload` extends.

    Args:
        checksum: Checksum of the history before, 0 of an empty one.
        payload: The operation, encoded without its frame's header.

    Source: CRC-32C as of RFC 3720, appendix B.4.
    """
    return _extend(checksum, payload)


def content_checksum(content: bytes) -> int:
    """Return the checksum of the content of a write, as of `RecordedOp.content_checksum`.

    Writes of other implementations have none.
    """
    return _extend(0, content)


def encode_operation(op: RecordedOp) -> tuple[bytes, bytes]:
    """Return the payload of an operation, and the frame around it.

    Raises:
        ValueError: A field is set that only readers of a log set.
    """
    if op.first_offset or op.last_offset or op.log:
        raise ValueError("an operation is recorded without first_offset, last_offset and log")
    payload = op.SerializeToString(deterministic=True)
    return payload, FixedFraming().encode(payload)


# Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
def decode_operation(payload: bytes) -> tuple[Any, Any]:
    """Decode the payload of an operation.

    Returns:
        The operation, and its `write`, which has no length if it's of another kind.

    Raises:
        OperationError: The payload isn't a sound operation. Among others, a path isn't UTF-8.
    """
    try:
        op = _parse(payload)
    except DecodeError as error:
        raise OperationError(f"decoding an operation: {error}") from error
    has = op.HasField
    if has("write") + has("create") + has("link") + has("unlink") + has("property") > 1:
        raise OperationError("decoding an operation: it is of more than one kind")
    # Hot: reading an absent message costs as much as asking for it.
    write = op.write
    if write.length < 0 or not 0 <= write.offset <= _MAX_INT64 - write.length:
        raise OperationError(
            "decoding an operation: a write of negative offset or length, or beyond 2^63 - 1"
        )
    return op, write
