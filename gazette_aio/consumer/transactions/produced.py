"""Messages that a MessageProducer reads, sequenced one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.consumer.transactions.channel import End, MessageChannel
from gazette_aio.consumer.transactions.explain import explained, failure_of, step
from gazette_aio.consumer.transactions.intake import PRUNE_HORIZON, RETAINED_BYTES
from gazette_aio.message import QueueOutcome, Sequencer, SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import DEFAULT_BUFFER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.message import Envelope
    from gazette_aio.protocol.consumer import Checkpoint

_AT_ONCE: Final = 128
"""Messages that are consumed, or sequenced, at once."""
_REPLAYED_AT_ONCE: Final = 256
_REPLAY_SECONDS: Final = 0.001

_PASSED: Final = {
    QueueOutcome.OUTSIDE_ALREADY_ACKED,
    QueueOutcome.CONTINUE_ALREADY_ACKED,
    QueueOutcome.CONTINUE_TXN_CLOCK_LARGER,
    QueueOutcome.ACK_ROLLBACK,
}


class ProducedIntake(Owner):
    """Intake of a MessageProducer. See `Intake`.

    Args:
        hooks: Hooks of the application.
        shard: The shard.
        store: Its store.
        checkpoint: Checkpoint to read from.
        wake: Called when there's input.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self,
        hooks: Hooks,
        shard: Shard,
        store: Store,
        checkpoint: Checkpoint,
        *,
        wake: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self.ready: list[Envelope[Any]] = []
        self.has_read: bool = False
        """Whether any message was read."""
        self.has_ended: bool = False
        self.is_replaying: bool = False
        self._hooks = hooks
        self._shard = shard
        self._store = store
        self._checkpoint = checkpoint
        self._clock = clock
        self._channel = MessageChannel(wake, messages=shard.spec.read_channel_size)
        self._sequencer = Sequencer.from_checkpoint(
            SequencerCheckpoint.from_proto(checkpoint),
            buffer=shard.spec.ring_buffer_size or DEFAULT_BUFFER,
            buffer_bytes=RETAINED_BYTES,
        )
        self._task = OwnedTask()
        self._run: Iterator[Envelope[Any]] | None = None  # Read, and queued in part.
        self._taken: Sequence[Envelope[Any]] = ()  # Committed, and consumed up to an index.
        self._consumed = 0
        self._replay: AsyncIterator[Envelope[Any]] | None = None

    @property
    def has_input(self) -> bool:
        """Whether `advance()` has something to handle."""
        return self._run is not None or self._channel.is_ready

    @property
    def has_pending(self) -> bool:
        """Whether messages are pending that were handled since the last checkpoint."""
        return self._sequencer.has_pending

    def start(self) -> None:
        """Begin to read."""
        self._task.start(self._read(), f"gazette shard {self._shard.id} producer")

    async def _read(self) -> None:
        args = self._shard, self._store, self._checkpoint, self._channel
        try:
            await self._hooks.read_messages(*args)
        except BaseException as error:  # noqa: BLE001 - delivered.
            self._channel.end(explained("read_messages()", failure_of(error, "it was cancelled")))
        else:
            self._channel.end()

    def advance(self) -> tuple[str, int] | None:
        """Queue messages up to a commit. See `Intake`.

        Raises:
            TransactionError: Reading has failed.
        """
        if self._run is None:
            element = self._channel.take()
            if isinstance(element, End):
                if element.error is not None:
                    raise element.error
                self.has_ended = True
                return None
            self._run, self.has_read = iter(element), True
        sequencer, passed = self._sequencer, None
        for _ in range(_AT_ONCE):
            envelope = next(self._run, None)
            if envelope is None:
                self._run = None  # Idle shards retain no messages.
                break
            if sequencer.queue_uncommitted(envelope) in _PASSED:
                passed = envelope.journal, envelope.end
            if sequencer.emitting:
                self.is_replaying = sequencer.replay_required
                if not self.is_replaying:
                    self._take(sequencer.take())
                break
        return passed

    def _take(self, committed: Sequence[Envelope[Any]]) -> None:
        self._taken, self._consumed = committed, 0
        self.ready = list(committed[:_AT_ONCE])
        if not committed:
            self._sequencer.settle(0)

    def consumed(self, count: int) -> None:
        """Note that the first ready messages were consumed."""
        taken = self._taken
        self._consumed += count
        self._sequencer.settle(self._consumed)
        if count < len(self.ready):
            del self.ready[:count]
            return
        self.ready = list(taken[self._consumed : self._consumed + _AT_ONCE])
        if not self.ready:
            self._taken = ()

    async def read_again(self) -> None:
        """Read messages of a commit again. See `Intake`.

        Raises:
            TransactionError: They can't be read.

        Cancellation: aborts — the intake must be closed.
        """
        sequencer = self._sequencer
        if self._replay is None:
            span = sequencer.replay_range()
            with step(f"reading {span.journal} again"):
                self._replay = self._hooks.replay_range(self._shard, self._store, *span)
            sequencer.start_replay()
        with step("reading again"):
            run: list[Envelope[Any]] = []
            end = self._clock() + _REPLAY_SECONDS
            async for envelope in self._replay:
                run.append(envelope)
                if len(run) == _REPLAYED_AT_ONCE or self._clock() >= end:
                    break
            if run:
                if committed := sequencer.take_replay(run):
                    self._take(committed)
                return
            await self._end_replay()
        sequencer.finish_replay()
        self.is_replaying = False
        self._take(sequencer.take())

    async def _end_replay(self) -> None:
        close: Any = getattr(self._replay, "aclose", None)  # Of a generator.
        self._replay = None
        if close is not None:
            await close()

    def checkpoint(self) -> SequencerCheckpoint:
        """Return the checkpoint of the messages consumed so far."""
        return self._sequencer.checkpoint(PRUNE_HORIZON)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        try:
            await self._task.aclose()
        finally:
            await self._end_replay()
