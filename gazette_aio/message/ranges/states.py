"""States of a journal's producers at an offset."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from gazette_aio.message.core.rules import ProducerBounds, stale_below
from gazette_aio.message.sequencing.checkpoint import as_nanoseconds
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from datetime import timedelta

_logger = logging.getLogger(__name__)

_PRODUCER_DIGITS, _CLOCK_DIGITS = 12, 16


@dataclass(frozen=True, slots=True)
class RangeState:
    """States of the producers of one journal at an offset: a pure function of the bytes before.

    Args:
        offset: Offset after the last message that counts.
        producers: State of each producer, by its ID as a big-endian number.
    """

    offset: int = 0
    producers: dict[int, ProducerBounds] = field(default_factory=dict[int, ProducerBounds])

    def to_json(self) -> dict[str, Any]:
        """Return this state as JSON: equal states give equal texts.

        It's `{"offset": N, "producers": {ID: [last_ack] or [last_ack, begin, max]}}` with
        hexadecimal IDs and clocks: about 35 bytes per producer, or 70 with pending messages.
        """
        producers: dict[str, list[Any]] = {}
        for producer, (low, high, begin) in sorted(self.producers.items()):
            pending = [begin, f"{high:x}"] if begin != -1 else []
            producers[f"{producer:012x}"] = [f"{low:x}", *pending]
        return {"offset": self.offset, "producers": producers}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the state of which `to_json()` returned `value`.

        Raises:
            ValidationError: The value isn't such JSON.
        """
        try:
            top = cast("dict[str, Any]", value)
            offset = top["offset"]
            if not is_offset(offset):
                raise ValueError("the offset is out of bounds")
            found: dict[int, ProducerBounds] = {}
            for name, entry in top["producers"].items():
                found[parse_producer(name)] = _parse_bounds(entry, offset)
            return cls(offset, found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValidationError(f"not a state of producers: {error!r}") from error


def parse_producer(name: str) -> int:
    """Return the producer whose twelve hexadecimal digits are `name`.

    Raises:
        ValueError: The name isn't of that form.
    """
    producer = int(name, 16) if len(name) == _PRODUCER_DIGITS else -1
    if producer < 0 or f"{producer:012x}" != name:
        raise ValueError("invalid producer ID")
    return producer


def is_offset(value: object, begin: int = 0, end: int = 1 << 63) -> bool:
    """Return whether `value` is an offset of a journal in `[begin, end)`."""
    return type(value) is int and begin <= value < end


def _parse_bounds(entry: object, offset: int) -> ProducerBounds:
    match entry:
        case [str(low)]:
            begin, high = -1, low
        case [str(low), int(begin), str(high)] if is_offset(begin, 0, offset):
            pass
        case _:
            raise ValueError("invalid state of a producer")
    bounds = ProducerBounds(_parse_clock(low), _parse_clock(high), begin)
    if bounds.min > bounds.max:
        raise ValueError("a producer's clocks are out of order")
    return bounds


def _parse_clock(text: str) -> int:
    clock = int(text, 16) if len(text) <= _CLOCK_DIGITS else -1
    if clock < 0 or f"{clock:x}" != text:
        raise ValueError("clock isn't a hexadecimal number")
    return clock


def prune(state: RangeState, horizon: timedelta | int) -> RangeState:
    """Return the state without producers that are done, and have been silent for long.

    A message of a forgotten producer is taken for its first one: a duplicate of a delivered message
    is delivered again. Producers with pending messages are never forgotten.

    Args:
        state: The state.
        horizon: Forget producers whose last acknowledgement is older than the newest one by this:
            nanoseconds, or a timedelta. Zero forgets none.
    """
    horizon_ns = as_nanoseconds(horizon)
    newest = max((bounds.min for bounds in state.producers.values()), default=0)
    bound = stale_below(newest, horizon_ns) if horizon_ns > 0 else 0
    kept = {
        producer: bounds
        for producer, bounds in state.producers.items()
        if bounds.begin != -1 or bounds.min >= bound
    }
    if len(kept) < len(state.producers):
        _logger.debug("producers are pruned", extra={"pruned": len(state.producers) - len(kept)})
    return RangeState(state.offset, kept)
