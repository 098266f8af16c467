"""Routes: the journals which a Publisher publishes to, and what it has pending there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, SplitMessages, StampingAdapter
from gazette_aio.message.framing import FixedFraming, Framing, framing_by_content_type
from gazette_aio.message.stamping import Ticks, stamp
from gazette_aio.message.uuid import CONTINUE_TXN, OUTSIDE_TXN, Flags, ProducerID, build_uuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client import AsyncAppend
    from gazette_aio.client.append_service import ClearedError
    from gazette_aio.message.mapping import Target

T = TypeVar("T")


class Route(Generic[T]):
    """A journal which is published to, by its content type.

    Args:
        target: The journal and its content type.
        adapter: Encodes messages.
        producer: ID to stamp messages with.

    Raises:
        UnrecognizedContentTypeError: There's no framing of the content type.
    """

    __slots__ = (
        "cleared_error",
        "encode_continue",
        "encode_outside",
        "first_clock",
        "frame",
        "framing_is_trusted",
        "journal",
        "last",
        "pending",
        "producer",
        "settled_clock",
        "suffix",
        "target",
        "uuid_is_text",
    )

    def __init__(self, target: Target, adapter: Adapter[T], producer: ProducerID) -> None:
        self.target = target
        self.journal, content_type = target
        framing = framing_by_content_type(content_type)
        self.producer = producer
        self.frame = framing.encode
        self.suffix: bytes = getattr(framing, "suffix", b"")
        """All that framing adds to a message, or empty if it's something else."""
        self.framing_is_trusted = bool(self.suffix) or type(framing) is FixedFraming
        """Whether framing a message never fails."""
        self.encode_continue = _encoder(adapter, framing, producer, CONTINUE_TXN)
        self.encode_outside = _encoder(adapter, framing, producer, OUTSIDE_TXN)
        self.uuid_is_text: bool = getattr(adapter, "uuid_is_text", True)
        self.pending = False
        """Whether there are uncommitted messages without an acknowledgement."""
        self.first_clock = 0
        """Clock of the first of them."""
        self.cleared_error: ClearedError | None = None
        """Latest error of the journal which was cleared before the first of them."""
        self.last: AsyncAppend | None = None
        """Append of the last of them."""
        self.settled_clock: int | None = None
        """Clock of the last acknowledgement or committed message, by the present producer."""

    def encode(self, message: T, clock: int, flags: Flags) -> bytes:
        """Return the stamped frame of a message, with either of the flags of messages."""
        encode = self.encode_outside if flags == OUTSIDE_TXN else self.encode_continue
        return encode(message, clock)

    def stamp(
        self, messages: SplitMessages | list[T], first: int, step: int, flags: Flags
    ) -> bytes:
        """Return the stamped frames of messages, whose clocks are `step` apart from `first` on."""
        if isinstance(messages, SplitMessages):
            ticks = Ticks(self.producer, flags, first, step, len(messages.rests))
            frame = None if self.suffix else self.frame
            return stamp(messages, ticks, text=self.uuid_is_text, suffix=self.suffix, frame=frame)
        return b"".join(
            [self.encode(message, first + n * step, flags) for n, message in enumerate(messages)]
        )


def _encoder(
    adapter: Adapter[T], framing: Framing, producer: ProducerID, flags: Flags
) -> Callable[[T, int], bytes]:
    """Return a function of a message and a clock, which returns the stamped frame."""
    frame = framing.encode
    if not isinstance(adapter, StampingAdapter):

        def encode(message: T, clock: int) -> bytes:
            return frame(adapter.encode(message, build_uuid(producer, clock, flags)))

        return encode
    stamping = cast("StampingAdapter[T]", adapter)
    suffix: bytes = getattr(framing, "suffix", b"")
    if suffix:
        return stamping.encoder(producer, flags, suffix)
    encode_stamped = stamping.encoder(producer, flags)

    def stamp_and_frame(message: T, clock: int) -> bytes:
        return frame(encode_stamped(message, clock))

    return stamp_and_frame
