"""Intake of a shard: the messages that it reads, in the order in which they're consumed."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.owner import Owner
from gazette_aio.consumer.transactions.explain import explained
from gazette_aio.message import Envelope, SequencerCheckpoint
from gazette_aio.message.reading.engine import JournalEngine
from gazette_aio.message.sequencing.sequencer import DEFAULT_BUFFER

if TYPE_CHECKING:
    from gazette_aio.message.envelopes.outputs import JournalOutputs
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

    Envelopes = list[Envelope[Any]]
    Content = JournalOutputs[Envelopes]

PRUNE_HORIZON: Final = timedelta(hours=24)
"""Age at which a checkpoint forgets producers."""

_STEP_BYTES: Final = 64 << 10


class IntakeEngine(JournalEngine["Envelopes"]):
    """Base of the contents of the journals of a shard, and their states."""

    def __init__(self, spec: ShardSpec, checkpoint: Checkpoint) -> None:
        super().__init__(
            SequencerCheckpoint.from_proto(checkpoint),
            {},
            step_bytes=_STEP_BYTES,
            max_pending_rows=spec.ring_buffer_size or DEFAULT_BUFFER,
        )


class Intake(Owner):
    """Base of what reads messages, and decides which of them commit next.

    Args:
        engine: Contents of the journals.
    """

    def __init__(self, engine: IntakeEngine) -> None:
        self.ready: Envelopes = []
        """Decoded messages of one journal to consume next."""
        self.is_replaying: bool = False
        """Whether the messages after the ready ones have to be read again, by `read_again()`."""
        self.has_ended: bool = False
        """Whether reading has ended, and all that was read is handled."""
        self.has_read: bool = True
        """Whether a MessageProducer has read any message, or the framework reads."""
        self._engine = engine
        self._current: Content | None = None  # The ready messages are of it.
        self._handled: set[Content] = set()  # Since the last checkpoint.
        self._passed: dict[Content, int] = {}  # Offsets after messages that no later one reports.
        self._refused: dict[str, int] = {}  # Offsets after consumed bytes that are no message.

    @property
    @abstractmethod
    def has_input(self) -> bool:
        """Whether `advance()` has something to handle."""

    @property
    def has_pending(self) -> bool:
        """Whether messages are pending that were handled since the last checkpoint."""
        return any(content.core.has_pending for content in self._handled)

    @abstractmethod
    def start(self) -> None:
        """Begin to read."""

    @abstractmethod
    def advance(self) -> tuple[str, int] | None:
        """Handle some of the input. All ready messages were consumed.

        Returns:
            A journal, and the offset after messages that no later one reports: duplicates, and what
            was rolled back. Or None.

        Raises:
            TransactionError: Reading has failed.
        """

    def _work(self, content: Content) -> bool:
        """Handle some of the content of a journal.

        Returns:
            Whether there may be more of it at hand, or ready, or to be read again.
        """
        self._handled.add(content)
        try:
            has_worked = self._engine.work(content)
            self.ready = content.take() or []
        except Exception as error:
            reading = f"reading {content.journal} at offset {content.offset}"
            raise explained("reading again" if content.replay else reading, error) from error
        self._current = content
        if self.ready or has_worked:
            return True
        self.is_replaying = content.replay is not None
        return self.is_replaying

    def _passed_over(self, content: Content) -> tuple[str, int] | None:
        """Return what `advance()` has passed over."""
        passed = content.core.passed
        if passed <= self._passed.get(content, content.begun):
            return None
        self._passed[content] = passed
        return content.journal, passed

    @abstractmethod
    async def read_again(self) -> None:
        """Read some content again.

        Raises:
            TransactionError: It can't be read, or has changed.

        Cancellation: aborts — the intake must be closed.
        """

    def consumed(self, count: int) -> None:
        """Note that the first ready messages were consumed."""
        ready, content = self.ready, self._current
        assert content is not None, "messages were ready"
        if content.batch is None and count:
            self._refused[content.journal] = ready[0].end
        content.settle(content.stop - len(ready) + count)
        del ready[:count]
        if not ready:
            self.ready = content.take() or []

    def checkpoint(self) -> SequencerCheckpoint:
        """Return the checkpoint of the messages consumed so far."""
        self._handled.clear()
        checkpoint = self._engine.checkpoint(PRUNE_HORIZON)
        offsets = checkpoint.offsets
        for journal, end in self._refused.items():
            offsets[journal] = max(offsets.get(journal, 0), end)
        return checkpoint

    @abstractmethod
    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — reading ends anyway.
        """
