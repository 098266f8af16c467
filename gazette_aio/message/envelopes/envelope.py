"""Envelope of a message: its place in a journal, and its UUID."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, cast
from uuid import UUID  # noqa: TC003 - of a Struct's field.

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.message.envelopes.origin import Origin  # noqa: TC001 - of a field.
from gazette_aio.message.uuid import Flags, ProducerID, build_uuid
from gazette_aio.protocol.journal import strip_meta

T = TypeVar("T")


class Envelope(msgspec.Struct, Generic[T], eq=False, gc=False):
    """A message, the parts of its UUID, and the range of the journal that holds it.

    The message of an acknowledgement (`flags == ACK_TXN`) is decoded from its frame, or None where
    the message type can't be decoded from an acknowledgement.
    """

    # A msgspec Struct and not a dataclass: it's created once per message read, in C. The garbage
    # collector needn't look at it: a message has no reference to its envelope.

    journal: str
    """Name of the journal, with its `;meta` suffix if it was read by one."""
    begin: int
    """Offset of the first byte of the frame."""
    end: int
    """Offset after the last byte of the frame, framing included."""
    clock: int
    """Clock of the UUID: unsigned 64 bits."""
    flags: Flags
    """Flags of the UUID."""
    producer: ProducerID
    """Producer of the UUID."""
    message: T
    """The decoded message."""
    origin: Origin | None = None
    """The journal that the envelope was read from; None if it wasn't made by an iterator."""
    explicit_uuid: UUID | None = None
    """The UUID, if it isn't the version 1 UUID of clock, flags and producer."""

    @property
    def uuid(self) -> UUID:
        """UUID of the message."""
        explicit = self.explicit_uuid
        if explicit is not None:
            return explicit
        return build_uuid(self.producer, self.clock, self.flags)

    @property
    def spec(self) -> pb.JournalSpec:
        """Specification of the journal, as the iterator last knew it. It must not be modified.

        If the envelope wasn't made by an iterator, the specification has only the name.
        """
        origin = self.origin
        return pb.JournalSpec(name=strip_meta(self.journal)) if origin is None else origin.spec

    @property
    def labels(self) -> pb.LabelSet:
        """Labels of the journal's specification. They must not be modified."""
        return self.spec.labels

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Envelope):
            return NotImplemented
        theirs = cast("Envelope[Any]", other)  # type: ignore[redundant-cast]
        return (
            self.begin == theirs.begin
            and self.end == theirs.end
            and self.journal == theirs.journal
            and self.uuid == theirs.uuid
            and bool(self.message == theirs.message)
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Envelope({self.journal!r} [{self.begin}, {self.end}) {self.uuid} {self.flags!r} "
            f"{self.message!r})"
        )
