"""Several recorders of one log, and appends that fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import AppendService, JournalClient, RetryPolicy, connect
from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    LogEncoder,
    Player,
    Recorder,
    RecorderError,
    RecorderFencedError,
)
from gazette_aio.protocol.recoverylog import FSMHints
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.recorder.support import (
    FIRST,
    LOG,
    SECOND,
    close,
    kinds,
    open_recorder,
    play,
    read_log,
    reopen_recorder,
    take_over,
)

CONTENTIONS = 4


async def test_a_fenced_recorder(client: JournalClient):
    loser = await open_recorder(client)
    loser.record_create("/strip/before")
    await loser.barrier()
    async with await take_over(client, SECOND) as winner:
        fnode = loser.record_create("/strip/lost")
        pending = loser.barrier()
        with pytest.raises(RecorderFencedError, match="another process has taken over") as raised:
            await pending
        assert isinstance(raised.value, pb.FencedError)
        assert isinstance(raised.value.__cause__, pb.RegisterMismatchError)
        for call in (
            lambda: loser.record_write_at(fnode, b"", 0),
            lambda: loser.record_remove("/strip/lost"),
            loser.barrier().result,
        ):
            with pytest.raises(RecorderFencedError):
                call()
        with pytest.raises(RecorderFencedError):
            await loser.build_hints()
        winner.record_create("/strip/after")
        await winner.barrier()
    await close(loser)
    assert (await play(client)).files == {"/before": b"", "/after": b""}


async def test_a_barrier_of_no_bytes_finds_the_fence(client: JournalClient):
    loser = await open_recorder(client)
    async with await take_over(client, SECOND):
        with pytest.raises(RecorderFencedError):
            await loser.barrier()
    await close(loser)


async def test_two_recorders_race(client: JournalClient):
    """Each append is of the one that fenced last, and nothing of the other one is played."""
    recorders = [await open_recorder(client)]
    committed: set[str] = set()
    for number in range(20):
        recorder = recorders[-1]
        path = f"/strip/{number}"
        recorder.record_create(path)
        await recorder.barrier()
        committed.add(path.removeprefix("/strip"))
        recorder.record_create(f"/strip/lost-{number}")
        taking_over = asyncio.ensure_future(take_over(client, Author(number + 100)))
        recorders.append(await taking_over)
        with pytest.raises(RecorderFencedError):
            await recorder.barrier()
    await close(*recorders)
    assert (await play(client)).files.keys() == committed


async def test_contenders_take_over_from_each_other(client: JournalClient, tmp_path: Path):
    """What a barrier has committed is played, and nothing else, whoever was fenced meanwhile."""
    committed: set[str] = set()
    turns = [asyncio.Event() for _ in range(CONTENTIONS)]

    async def contend(turn: int) -> None:
        """Take the log over while the one before records, and record until the next one does."""
        await turns[turn].wait()
        author = Author(turn + 1)
        player = Player()
        player.inject_handoff(author)
        resolved = await player.play(FSMHints(log=LOG), tmp_path / str(author), client)
        recorder = await Recorder.open(client, LOG, resolved.fsm, author, resolved.directory)
        is_last = turn == CONTENTIONS - 1
        with contextlib.suppress(RecorderFencedError):
            for number in range(3) if is_last else itertools.count():
                path = f"/{author}-{number}"
                recorder.record_create(recorder.directory + path)
                await recorder.barrier()
                committed.add(path)
                if number == 1 and not is_last:
                    turns[turn + 1].set()
        await recorder.aclose()

    turns[0].set()
    await asyncio.gather(*(contend(turn) for turn in range(CONTENTIONS)))
    assert {path.partition("-")[0] for path in committed} == {
        f"/{turn + 1}" for turn in range(CONTENTIONS)
    }
    assert (await play(client)).files.keys() == committed


def is_of_first(request: pb.AppendRequest) -> bool:
    return request.check_registers.include == FIRST.fence()


async def test_a_stalled_append(client: JournalClient, broker: EmbeddedBroker):
    """An append that arrives after another process took over is refused as a whole."""
    loser = await open_recorder(client)
    hold = broker.control.hold("append", journal=LOG, where=is_of_first)
    loser.record_create("/strip/stalled")
    stalled = loser.barrier()
    await hold.held()
    async with await take_over(client, SECOND) as winner:
        winner.record_create("/strip/winner")
        await winner.barrier()
        hold.remove()
        with pytest.raises(RecorderFencedError):
            await stalled
        winner.record_create("/strip/after")
    await close(loser)
    played = await play(client)
    assert played.files == {"/winner": b"", "/after": b""}
    assert [op.author for op in played.ops] == [FIRST, SECOND, SECOND, SECOND]


async def test_two_fresh_recorders_race(client: JournalClient):
    opened = await asyncio.gather(
        *(open_recorder(client, author=Author(number + 1)) for number in range(4)),
        return_exceptions=True,
    )
    recorders = [each for each in opened if isinstance(each, Recorder)]
    errors = [each for each in opened if isinstance(each, BaseException)]
    assert all(isinstance(error, pb.RecoveryError) for error in errors), errors
    assert len(recorders) <= 1
    for recorder in recorders:
        recorder.record_create(f"/strip/{recorder.author}")
    results = await asyncio.gather(
        *(recorder.barrier() for recorder in recorders), return_exceptions=True
    )
    await close(*recorders)
    committed = {
        f"/{recorder.author}"
        for recorder, result in zip(recorders, results, strict=True)
        if not isinstance(result, BaseException)
    }
    assert (await play(client)).files.keys() == committed


@pytest.mark.parametrize(
    "status", [pb.Status.FRAGMENT_STORE_UNHEALTHY, pb.Status.INDEX_HAS_GREATER_OFFSET]
)
async def test_statuses_that_pass(
    client: JournalClient, broker: EmbeddedBroker, status: pb.Status.ValueType
):
    async with await open_recorder(client) as recorder:
        for _ in range(20):
            broker.control.once("append", journal=LOG, status=status)
        recorder.record_create("/strip/file")
        await recorder.barrier()
    assert (await play(client)).files == {"/file": b""}


async def test_a_program_that_decides_otherwise(client: JournalClient, broker: EmbeddedBroker):
    """Its `on_error` is asked before the recorder waits for what only a store can mend."""
    async with connect(
        broker.endpoint, retry=RetryPolicy(on_error=lambda failure: False)
    ) as refusing:
        recorder = await open_recorder(refusing)
        broker.control.once("append", journal=LOG, status=pb.Status.FRAGMENT_STORE_UNHEALTHY)
        recorder.record_create("/strip/file")
        with pytest.raises(pb.FragmentStoreUnhealthyError):
            await recorder.barrier()
        await close(recorder)


@pytest.mark.parametrize("status", [pb.Status.JOURNAL_NOT_FOUND, pb.Status.NOT_ALLOWED])
async def test_statuses_that_last(
    client: JournalClient, broker: EmbeddedBroker, status: pb.Status.ValueType
):
    recorder = await open_recorder(client)
    broker.control.once("append", journal=LOG, status=status)
    recorder.record_create("/strip/file")
    with pytest.raises(pb.BrokerStatusError):
        await recorder.barrier()
    with pytest.raises(RecorderError, match="records nothing further"):
        recorder.record_create("/strip/other")
    await close(recorder)
    assert kinds((await play(client)).ops) == ["no-op"]


async def test_a_refusal_that_looks_permanent(client: JournalClient, broker: EmbeddedBroker):
    recorder = await open_recorder(client)
    for _ in range(4):
        broker.control.once("append", journal=LOG, fail="PERMISSION_DENIED")
    with pytest.raises(pb.TransportError, match="PERMISSION_DENIED"):
        await recorder.barrier()
    with pytest.raises(RecorderError, match="records nothing further: PERMISSION_DENIED"):
        recorder.record_create("/strip/file")
    await close(recorder)


async def test_bounds_of_the_policy_are_lifted(client: JournalClient, broker: EmbeddedBroker):
    policy = RetryPolicy(backoff=lambda attempt: 0.0, max_attempts=1)
    async with (
        connect(broker.endpoint, retry=policy) as bounded,
        await open_recorder(bounded) as recorder,
    ):
        for _ in range(3):
            broker.control.once("append", journal=LOG, fail="UNAVAILABLE")
        await recorder.barrier()


async def test_an_append_that_is_committed_twice(client: JournalClient, broker: EmbeddedBroker):
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        recorder.record_write_at(fnode, b"first", 0)
        await recorder.barrier()
        broker.control.cut("append", journal=LOG, at="after_commit")
        recorder.record_create("/strip/other")
        recorder.record_write_at(fnode, b"SECOND", 3)
        await recorder.barrier()
        recorder.record_write_at(fnode, b"!", 9)
        hints = await recorder.build_hints()
    files = {"/file": b"firSECOND!", "/other": b""}
    for played in (await play(client), await play(client, hints)):
        assert len(played.ops) == 8
        assert played.files == files
    last_of = {segment.last_offset for node in hints.live_nodes for segment in node.segments}
    assert max(last_of) == len(await read_log(client))


async def test_a_second_fault(client: JournalClient, broker: EmbeddedBroker):
    """An append is cut twice, committed or not, and then the recorder is fenced."""
    recorder = await open_recorder(client)
    broker.control.cut("append", journal=LOG, at="after_commit")
    broker.control.cut("append", journal=LOG, at="before_commit")
    recorder.record_create("/strip/file")
    await recorder.barrier()
    broker.control.cut("append", journal=LOG, at="after_commit")
    recorder.record_create("/strip/committed")
    hold = broker.control.hold("append", journal=LOG)
    barrier = recorder.barrier()
    await hold.held()
    hold.remove()
    await barrier
    async with await take_over(client, SECOND):
        recorder.record_create("/strip/lost")
        with pytest.raises(RecorderFencedError):
            await recorder.barrier()
    await close(recorder)
    assert (await play(client)).files == {"/file": b"", "/committed": b""}


async def test_cancellation(client: JournalClient, broker: EmbeddedBroker):
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    await recorder.barrier()
    hold = broker.control.hold("append", journal=LOG)
    recorder.record_write_at(fnode, b"content", 0)
    pending = recorder.barrier()
    await hold.held()
    recorder.cancel()
    recorder.cancel()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await pending
    hold.remove()
    recorder.record_create("/strip/other")
    for number in range(300):
        recorder.record_write_at(fnode, bytes(4096), number * 4096)
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await recorder.barrier()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await recorder.build_hints()
    await close(recorder)


async def test_opening_is_cancelled_at_each_await(client: JournalClient):
    async def opened() -> None:
        async with await reopen_recorder(client):
            pass

    async def check() -> None:
        assert client.appends.status().journals == 0

    assert await cancel_at_every_await(opened, check) >= 2


async def test_waits_are_cancelled_at_each_await(client: JournalClient):
    async with await open_recorder(client) as recorder:
        number = 0

        async def hints() -> None:
            nonlocal number
            number += 1
            recorder.record_create(f"/strip/{number}")
            await recorder.build_hints()
            await recorder.barrier()

        async def check() -> None:
            assert recorder.error is None

        assert await cancel_at_every_await(hints, check) >= 2
    assert len((await play(client)).files) == number


async def test_closing_is_cancelled_at_each_await(client: JournalClient):
    recorders: list[Recorder] = []

    async def opened_and_closed() -> None:
        recorder = recorders[-1]
        recorder.record_create("/strip/file")
        await recorder.aclose()

    async def check() -> None:
        await recorders[-1].aclose()
        assert recorders[-1].barrier().done()
        recorders.append(await reopen_recorder(client))

    recorders.append(await open_recorder(client))
    assert await cancel_at_every_await(opened_and_closed, check) >= 2
    await close(recorders[-1])


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("turns", range(4))
async def test_the_task_of_appends_is_cancelled_natively(
    client: JournalClient, turns: int, is_atomic: bool
):
    """As by a program that cancels all tasks. Whoever waits is told, and closing ends at once."""
    recorder = await open_recorder(client, drain_timeout=10_000)
    fnode = recorder.record_create("/strip/file")
    await recorder.barrier()
    with recorder.atomic() if is_atomic else contextlib.nullcontext():
        with recorder.atomic():
            recorder.record_write_at(fnode, bytes(3 << 20), 0)
            barrier = recorder.barrier()
        await asyncio.sleep(0)
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "gazette recorder")
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
    for waited in (barrier, recorder.barrier()):
        if task.cancelled():
            with pytest.raises(pb.TransportError, match="CANCELLED"):
                await waited
        else:
            await waited
    await recorder.aclose()
    assert len((await play(client)).ops) == (2 if task.cancelled() else 5)


async def test_a_bound_of_closing(client: JournalClient, broker: EmbeddedBroker):
    recorder = await open_recorder(client, drain_timeout=0.01)
    hold = broker.control.hold("append", journal=LOG)
    recorder.record_create("/strip/file")
    barrier = recorder.barrier()
    await recorder.aclose()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await barrier
    hold.remove()


async def test_the_bound_of_closing_is_one(client: JournalClient, broker: EmbeddedBroker):
    """The service that appends doesn't begin another one."""
    service = AppendService(client, drain_timeout=3600)
    encoder = LogEncoder(FSM(FSMHints(log=LOG)), FIRST, LOG)
    recorder = Recorder(encoder, LOG, FIRST, "/strip", service, drain_timeout=0.01)
    hold = broker.control.hold("append", journal=LOG)
    recorder.record_create("/strip/file")
    barrier = recorder.barrier()
    async with asyncio.timeout(60):
        await recorder.aclose()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await barrier
    hold.remove()


async def test_data_loss_of_the_broker(client: JournalClient, broker: EmbeddedBroker):
    recorder = await open_recorder(client)
    recorder.record_create("/strip/file")
    await recorder.barrier()

    def respond(request: pb.AppendRequest) -> pb.AppendResponse:
        commit = pb.Fragment(
            journal=LOG, begin=0, end=0, compression_codec=pb.CompressionCodec.NONE
        )
        return pb.AppendResponse(commit=commit, registers=pb.LabelSet())

    broker.control.once("append", journal=LOG, respond=respond)
    with pytest.raises(pb.DataLossError, match="is before its head"):
        await recorder.barrier()
    await close(recorder)


async def test_unfenced_history(client: JournalClient):
    """A recorder after a hand-over doesn't fence the log once more."""
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/file")
        await recorder.barrier()
        played = await play(client)
        fsm = played.fsm
    head = len(await read_log(client))
    async with await open_recorder(client, fsm=fsm, author=FIRST) as recorder:
        recorder.record_create("/strip/other")
        hints = await recorder.build_hints()
    assert kinds((await play(client)).ops) == ["no-op", "create", "create"]
    assert (await play(client, hints)).files == {"/file": b"", "/other": b""}
    assert hints.live_nodes[1].segments[0].first_offset == head
