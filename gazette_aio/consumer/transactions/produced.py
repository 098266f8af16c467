"""Messages that a MessageProducer reads."""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.consumer.transactions.channel import MessageChannel
from gazette_aio.consumer.transactions.explain import explained, failure_of, step
from gazette_aio.consumer.transactions.intake import Intake, IntakeEngine
from gazette_aio.message import Envelope, FixedFraming
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.adapters.raw import RawAdapter
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.protocol.errors import ReplayError, TransactionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from gazette_aio.consumer.application.application import MessageProducer
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.intake import Content, Envelopes
    from gazette_aio.message.core import Batch, Journal
    from gazette_aio.message.envelopes.content import Refusal
    from gazette_aio.message.envelopes.outputs import Made
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

_FED_AT_ONCE: Final = 512
_READY_AT_ONCE: Final = 128
_REPLAYED_AT_ONCE: Final = 256
_REPLAY_SECONDS: Final = 0.001

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


class ProducedIntake(Intake):
    """Intake of a MessageProducer. See `Intake`.

    Args:
        producer: The application.
        shard: The shard.
        store: Its store.
        checkpoint: Checkpoint to read from.
        wake: Called when there's input.
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
        engine = _Engine(shard.spec, checkpoint)
        super().__init__(engine)
        self.has_read: bool = False
        self._producer = producer
        self._shard = shard
        self._store = store
        self._checkpoint = checkpoint
        self._clock = clock
        self._channel = MessageChannel(wake, shard.spec.read_channel_size)
        self._task = OwnedTask()
        self._produced = engine
        self._contents: dict[str, Content] = {}
        self._fed: Content | None = None  # Of the messages that were read last.
        self._run: Iterator[Envelope[Any]] = iter(())  # These messages, which are fed in part.
        self._replay: AsyncIterator[Envelope[Any]] | None = None
        self._replayed: Sequence[tuple[bytes, int, int]] = ()

    @property
    def has_input(self) -> bool:
        """Whether `advance()` has something to handle."""
        return self._fed is not None or self._channel.is_ready

    def start(self) -> None:
        """Begin to read."""
        self._task.start(self._read(), f"gazette shard {self._shard.id} producer")

    async def _read(self) -> None:
        args = self._shard, self._store, self._checkpoint, self._channel
        try:
            await self._producer.read_messages(*args)
        except BaseException as error:  # noqa: BLE001 - delivered.
            self._channel.end(explained("read_messages()", failure_of(error, "it was cancelled")))
        else:
            self._channel.end()

    def advance(self) -> tuple[str, int] | None:
        """Handle messages of one journal. See `Intake`.

        Raises:
            TransactionError: Reading has failed.
        """
        if self._fed is None:
            run = self._channel.take()
            if run is None:
                self.has_ended = True
                return None
            self.has_read = True
            self._fed = self._content_of(run[0])
            self._run = iter(run)
            self._feed(self._fed.core)
        content = self._fed
        if not self._work(content):
            self._produced.rest()
            if not self._feed(content.core):
                self._fed, self._run = None, iter(())  # Idle shards retain no messages.
        return self._passed_over(content)

    def _content_of(self, first: Envelope[Any]) -> Content:
        """Return the content of a journal, which perhaps begins with a message."""
        name = first.journal
        content = self._contents.get(name)
        if content is None:
            origin, adapter = Origin(pb.JournalSpec(name=name)), _Substitutes(None, None, None)
            journal_format = JournalFormat(name, origin, FixedFraming(), adapter)
            content = self._contents[name] = self._engine.begin(journal_format, first.begin)
        return content

    def _feed(self, core: Journal) -> bool:
        """Feed the next messages of the run, and return whether there are any."""
        some = list(islice(self._run, _FED_AT_ONCE))
        if some:
            with step("read_messages()"):
                _feed(core.feed_frames, core.jump, self._produced.envelopes.add(some))
        return bool(some)

    async def read_again(self) -> None:
        """Read messages of a commit again. See `Intake`.

        Raises:
            TransactionError: They can't be read, or have changed.

        Cancellation: aborts — the intake must be closed.
        """
        content, envelopes = self._fed, self._produced.envelopes
        assert content is not None, "the commit is of a journal"
        replay, name, core = content.replay, content.journal, content.core
        assert replay is not None, "the commit needs a replay"
        if span := replay.open():
            with step(f"reading {name} again"):
                self._replay = self._producer.replay_range(self._shard, self._store, name, *span)
        assert self._replay is not None, "the replay was begun"
        envelopes.remove(self._replayed)
        with step("reading again"):
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
                replay.end()
        self.is_replaying = False

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
