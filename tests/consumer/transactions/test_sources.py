"""Sources of each framing, with content that is no message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.consumer.application import DeadLetter, Retry, Skip
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Flags,
    Framing,
    build_uuid,
    csv_adapter,
    framing_by_content_type,
    json_adapter,
    register_framing,
)
from tests.consumer.transactions.clocked import A, Clocked, ClockLoop, run_clocked
from tests.consumer.transactions.forms import MIN, Journals
from tests.consumer.transactions.world import NDJSON, read_through, shard_spec
from tests.waiting import turns

JOURNAL = "source/A"
FIXED, CSV = "application/x-protobuf-fixed", "text/csv"


class Values:
    """Notes values of messages, and skips what is none."""

    def __init__(self, adapter: Any, value_of: Any) -> None:
        self.made = adapter
        self.value_of = value_of
        self.values: list[Any] = []
        self.bad: list[tuple[int, int, int]] = []

    def adapter(self, spec: Any) -> Any:
        return self.made

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.flags != ACK_TXN:
            self.values.append(self.value_of(envelope.message))

    def on_message_error(self, shard: Any, envelope: Any, error: Exception) -> Skip | DeadLetter:
        self.bad.append((envelope.begin, envelope.end, envelope.uuid.int))
        return Skip()


class World(Clocked):
    """A primary that reads a journal of bytes."""

    def __init__(
        self,
        loop: ClockLoop,
        content_type: str,
        application: Values,
        checkpoint: Any = None,
        *,
        chunk: int = 50_000,
        **fields: Any,
    ) -> None:
        super().__init__(loop, shard_spec(JOURNAL, min_ms=1, max_ms=10, **fields), checkpoint)
        self.application = application
        self.shard.client = self.journals = Journals({JOURNAL: content_type}, chunk=chunk)

    async def append(self, content: bytes) -> None:
        self.journals.append(JOURNAL, content)
        await turns(100 + 4 * len(content))

    async def commit(self) -> Any:
        """Let the transaction commit, and return its checkpoint."""
        await self.loop.advance(MIN)
        checkpoint, _, operation = self.store.commits[-1]
        assert not operation.done()
        await self.committed()
        return checkpoint


def uuid(clock: int, flags: Flags = OUTSIDE_TXN) -> Any:
    return build_uuid(A, clock, flags)


def json_frames() -> tuple[Any, Any, Any]:
    adapter = json_adapter()

    def encode(clock: int, flags: Flags) -> bytes:
        stamp = uuid(clock, flags)
        if flags == ACK_TXN:
            return adapter.acknowledgement(stamp)
        return adapter.encode({"v": clock}, stamp)

    return adapter, encode, lambda message: message["v"]


def csv_frames() -> tuple[Any, Any, Any]:
    adapter = csv_adapter()

    def encode(clock: int, flags: Flags) -> bytes:
        stamp = uuid(clock, flags)
        if flags == ACK_TXN:
            return adapter.acknowledgement(stamp)
        return adapter.encode(["", str(clock)], stamp)

    return adapter, encode, lambda message: int(message[1])


FRAMINGS = pytest.mark.parametrize(
    ("content_type", "frames"), [(NDJSON, json_frames), (FIXED, json_frames), (CSV, csv_frames)]
)


@FRAMINGS
@pytest.mark.parametrize("chunk", [7, 50_000])
@pytest.mark.parametrize("ring", [2, 100])
def test_sources_of_each_framing(content_type: str, frames: Any, chunk: int, ring: int):
    adapter, encode, value_of = frames()
    frame = framing_by_content_type(content_type).encode
    parts = [frame(encode(clock, CONTINUE_TXN)) for clock in range(1, 9)]
    parts += [frame(encode(9, ACK_TXN)), frame(encode(10, OUTSIDE_TXN))]

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, value_of)
        world = World(loop, content_type, application, chunk=chunk, ring_buffer_size=ring)
        async with world:
            await world.append(b"".join(parts[:3]))
            assert application.values == []
            await world.append(b"".join(parts[3:]))
            assert application.values == [*range(1, 9), 10]
            assert read_through(await world.commit()) == {JOURNAL: sum(map(len, parts))}

    run_clocked(test)


@pytest.mark.parametrize("chunk", [7, 50_000])
def test_garbage_between_messages_is_passed_over_once(chunk: int):
    adapter, encode, value_of = json_frames()
    frame = framing_by_content_type(FIXED).encode
    first, second = (frame(encode(clock, OUTSIDE_TXN)) for clock in (1, 2))
    content = first + b"garbage" + second

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, value_of)
        async with World(loop, FIXED, application, chunk=chunk) as world:
            await world.append(content)
            assert application.values == [1, 2]
            places = [(len(first), len(first) + len(b"garbage"), 0)]
            assert application.bad == places
            checkpoint = await world.commit()
            assert read_through(checkpoint) == {JOURNAL: len(content)}

    run_clocked(test)


@pytest.mark.parametrize("bad", [b'{"_meta":{"uuid":"no UUID"}}\n', b"no document\n", b"{}\n" * 2])
def test_a_transaction_may_end_after_what_is_no_message(bad: bytes):
    adapter, encode, _ = json_frames()
    before, after = (encode(clock, OUTSIDE_TXN) + b"\n" for clock in (1, 2))

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, lambda message: message.get("v", 0))
        async with World(loop, NDJSON, application) as world:
            await world.append(before + bad)
            stored = await world.commit()
            assert read_through(stored) == {JOURNAL: len(before + bad)}
            values, places = [*application.values], [*application.bad]
        # The next assignment doesn't see it again.
        async with World(loop, NDJSON, application, stored) as world:
            await world.append(before + bad + after)
            assert application.values == [*values, 2]
            assert application.bad == places
            assert read_through(await world.commit()) == {JOURNAL: len(before + bad + after)}

    run_clocked(test)


def test_undecodable_bytes_at_the_end_of_a_transaction_are_passed_over_once():
    adapter, encode, value_of = json_frames()
    frame = framing_by_content_type(FIXED).encode
    first, second = (frame(encode(clock, OUTSIDE_TXN)) for clock in (1, 2))
    garbage = b"x" * 100

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, value_of)
        async with World(loop, FIXED, application) as world:
            await world.append(first + garbage)
            checkpoint = await world.commit()
            through = read_through(checkpoint)[JOURNAL]
            assert through == len(first) + sum(end - begin for begin, end, _ in application.bad)
            values, places = [*application.values], [*application.bad]
        async with World(loop, FIXED, application, checkpoint) as world:
            await world.append(first + garbage + second)
            assert application.values == [*values, 2]
            assert not {*places} & {*application.bad[len(places) :]}
            skipped = sum(end - begin for begin, end, _ in application.bad)
            assert skipped == len(garbage)

    run_clocked(test)


def test_garbage_that_is_left_for_the_next_transaction_is_not_part_of_this_one():
    adapter, encode, value_of = json_frames()
    lines = [encode(1, OUTSIDE_TXN) + b"\n", b"no document\n"]
    decisions = [Retry(times=1, first_seconds=0.0, last_seconds=0.0), Skip()]

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, value_of)
        application.on_message_error = lambda *_: decisions.pop(0)  # type: ignore[method-assign, assignment]
        async with World(loop, NDJSON, application) as world:
            await world.append(b"".join(lines))
            assert world.store.restored == 1
            assert application.values == [1, 1]
            # The message that failed begins a transaction of its own.
            assert read_through(await world.commit()) == {JOURNAL: len(lines[0])}
            assert decisions == []
            assert read_through(await world.commit()) == {JOURNAL: sum(map(len, lines))}

    run_clocked(test)


def test_messages_of_adapters_that_decode_to_find_uuids():
    made, encode, value_of = json_frames()

    class Plain:
        """Has only what every adapter has."""

        decode, encode = staticmethod(made.decode), staticmethod(made.encode)
        uuid, acknowledgement = staticmethod(made.uuid), staticmethod(made.acknowledgement)

    lines = [encode(clock, CONTINUE_TXN) + b"\n" for clock in range(1, 9)]
    lines += [b"no document\n", encode(9, ACK_TXN) + b"\n"]

    async def test(loop: ClockLoop) -> None:
        application = Values(Plain(), value_of)
        async with World(loop, NDJSON, application, ring_buffer_size=3) as world:
            await world.append(b"".join(lines))
            assert application.values == [*range(1, 9)]
            [(begin, end, number)] = application.bad
            assert (begin, end, number) == (sum(map(len, lines[:8])), sum(map(len, lines[:9])), 0)
            assert read_through(await world.commit()) == {JOURNAL: sum(map(len, lines))}

    run_clocked(test)


def test_explicit_uuids_are_those_of_messages():
    stamp = "11111111-2222-4333-8444-555555555555"
    adapter, _, _ = json_frames()

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, lambda message: message)
        seen: list[str] = []
        application.consume_message = lambda _, __, env, ___: seen.append(str(env.uuid))  # type: ignore[method-assign, assignment]
        async with World(loop, NDJSON, application) as world:
            await world.append(b'{"_meta":{"uuid":"%s"}}\n' % stamp.encode())
            assert seen == [stamp]

    run_clocked(test)


def test_a_source_is_read_little_further_than_its_messages_are_consumed():
    adapter, encode, _ = json_frames()
    lines = [encode(clock, OUTSIDE_TXN) + b"\n" for clock in range(1, 100)]

    async def test(loop: ClockLoop) -> None:
        may_consume, consumed = asyncio.Semaphore(0), list[int]()

        async def consume(_: Any, __: Any, envelope: Any, ___: Any) -> None:
            await may_consume.acquire()
            consumed.append(envelope.end)

        application = Values(adapter, len)
        application.consume_message = consume  # type: ignore[method-assign, assignment]
        async with World(loop, NDJSON, application, chunk=len(lines[0])) as world:
            await world.append(b"".join(lines))
            [reader] = world.journals.readers
            for number in range(10):
                assert (len(consumed), reader.offset <= (number + 3) * len(lines[0])) == (
                    number,
                    True,
                )
                may_consume.release()
                await turns(50)

    run_clocked(test)


class Panic(BaseException):
    """An error of a module that isn't in Python."""


class BrokenDecoder:
    """Raises as it's fed, which decoders must not."""

    offset = buffered = 0

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def feed(self, chunk: bytes) -> None:
        raise self.error


class BrokenFraming(Framing):
    content_type = "application/x-broken"
    error: BaseException

    def encode(self, message: bytes) -> bytes:
        return message

    def decoder(self, offset: int = 0, *, max_frame_bytes: int = 0) -> Any:
        return BrokenDecoder(self.error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError(7), "KeyError: 7"),
        (Panic("index out of range"), "RuntimeError: Panic('index out of range')"),
        (asyncio.CancelledError(), "RuntimeError: it was cancelled"),
    ],
)
def test_a_framing_that_breaks_its_rules_fails_the_shard(error: BaseException, text: str):
    framing = BrokenFraming()
    framing.error = error
    register_framing(framing)

    async def test(loop: ClockLoop) -> None:
        application = Values(json_adapter(), bytes)
        async with World(loop, BrokenFraming.content_type, application) as world:
            await world.append(b"content")
            assert world.task.done()
            assert str(await world.failure()) == f"reading {JOURNAL} at offset 0: {text}"

    run_clocked(test)


def test_a_gap_of_a_source_is_passed_over():
    adapter, encode, value_of = json_frames()
    lines = [encode(clock, OUTSIDE_TXN) + b"\n" for clock in (1, 2, 3)]
    gap = len(lines[0]) - 5, sum(map(len, lines[:2]))

    async def test(loop: ClockLoop) -> None:
        application = Values(adapter, value_of)
        world = World(loop, NDJSON, application)
        world.journals.holes[JOURNAL] = gap
        async with world:
            await world.append(b"".join(lines))
            assert application.values == [3]
            assert read_through(await world.commit()) == {JOURNAL: sum(map(len, lines))}

    run_clocked(test)
