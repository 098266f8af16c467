"""Intake of a shard: the messages that it reads, in the order in which they're consumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.owner import Owner
from gazette_aio.consumer.transactions.explain import explained, explaining
from gazette_aio.message import Envelope, SequencerCheckpoint
from gazette_aio.message.reading.engine import JournalEngine
from gazette_aio.message.sequencing.sequencer import DEFAULT_BUFFER

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.message.envelopes.content import ContentReplay
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


class Arrival(ABC):
    """Messages of one journal that were read, and are handled when it's their turn."""

    def __init__(self, content: Content) -> None:
        self.content = content
        """Content of the journal."""
        self.is_fed: bool = True
        """Whether the first messages were fed to it."""

    @abstractmethod
    def feed(self) -> bool:
        """Feed more of the messages to the content, all of which is handled.

        Returns:
            False if all were fed before: they have left the line.
        """


class Intake(Owner):
    """Base of what reads messages, and decides which of them commit next.

    Args:
        engine: Contents of the journals.
        wake: Called when there's something in line.
    """

    takes_turns = False
    """Whether journals whose messages don't commit yet let others go ahead."""

    def __init__(self, engine: IntakeEngine, wake: Callable[[], object]) -> None:
        self.line: deque[Arrival | Exception | None] = deque()
        """What `advance()` is to handle: messages, a failure of reading, or None for its end."""
        self.ready: Envelopes = []
        """Decoded messages of one journal to consume next."""
        self.is_replaying: bool = False
        """Whether the messages after the ready ones have to be read again, by `read_again()`."""
        self.has_ended: bool = False
        """Whether reading has ended, and all that was read is handled."""
        self.has_read: bool = True
        """Whether a MessageProducer has read any message, or the framework reads."""
        self._engine = engine
        self._wake = wake
        self._current: Content | None = None  # The ready messages are of it.
        self._handled: set[Content] = set()  # Since the last checkpoint.
        self._passed: dict[Content, int] = {}  # Offsets after messages that no later one reports.
        self._refused: dict[str, int] = {}  # Offsets after consumed bytes that are no message.

    @property
    def has_pending(self) -> bool:
        """Whether messages are pending that were handled since the last checkpoint."""
        return any(content.core.has_pending for content in self._handled)

    @abstractmethod
    def start(self) -> None:
        """Begin to read."""

    def _put(self, arrived: Arrival | Exception | None) -> None:
        self.line.append(arrived)
        self._wake()

    def advance(self) -> tuple[str, int] | None:
        """Handle some of what is first in line. All ready messages were consumed.

        Returns:
            A journal, and the offset after messages that no later one reports: duplicates, and what
            was rolled back. Or None.

        Raises:
            TransactionError: Reading has failed.
        """
        first = self.line[0]
        if first is None:
            self.has_ended = True
            return None
        if isinstance(first, Exception):
            raise first
        self._current = content = first.content
        self._handled.add(content)
        if not first.is_fed:
            first.feed()
        try:
            has_worked = self._engine.work(content)
            self.ready = content.take() or []
        except Exception as error:
            reading = f"reading {content.journal} at offset {content.offset}"
            raise explained("reading again" if content.replay else reading, error) from error
        if not (self.ready or has_worked):
            self.is_replaying = content.replay is not None
            if not (self.is_replaying or first.feed()):
                self.line.popleft()
        elif self.takes_turns and not self.ready and content.is_drained:
            self.line.rotate(-1)
        passed = content.core.passed
        if passed <= self._passed.get(content, content.begun):
            return None
        self._passed[content] = passed
        return content.journal, passed

    async def read_again(self) -> None:
        """Read some of the content of a commit again.

        Raises:
            TransactionError: It can't be read, or has changed.

        Cancellation: aborts — the intake must be closed.
        """
        content = self._current
        assert content is not None, "the commit is of a journal"
        replay = content.replay
        assert replay is not None, "the commit needs a replay"
        with explaining("reading again"):
            if not await self._feed_again(content, replay):
                replay.end()
        self.is_replaying = False

    @abstractmethod
    async def _feed_again(self, content: Content, replay: ContentReplay) -> bool:
        """Feed some of the content of a replay, and return whether there was any.

        Cancellation: aborts.
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
