"""Checkpoints of a Sequencer: offsets to resume from, and states of producers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Self

import msgspec

from gazette_aio.message.core.rules import ProducerBounds
from gazette_aio.message.uuid import ProducerID
from gazette_aio.protocol._generated.consumer_pb2 import Checkpoint
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.message.core.rules import Bounds

_logger = logging.getLogger(__name__)

_VERSION: Final = 1
_Int64 = Annotated[str, msgspec.Meta(pattern=r"^(-1|0|[1-9][0-9]{0,19})$")]
"""An integer as text: numbers of JSON don't have 64 bits everywhere."""


class _Producer(msgspec.Struct, forbid_unknown_fields=True):
    """Stored form of a ProducerState."""

    journal: str
    producer: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}$")]
    last_ack: _Int64
    begin: _Int64
    max_clock: _Int64 | None = None


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """Stored form of a SequencerCheckpoint."""

    version: int
    offsets: dict[str, _Int64]
    producers: list[_Producer]


class _Version(msgspec.Struct):
    version: int


class ProducerState(NamedTuple):
    """State of one producer of one journal."""

    journal: str
    """Name of the journal, with its `;meta` suffix if it's read by such a name."""
    producer: ProducerID
    """Six bytes."""
    last_ack: int
    """Clock up to which messages are done."""
    begin: int
    """Offset of the first pending message, or -1 if none is pending."""
    max_clock: int | None = None
    """Largest clock among the pending messages, if it's known."""

    @property
    def bounds(self) -> ProducerBounds:
        """The state as bounds; an unknown `max` is `min`."""
        low, begin = self.last_ack, self.begin
        return ProducerBounds(low, low if begin == -1 else max(low, self.max_clock or 0), begin)

    @classmethod
    def of(cls, journal: str, producer: ProducerID, bounds: Bounds) -> Self:
        """Return the state of a producer."""
        low, high, begin = bounds
        return cls(journal, producer, low, begin, high if begin != -1 else None)


@dataclass(frozen=True, slots=True)
class SequencerCheckpoint:
    """Offsets and producer states of one moment, from which a Sequencer resumes exactly.

    Args:
        offsets: Offset through which content was read, by journal.
        producers: States of producers, in any order.
    """

    offsets: dict[str, int] = field(default_factory=dict[str, int])
    producers: tuple[ProducerState, ...] = ()

    def to_json(self) -> str:
        """Return this checkpoint as a JSON object, which `from_json()` returns exactly.

        The text has no line breaks, and is the same for equal checkpoints. Later releases read it.
        """
        offsets = {journal: str(self.offsets[journal]) for journal in sorted(self.offsets)}
        producers = [
            _Producer(
                state.journal,
                state.producer.hex(),
                str(state.last_ack),
                str(state.begin),
                None if state.max_clock is None else str(state.max_clock),
            )
            for state in self.producers
        ]
        return msgspec.json.encode(_Stored(_VERSION, offsets, producers)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> SequencerCheckpoint:
        """Return the checkpoint of a text of `to_json()`.

        Raises:
            ValidationError: The text isn't that of a checkpoint, or is of a later version.
        """
        try:
            version = msgspec.json.decode(text, type=_Version).version
            if version != _VERSION:
                raise ValidationError(f"checkpoint has version {version}, not {_VERSION}")
            stored = msgspec.json.decode(text, type=_Stored)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ValidationError(f"text isn't that of a checkpoint: {error}") from error
        producers = tuple(
            ProducerState(
                state.journal,
                ProducerID(bytes.fromhex(state.producer)),
                int(state.last_ack),
                int(state.begin),
                None if state.max_clock is None else int(state.max_clock),
            )
            for state in stored.producers
        )
        return cls({name: int(offset) for name, offset in stored.offsets.items()}, producers)

    def to_proto(self, ack_intents: Mapping[str, bytes] | None = None) -> Checkpoint:
        """Return this checkpoint in the form that Gazette's consumers store.

        That form lacks the largest pending clocks.

        Args:
            ack_intents: Acknowledgements to write after the checkpoint is stored, by journal.
        """
        proto = Checkpoint()
        for journal, offset in self.offsets.items():
            proto.sources[journal].read_through = offset
        for state in self.producers:
            entry = proto.sources[state.journal].producers.add(id=state.producer)
            entry.state.last_ack = state.last_ack
            entry.state.begin = state.begin
        for journal, intent in (ack_intents or {}).items():
            proto.ack_intents[journal] = intent
        return proto

    @classmethod
    def from_proto(cls, proto: Checkpoint) -> SequencerCheckpoint:
        """Return the checkpoint with the offsets and states of `proto`.

        Producer IDs of other lengths are cut or filled with zeros to six bytes.
        """
        return cls(
            {journal: source.read_through for journal, source in proto.sources.items()},
            tuple(_states(proto)),
        )


def _states(proto: Checkpoint) -> Iterable[ProducerState]:
    for journal, source in proto.sources.items():
        for entry in source.producers:
            producer = ProducerID(entry.id[:6].ljust(6, b"\0"))
            yield ProducerState(journal, producer, entry.state.last_ack, entry.state.begin)


def as_nanoseconds(duration: timedelta | int) -> int:
    """Return a duration, which may be an int of nanoseconds already, as nanoseconds."""
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1000
    return duration


def warn_of_stale(journal: str, producer: bytes, begin: int) -> None:
    """Log that a stale producer with pending messages, if any, is forgotten."""
    if begin != -1:
        extra = {"journal": journal, "producer": producer.hex(), "begin": begin}
        _logger.warning("producer with pending messages is stale", extra=extra)
