"""Decoder of the messages of envelopes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gazette_aio.message.adapters.base import FrameUUIDAdapter, PlacedAdapter
from gazette_aio.message.envelopes.uniform_run import JoinedRuns, ProducerRun
from gazette_aio.message.uuid import ACK_TXN

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelopes.envelope import Envelope

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_UNDECODABLE = 64
LEAST_AT_ONCE: Final = 32
MOST_AT_ONCE: Final = 128
_AT_ONCE_BYTES: Final = 32 << 10


def number_at_once(first: Envelope[Any]) -> int:
    """Return how many messages to decode at once, if they're about as large as the first.

    They're few so that they're used while a processor's caches have them, and so that the garbage
    collector finds few of their objects alive.
    """
    fitting = _AT_ONCE_BYTES // max(first.end - first.begin, 1)
    return max(LEAST_AT_ONCE, min(fitting, MOST_AT_ONCE))


class EnvelopeDecoder(Generic[T]):
    """Decoder of the messages of envelopes, which leaves out unwanted messages.

    Args:
        adapter: Decodes a message.
        skip_acks: Whether acknowledgements are left out.
        start_clock: Messages with smaller nonzero clocks are left out.
    """

    def __init__(self, adapter: Adapter[T], *, skip_acks: bool, start_clock: int) -> None:
        self.adapter = adapter
        """Decodes a message."""
        self._skip_acks = skip_acks
        self._start_clock = start_clock
        self._is_ahead = not isinstance(adapter, FrameUUIDAdapter)  # By whoever built envelopes.
        self._place = adapter.uuid_place if isinstance(adapter, PlacedAdapter) else None
        self._behind_uuid = 0 if self._place is None else self._place.uuid_end
        # Bytes after the UUID of acknowledgements that can't be decoded.
        self._undecodable: set[bytes] = set()

    def decode(
        self,
        envelopes: Sequence[Envelope[Any]],
        begin: int,
        end: int,
        ready: MutableSequence[Envelope[T]],
    ) -> tuple[int, Exception] | None:
        """Decode messages of `envelopes[begin:end]`, and add the wanted messages to `ready`.

        Returns:
            Index and error of the first message that can't be decoded, where decoding stops; or
            None.
        """
        if isinstance(envelopes, JoinedRuns):
            at = begin
            for part, first, last in envelopes.within(begin, end):
                bad = self.decode(part, first, last, ready)
                if bad is not None:
                    return at + bad[0] - first, bad[1]
                at += last - first
            return None
        start, skip_acks = self._start_clock, self._skip_acks
        if (
            isinstance(envelopes, ProducerRun)
            and not start
            and (skip_acks or not envelopes.has_acks)
        ):
            return envelopes.decode(begin, end, self.adapter.decode, ready.extend)
        run = envelopes[begin:end]
        if start:
            run = [envelope for envelope in run if envelope.clock == 0 or envelope.clock >= start]
        if self._is_ahead:
            ready.extend(env for env in run if not (skip_acks and env.flags == ACK_TXN))
            return None
        decode, add, ack = self.adapter.decode, ready.append, ACK_TXN
        envelope: Envelope[Any] | None = None
        try:
            for envelope in run:
                if envelope.flags == ack:
                    if not skip_acks:
                        envelope.message = self._decode_ack(envelope.message)
                        add(envelope)
                else:
                    envelope.message = decode(envelope.message)
                    add(envelope)
        except Exception as error:  # noqa: BLE001 - returned with its index.
            assert envelope is not None
            rows, at = enumerate(envelopes[begin:end], begin), envelope.begin
            return next(index for index, row in rows if row.begin == at), error
        return None

    def _decode_ack(self, frame: bytes) -> Any:
        place = self._place
        is_placed = place is not None and frame.startswith(place.prefix)
        # Hot: acknowledgements differ only by their UUID, and exceptions are slow.
        rest = frame[self._behind_uuid :]
        if is_placed and rest in self._undecodable:
            return None
        try:
            return self.adapter.decode(frame)
        except Exception as error:  # noqa: BLE001
            # Types with required members can't be decoded from an acknowledgement.
            _logger.debug("acknowledgement isn't a message: %s", error)
            if is_placed and len(self._undecodable) < _UNDECODABLE:
                self._undecodable.add(rest)
            return None
