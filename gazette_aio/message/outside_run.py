"""Runs of messages which commit by themselves, and are dequeued together.

Where no message of a run touches what another one decides, all of them are found committed before
any is processed. What their processing changes is applied as it's declared.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from gazette_aio.message.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelope import Envelope
    from gazette_aio.message.uuid import ProducerID


def collect_outside_run(
    envelopes: Sequence[Envelope[Any]], start: int, producers: dict[ProducerID, Producer]
) -> list[Envelope[Any]]:
    """Return consecutive messages of one journal which are outside of transactions and commit.

    Args:
        envelopes: Messages of one journal.
        start: Index of the first message to look at.
        producers: Producers of the journal. Those with an open span end the run.
    """
    run: list[Envelope[Any]] = []
    floors: dict[ProducerID, int] = {}
    for envelope in islice(envelopes, start, None):
        clock, producer = envelope.clock, envelope.producer
        if envelope.flags != 0 or clock == 0:
            break
        floor = floors.get(producer)
        if floor is None:
            state = producers.get(producer)
            floor = clock - 1
            if state is not None:
                if state.begin != -1:
                    break
                floor = state.min
        if clock <= floor:
            break
        floors[producer] = clock
        run.append(envelope)
    return run


def settle_outside_run(
    processed: Sequence[Envelope[Any]], producers: dict[ProducerID, Producer]
) -> None:
    """Apply to their producers that messages of a run were processed."""
    for envelope in processed:
        state = producers.get(envelope.producer)
        if state is None:
            state = Producer(envelope.journal, envelope.producer, 0)
            producers[envelope.producer] = state
        state.min = state.max = envelope.clock
