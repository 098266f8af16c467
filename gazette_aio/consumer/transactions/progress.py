"""Cell of a shard's progress, and a signal for those who wait for it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gazette_aio.aio.signal import Signal
from gazette_aio.consumer.application.shard import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.protocol.consumer import Checkpoint


class ProgressCell:
    """Progress of a shard as of the last transaction that is fully acknowledged.

    Args:
        sources: Journals that the shard reads. Each starts at offset zero.
    """

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self.changed: Signal = Signal()
        """Set after each change of `progress`."""
        self._read_through: dict[str, int] = dict.fromkeys(sources, 0)
        self._publish_at: dict[str, int] = {}
        self._progress: Progress | None = None

    @property
    def progress(self) -> Progress:
        """Present progress. It isn't modified by later changes."""
        if self._progress is None:
            self._progress = Progress(
                MappingProxyType(self._read_through.copy()),
                MappingProxyType(self._publish_at.copy()),
            )
        return self._progress

    def restore(self, checkpoint: Checkpoint) -> None:
        """Adopt the offsets of a checkpoint that was restored."""
        self.update({name: source.read_through for name, source in checkpoint.sources.items()})

    def update(
        self, read_through: Mapping[str, int], publish_at: Mapping[str, int] | None = None
    ) -> None:
        """Adopt offsets by journal, and wake those who wait.

        Args:
            read_through: Offsets that sources were read through.
            publish_at: Ends of acknowledgements.
        """
        self._read_through.update(read_through)
        self._publish_at.update(publish_at or {})
        self._progress = None
        self.changed.set()

    def covers(self, offsets: Mapping[str, int]) -> bool:
        """Return whether each journal was read through its offset in `offsets`."""
        known = self._read_through
        return all(known.get(journal, 0) >= offset for journal, offset in offsets.items())
