"""Checkpoints of consumers: built of their parts, and taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.protocol.consumer import Checkpoint


def build_checkpoint(
    read_through: Mapping[str, int],
    producer_states: Iterable[ProducerState] = (),
    ack_intents: Mapping[str, bytes] | None = None,
) -> Checkpoint:
    """Return a checkpoint of its parts.

    Args:
        read_through: Offset of the next byte to process, by journal.
        producer_states: States of producers. The journal of a state without an offset has zero.
        ack_intents: Acknowledgements to append after the commit, by journal.
    """
    states = SequencerCheckpoint(dict(read_through), tuple(producer_states))
    return states.to_proto(ack_intents)


def flatten_read_through(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the offset of the next byte to process, by journal."""
    return {journal: source.read_through for journal, source in checkpoint.sources.items()}


def flatten_producer_states(checkpoint: Checkpoint) -> list[ProducerState]:
    """Return the states of producers, in any order."""
    return list(SequencerCheckpoint.from_proto(checkpoint).producers)
