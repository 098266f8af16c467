"""An event loop whose time is the test's, and appends and commits that the test completes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import gazette_aio.protocol as pb
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.consumer.transactions.progress import ProgressCell
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Clock,
    Envelope,
    Flags,
    ProducerID,
    Publisher,
    json_adapter,
)
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from tests.consumer.transactions.world import Observer, read_directly, shard_spec, to_out
from tests.waiting import turns

A, B = ProducerID(b"aaaaaa"), ProducerID(b"bbbbbb")


class Content:
    """A journal whose messages are all known."""

    size = 10
    """Bytes of each message."""
    producer = A

    def __init__(self, name: str = "source/A") -> None:
        self.name = name
        self.messages: list[Envelope[Any]] = []
        self.clock = 0

    @property
    def head(self) -> int:
        return len(self.messages) * self.size

    def add(
        self, flags: Flags, producer: ProducerID = A, clock: int | None = None
    ) -> Envelope[Any]:
        if clock is None:
            self.clock += 1
            clock = self.clock
        begin = self.head
        envelope = Envelope(self.name, begin, begin + self.size, clock, flags, producer, begin)
        self.messages.append(envelope)
        return envelope

    def outside(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(OUTSIDE_TXN, producer, clock)

    def pending(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(CONTINUE_TXN, producer, clock)

    def ack(self, producer: ProducerID = A, clock: int | None = None) -> Envelope[Any]:
        return self.add(ACK_TXN, producer, clock)

    def read(self, begin: int, end: int | None = None) -> list[Envelope[Any]]:
        """Return fresh envelopes of a range, as of a new reader."""
        return [
            Envelope(
                each.journal,
                each.begin,
                each.end,
                each.clock,
                each.flags,
                each.producer,
                each.message,
            )
            for each in self.messages[
                begin // self.size : None if end is None else end // self.size
            ]
        ]


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by `advance()`."""

    now = 0.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Let time pass, and give other tasks turns before and after."""
        await turns()
        self.now += seconds
        await turns()


def run_clocked(
    test: Callable[[ClockLoop], Coroutine[Any, Any, None]], kind: type[ClockLoop] = ClockLoop
) -> None:
    """Run a test in a loop of its own."""
    loop = kind()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


class HeldAppend(AsyncOperation):
    """An append that the test completes."""

    def __init__(self, journal: str, dependencies: Any) -> None:
        super().__init__()
        self.journal = journal
        self.dependencies = list(dependencies)
        self.content = b""

    @property
    def response(self) -> Any:
        response = pb.AppendResponse()
        response.commit.end = 1000 + len(self.content)
        return response

    def write(self, data: bytes) -> int:
        self.content += data
        return len(data)

    def release(self) -> None:
        pass


class HeldAppends:
    """Appends that the test completes; those of messages complete at once."""

    cutoff_bytes = 1 << 20

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.held: list[HeldAppend] = []
        self.cleared: list[str] = []
        self.pending: set[Any] = set()

    async def list(self, selector: Any = "") -> pb.ListResponse:
        return pb.ListResponse()

    def try_append(self, journal: str, data: bytes) -> HeldAppend:
        self.messages.append(data)
        append = HeldAppend(journal, ())
        append.resolve()
        return append

    async def start_append(self, journal: str, dependencies: Any = ()) -> HeldAppend:
        append = HeldAppend(journal, dependencies)
        self.held.append(append)
        return append

    def pending_except(self, journal: str) -> set[Any]:
        self.excepted = journal
        return set(self.pending)

    def cleared_error(self, journal: str) -> None:
        return None

    def clear_error(self, journal: str) -> None:
        self.cleared.append(journal)


class HeldStore:
    """A store whose commits the test completes."""

    def __init__(self) -> None:
        self.commits: list[tuple[Checkpoint, set[Any], AsyncOperation]] = []
        self.restored = 0
        self.checkpoint = Checkpoint()
        self.error: Exception | None = None
        self.restore_error: Exception | None = None

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> AsyncOperation:
        operation = AsyncOperation()
        if self.error is not None:
            operation.resolve(self.error)
        self.commits.append((checkpoint, set(wait_for), operation))
        return operation

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        self.restored += 1
        if self.restore_error is not None:
            raise self.restore_error
        return self.checkpoint


class ClockedShard:
    def __init__(self, spec: ShardSpec) -> None:
        self.id = self.fqn = spec.id
        self.spec = spec
        self.appends: Any = HeldAppends()
        self.client: Any = type("Client", (), {"router": read_directly})()
        self.publisher: Publisher[Any] = Publisher(self.appends, json_adapter(), clock=Clock())


class Echo:
    """Reads what the test sends, notes what it consumes, and echoes it."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.events: list[Any] = []
        self.errors: dict[str, Exception] = {}
        self.checkpoints: list[Checkpoint] = []

    def _event(self, name: str, *args: Any) -> None:
        self.events.append((name, *args) if args else name)
        if name in self.errors:
            raise self.errors[name]

    def adapter(self, spec: Any) -> Any:
        raise NotImplementedError

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    def begin_txn(self, shard: Any, store: Any) -> None:
        self._event("begin")

    async def consume_message(
        self, shard: Any, store: Any, envelope: Envelope[Any], publisher: Any
    ) -> None:
        self._event("consume")
        if envelope.flags != ACK_TXN:
            await publisher.publish_uncommitted(to_out, {"at": envelope.begin})

    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        self._event("finalize")

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        state = "failed" if commit.done() and commit.exception() else "committing"
        self._event("finished", state)

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        self.checkpoints.append(checkpoint)
        while (item := await self.queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            await sink.send(item)
            del item

    async def replay_range(self, shard: Any, store: Any, journal: str, begin: int, end: int) -> Any:
        self._event("replay", begin, end)
        for envelope in self.content.read(begin, end):
            yield envelope

    def read_through(self, shard: Any, store: Any, offsets: Any) -> Any:
        return offsets


class Clocked:
    """A primary loop in a ClockLoop."""

    def __init__(
        self, loop: ClockLoop, spec: ShardSpec | None = None, checkpoint: Any = None, **options: Any
    ) -> None:
        self.loop = loop
        self.content = Content()
        self.application: Any = Echo(self.content)
        self.shard: Any = ClockedShard(spec or shard_spec(min_ms=1, max_ms=10, read_channel_size=1))
        self.appends: HeldAppends = self.shard.appends
        self.store: Any = HeldStore()
        self.progress = ProgressCell(["source/A"])
        self.observer = Observer()
        self.checkpoint = checkpoint or Checkpoint()
        self.options = options

    def primary(self) -> PrimaryLoop:
        return PrimaryLoop(
            self.shard,
            Hooks(self.application),
            self.store,
            progress=self.progress,
            observers=[self.observer.acknowledged],
            on_decision=self.observer.decided,
            **self.options,
        )

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.primary().run(self.checkpoint))
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def send(self, *envelopes: Any) -> None:
        self.application.queue.put_nowait(list(envelopes))
        await turns()

    async def end(self, error: Exception | None = None) -> None:
        self.application.queue.put_nowait(error)
        await turns()

    async def committed(self, error: Exception | None = None) -> None:
        """Complete the newest commit."""
        self.store.commits[-1][2].resolve(error)
        await turns()

    async def acked(self, error: Exception | None = None) -> None:
        """Complete all acknowledgements."""
        held, self.appends.held = self.appends.held, []
        for append in held:
            append.resolve(error)
        await turns()

    async def failure(self) -> BaseException:
        await asyncio.wait((self.task,))
        error = self.task.exception()
        assert error is not None
        return error
