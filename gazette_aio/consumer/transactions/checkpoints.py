"""Checkpoints of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_aio.protocol.consumer import Checkpoint


def flatten_read_through(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the offset of the next byte to process, by journal."""
    return {journal: source.read_through for journal, source in checkpoint.sources.items()}
