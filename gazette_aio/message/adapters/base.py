"""Protocols of adapters, which convert between messages of users and their encoded bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

import gazette_aio.protocol as pb
from gazette_aio.message.uuid import RAW_LENGTH, TEXT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Adapter(Protocol[T]):
    """Decodes, encodes and stamps messages of one type.

    Bytes are those of the message alone, without its framing. Adapters never modify a message.
    """

    def decode(self, frame: bytes, /) -> T:
        """Decode a message. Any exception is taken as a decode error."""
        ...

    def encode(self, message: T, uuid: UUID) -> bytes:
        """Return the bytes of `message`, stamped with `uuid`."""
        ...

    def uuid(self, message: T) -> UUID:
        """Return the UUID of `message`, or the zero UUID if it has none."""
        ...

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return the bytes of an acknowledgement, stamped with `uuid`."""
        ...


def require_adapter(adapter: object, expected: str) -> None:
    """Check that an object is an Adapter.

    Raises:
        TypeError: It isn't `expected`, such as "an Adapter of a/journal".
    """
    if isinstance(adapter, type) or not isinstance(adapter, Adapter):
        raise TypeError(f"adapter: expected {expected}, not {adapter!r}")


AdapterBySpec = Callable[[pb.JournalSpec], Adapter[T]]
"""Returns the adapter of a journal's messages, given the specification of the journal."""


@runtime_checkable
class TypedAdapter(Protocol):
    """An adapter whose messages are of known classes. Publishers refuse other messages."""

    message_types: tuple[type, ...] | None
    """Classes of messages; None if they aren't known."""


@runtime_checkable
class FrameUUIDAdapter(Protocol):
    """An adapter that reads the UUID of a message from its bytes, without decoding the rest.

    Its messages are decoded after they commit, and never if they don't.
    """

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a message from its bytes."""
        ...


class SplitMessages(NamedTuple):
    """Encoded messages, split at the places of their UUIDs: `head, UUID, between, rest`."""

    heads: bytes | list[bytes]
    """Bytes before the UUID: one for all messages, or one for each."""
    between: bytes
    """Bytes after the UUID, the same for all messages."""
    rests: list[bytes]
    """Bytes after `between`, of each message."""


class Lines(NamedTuple):
    """Encoded messages on a line each: JSON objects with members, without their UUIDs.

    A stamped message is `head, UUID, between` and its line without the first byte.
    """

    head: bytes
    """Bytes before each UUID."""
    between: bytes
    """Bytes after each UUID."""
    lines: bytes
    """All lines, each with its newline."""
    rows: int
    """Number of messages."""

    def split(self) -> SplitMessages:
        """Return the same messages one by one."""
        rests = [line[1:] for line in self.lines.split(b"\n")]
        rests.pop()
        return SplitMessages(self.head, self.between, rests)


@runtime_checkable
class SplittingAdapter(Protocol[T_contra]):
    """An adapter that encodes many messages at once, before their UUIDs are known."""

    uuid_is_text: bool
    """Whether UUIDs are text, or else 16 bytes."""

    def split(self, messages: Sequence[T_contra]) -> SplitMessages:
        """Return encoded messages, without their UUIDs.

        With a UUID in its place, each equals the result of `encode()`. Any exception is taken as
        an error of one of the messages.
        """
        ...


class UUIDPlace(NamedTuple):
    """The usual place of UUIDs in messages: after a constant prefix."""

    prefix: bytes
    suffix: bytes
    """Bytes after the UUID; may be empty."""
    text: bool
    """Whether the UUID is text, or else 16 bytes."""

    @property
    def uuid_end(self) -> int:
        """Length of the prefix and the UUID."""
        return len(self.prefix) + (TEXT_LENGTH if self.text else RAW_LENGTH)


@runtime_checkable
class PlacedAdapter(Protocol):
    """An adapter whose encoded messages usually have their UUID at a constant place."""

    uuid_place: UUIDPlace | None
