"""Adapter of messages as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.adapters.json_types import raw_json_adapter
from gazette_aio.message.uuid import ZERO_UUID
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from gazette_aio.message.adapters.base import Adapter


class RawAdapter:
    """Adapter of bytes. Made by `raw_adapter()`."""

    message_types: tuple[type, ...] | None = (bytes, bytearray)
    """Classes of messages."""

    def __init__(
        self,
        uuid: Callable[[bytes], UUID] | None,
        stamp: Callable[[bytes, UUID], bytes] | None,
        acknowledgement: Callable[[UUID], bytes] | None,
    ) -> None:
        self._uuid = uuid
        self._stamp = stamp
        self._acknowledgement = acknowledgement

    def decode(self, frame: bytes) -> bytes:
        """Return `frame`."""
        return frame

    def encode(self, message: bytes, uuid: UUID) -> bytes:
        """Return `message`, stamped with `uuid` if the adapter has `stamp`."""
        return message if self._stamp is None else self._stamp(message, uuid)

    def uuid(self, message: bytes) -> UUID:
        """Return the UUID of `message`."""
        return ZERO_UUID if self._uuid is None else self._uuid(message)

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a message."""
        return self.uuid(frame)

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return an acknowledgement.

        Raises:
            ValidationError: The adapter has no `acknowledgement`.
        """
        if self._acknowledgement is None:
            raise ValidationError("raw messages have no acknowledgement")
        return self._acknowledgement(uuid)


def raw_adapter(
    uuid: Callable[[bytes], UUID] | str | None = None,
    *,
    stamp: Callable[[bytes, UUID], bytes] | None = None,
    acknowledgement: Callable[[UUID], bytes] | None = None,
) -> Adapter[bytes]:
    """Return an adapter of messages that are bytes.

    Args:
        uuid: Returns the UUID of a message; or names the members on the path to it, if messages
            are JSON documents; or None, if messages have no UUID and opt out of exactly-once.
        stamp: Returns a message stamped with a UUID. By default messages are published unchanged.
        acknowledgement: Returns the acknowledgement of a UUID. Without it, messages can't be
            published in transactions.
    """
    if isinstance(uuid, str):
        return raw_json_adapter(uuid)
    return RawAdapter(uuid, stamp, acknowledgement)
