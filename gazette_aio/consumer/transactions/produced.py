"""Messages that a MessageProducer reads."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.fifo import FIFOBudget
from gazette_aio.aio.task import OwnedTask
from gazette_aio.consumer.transactions.explain import explained, explaining, failure_of
from gazette_aio.consumer.transactions.intake import Arrival, Intake, IntakeEngine
from gazette_aio.message import Envelope, FixedFraming
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.adapters.raw import RawAdapter
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.protocol.errors import ReplayError, TransactionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from gazette_aio.consumer.application.application import MessageProducer
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.intake import Content, Envelopes
    from gazette_aio.message.core import Batch
    from gazette_aio.message.envelopes.content import ContentReplay, Refusal
    from gazette_aio.message.envelopes.outputs import Made
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

_FED_AT_ONCE: Final = 512
_READY_AT_ONCE: Final = 128
_REPLAYED_AT_ONCE: Final = 256
_REPLAY_SECONDS: Final = 0.001

MOST_MESSAGES: Final = 8192
"""Default bound of the messages that were sent and aren't handled."""

MOST_BYTES: Final = 64 << 20
"""Bound of their bytes. A single run of messages may exceed it."""

_journal_of = attrgetter("journal")
_substitute_of = Struct(">IHHH6sQ").pack


class _Substitutes(RawAdapter):
    """Adapter of bytes that stand for messages: their UUIDs, and numbers."""

    uuid_place: UUIDPlace | None = UUIDPlace(b"", b"", text=False)


class _Envelopes:
    """Envelopes of messages, while substitutes of them are sequenced."""

    def __init__(self) -> None:
        self._known: dict[bytes, Envelope[Any]] = {}
        self._count = 0

    def add(self, envelopes: Sequence[Envelope[Any]]) -> list[tuple[bytes, int, int]]:
        """Add envelopes, and return their substitutes, and the offsets of each.

        Raises:
            TransactionError: Offsets of a message aren't a range.
        """
        known, count = self._known, self._count
        self._count += len(envelopes)
        added: list[tuple[bytes, int, int]] = []
        # Hot: each message passes here.
        for number, envelope in enumerate(envelopes, count):
            begin, end, clock = envelope.begin, envelope.end, envelope.clock
            if not begin < end:
                text = f"message of {envelope.journal} at offset {begin} ends at {end}"
                raise TransactionError(text)
            # A UUID as of `build_uuid()`, whatever the explicit one is.
            substitute = _substitute_of(
                clock >> 4 & 0xFFFFFFFF,
                clock >> 36 & 0xFFFF,
                clock >> 52 & 0xFFF | 0x1000,
                (clock & 0xF) << 10 | envelope.flags & 0x3FF | 0x8000,
                envelope.producer,
                number,
            )
            known[substitute] = envelope
            added.append((substitute, begin, end))
        return added

    def remove(self, added: Sequence[tuple[bytes, int, int]]) -> None:
        """Remove envelopes, if they weren't delivered."""
        for substitute, _, _ in added:
            self._known.pop(substitute, None)

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, substitutes: Iterable[bytes]) -> None:
        """Remove all envelopes but these."""
        self._known = {each: self._known[each] for each in substitutes}

    def make(self, batch: Batch, start: int) -> tuple[list[Made[Envelopes]], int]:
        """Return the next envelopes of a batch."""
        stop = min(start + _READY_AT_ONCE, len(batch))
        return [(list(map(self._known.pop, batch.payloads(start, stop))), stop)], stop

    def refuse(self, refusal: Refusal) -> list[Envelopes]:
        """Raise an AssertionError: all substitutes are messages."""
        raise AssertionError(refusal)


class _Engine(IntakeEngine):
    """Journals of a MessageProducer."""

    def __init__(self, spec: ShardSpec, checkpoint: Checkpoint) -> None:
        super().__init__(spec, checkpoint)
        self.envelopes = _Envelopes()
        """Envelopes of messages of all journals."""
        self._limits["is_split"] = True

    def maker_of(self, journal_format: JournalFormat[Any]) -> _Envelopes:  # noqa: ARG002
        """Return the envelopes."""
        return self.envelopes

    def rest(self) -> None:
        """Keep the envelopes of retained messages alone, after all others were delivered."""
        # Which were rolled back or evicted isn't known, but they're few.
        if len(self.envelopes) > 2 * self._pending_rows:
            cores = [content.core for content in self._pending]
            self.envelopes.keep(each for core in cores for each in core.retained())


class _Run(Arrival):
    """Messages of one journal that were sent.

    Args:
        content: Content of the journal.
        messages: The messages.
        size: Their bytes.
        intake: Has room for them until they're handled.
    """

    def __init__(
        self, content: Content, messages: Sequence[Envelope[Any]], size: int, intake: ProducedIntake
    ) -> None:
        super().__init__(content)
        self.is_fed = False
        self._messages = messages
        self._size = size
        self._fed = 0
        self._intake = intake

    def feed(self) -> bool:
        """Feed the next few messages. See `Arrival`."""
        some = self._messages[self._fed : self._fed + _FED_AT_ONCE]
        if not some:
            self._intake.handled(len(self._messages), self._size)
            return False
        self.is_fed = True
        self._fed += len(some)
        core = self.content.core
        with explaining("read_messages()"):
            _feed(core.feed_frames, core.jump, self._intake.envelopes.add(some))
        return True


class ProducedIntake(Intake):
    """Intake of a MessageProducer, whose MessageSink it is. See `Intake`.

    Args:
        producer: The application.
        shard: The shard.
        store: Its store.
        checkpoint: Checkpoint to read from.
        wake: Called when there's something in line.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self,
        producer: MessageProducer[Any, Any],
        shard: Shard,
        store: Store,
        checkpoint: Checkpoint,
        *,
        wake: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self._produced = engine = _Engine(shard.spec, checkpoint)
        super().__init__(engine, wake)
        self.envelopes: _Envelopes = engine.envelopes
        """Envelopes of messages of all journals."""
        self.has_read: bool = False
        self._producer = producer
        self._shard = shard
        self._store = store
        self._checkpoint = checkpoint
        self._clock = clock
        self._most = shard.spec.read_channel_size or MOST_MESSAGES
        self._messages = FIFOBudget(self._most)
        self._bytes = FIFOBudget(MOST_BYTES)
        self._task = OwnedTask()
        self._contents: dict[str, Content] = {}
        self._replay: AsyncIterator[Envelope[Any]] | None = None
        self._replayed: Sequence[tuple[bytes, int, int]] = ()

    def start(self) -> None:
        """Begin to read."""
        self._task.start(self._read(), f"gazette shard {self._shard.id} producer")

    async def _read(self) -> None:
        try:
            await self._producer.read_messages(self._shard, self._store, self._checkpoint, self)
        except BaseException as error:  # noqa: BLE001 - delivered.
            self._put(explained("read_messages()", failure_of(error, "it was cancelled")))
        else:
            self._put(None)

    async def send(self, envelopes: Sequence[Envelope[Any]], /) -> None:
        """Take read messages, and wait while there's no room for them. See `MessageSink`.

        Cancellation: aborts — some of the messages were taken.
        """
        most = self._most
        for _, some in groupby(envelopes, _journal_of):
            run = list(some)
            for part in (run[at : at + most] for at in range(0, len(run), most)):
                # They may not be in the order of their offsets.
                size = max(part[-1].end - part[0].begin, 0)
                await self._messages.acquire(len(part))
                try:
                    await self._bytes.acquire(size)
                except BaseException:
                    self._messages.release(len(part))
                    raise
                self.has_read = True
                self._put(_Run(self._content_of(part[0]), part, size, self))

    def handled(self, messages: int, size_bytes: int) -> None:
        """All messages of a run are handled, so that there's room for others."""
        self._produced.rest()
        self._messages.release(messages)
        self._bytes.release(size_bytes)

    def _content_of(self, first: Envelope[Any]) -> Content:
        """Return the content of a journal, which perhaps begins with a message."""
        name = first.journal
        content = self._contents.get(name)
        if content is None:
            origin, adapter = Origin(pb.JournalSpec(name=name)), _Substitutes(None, None, None)
            journal_format = JournalFormat(name, origin, FixedFraming(), adapter)
            content = self._contents[name] = self._engine.begin(journal_format, first.begin)
        return content

    async def _feed_again(self, content: Content, replay: ContentReplay) -> bool:
        name, core, envelopes = content.journal, content.core, self.envelopes
        if span := replay.open():
            with explaining(f"reading {name} again"):
                self._replay = self._producer.replay_range(self._shard, self._store, name, *span)
        assert self._replay is not None, "the replay was begun"
        envelopes.remove(self._replayed)
        run: list[Envelope[Any]] = []
        end = self._clock() + _REPLAY_SECONDS
        async for envelope in self._replay:
            if envelope.journal != name:
                text = f"replay of wrong journal ({envelope.journal}; expected {name})"
                raise ReplayError(text)
            run.append(envelope)
            if len(run) == _REPLAYED_AT_ONCE or self._clock() >= end:
                break
        self._replayed = envelopes.add(run)
        if run:
            _feed(core.feed_replay_frames, core.jump_replay, self._replayed)
        else:
            await self._end_replay()
        return bool(run)

    async def _end_replay(self) -> None:
        close: Any = getattr(self._replay, "aclose", None)  # Of a generator.
        self._replay = None
        if close is not None:
            await close()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        try:
            await self._task.aclose()
        finally:
            await self._end_replay()


def _feed(
    feed: Callable[[Sequence[tuple[bytes, int, int]]], None],
    jump: Callable[[int], object],
    messages: Sequence[tuple[bytes, int, int]],
) -> None:
    """Feed messages, even if they aren't in the order of their offsets."""
    try:
        feed(messages)
    except ValueError:
        for message in messages:
            jump(message[1])
            feed([message])
