"""Encoding of recorded operations, and the checksum that chains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

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

# Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
_parse: Callable[[bytes], Any] = RecordedOp.FromString
_extend: Callable[[int, bytes], int] = getattr(google_crc32c, "extend")  # noqa: B009 - untyped.


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


def decode_operation(payload: bytes) -> RecordedOp:
    """Decode the payload of an operation.

    Raises:
        RecoveryError: The payload isn't a sound operation. Among others, a path isn't UTF-8.
    """
    try:
        op = _parse(payload)
    except DecodeError as error:
        raise RecoveryError(f"decoding an operation: {error}") from error
    has = op.HasField
    is_write = has("write")
    if is_write + has("create") + has("link") + has("unlink") + has("property") > 1:
        raise RecoveryError("decoding an operation: it is of more than one kind")
    if is_write and (
        op.write.length < 0 or not 0 <= op.write.offset <= _MAX_INT64 - op.write.length
    ):
        raise RecoveryError(
            "decoding an operation: a write of negative offset or length, or beyond 2^63 - 1"
        )
    return cast("RecordedOp", op)


def decode_write(payload: bytes) -> tuple[Any, Any] | None:
    """Decode the payload of an operation if that's a sound write. Otherwise, return None.

    Returns:
        The operation, and its write.
    """
    try:
        op = _parse(payload)
    except DecodeError:
        return None
    has = op.HasField
    if not has("write") or has("create") or has("link") or has("unlink") or has("property"):
        return None
    write = op.write
    if write.length < 0 or not 0 <= write.offset <= _MAX_INT64 - write.length:
        return None
    return op, write
