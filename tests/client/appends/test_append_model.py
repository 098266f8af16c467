"""Random interleavings of appends, against what they should amount to."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import AppendService, AsyncAppend, JournalClient, RetryPolicy
from tests import extent
from tests.waiting import turns

NAMES = ("aaaa", "bbbb", "cccc")


class ScriptedRpc:
    """Stands in for the RPC layer: appends to memory, and fails when it's told to."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = dict.fromkeys(NAMES, b"")
        self.rpcs = 0
        self.fail_next = 0
        self.open = asyncio.Event()
        self.open.set()

    def check_request(self, request: pb.AppendRequest) -> None:
        pb.validate(request)

    async def aclose(self) -> None:
        pass

    async def begin(self, _method: str, request: pb.AppendRequest, *_: object) -> Any:
        self.rpcs += 1
        return ScriptedCall(self, request.journal), SimpleNamespace(endpoint="http://scripted")


class ScriptedCall:
    def __init__(self, rpc: ScriptedRpc, journal: str) -> None:
        self.rpc = rpc
        self.journal = journal
        self.messages: list[bytes] = []
        self.is_half_closed = False

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        self.messages.append(message)

    async def done_writing(self) -> None:
        self.is_half_closed = True

    def cancel(self) -> bool:
        return True

    def add_done_callback(self, _callback: object) -> None:
        """The status that comes first is the only one."""

    def __await__(self) -> Any:
        return self._finish().__await__()

    async def _finish(self) -> bytes:
        await self.rpc.open.wait()
        if self.rpc.fail_next:
            self.rpc.fail_next -= 1
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone"
            )
        assert self.is_half_closed
        assert self.messages[-1] == b""
        data = b"".join(
            pb.AppendRequest.FromString(message).content for message in self.messages[1:]
        )
        begin = len(self.rpc.contents[self.journal])
        self.rpc.contents[self.journal] += data
        response = pb.AppendResponse(
            status=pb.Status.OK,
            header=pb.Header(
                etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=1, raft_term=1),
                route=pb.Route(primary=-1),
            ),
            commit=pb.Fragment(
                journal=self.journal,
                begin=begin,
                end=begin + len(data),
                sum=pb.sha1_sum(data),
                compression_codec=pb.CompressionCodec.NONE,
            ),
            registers=pb.LabelSet(),
        )
        return response.SerializeToString()


@dataclasses.dataclass
class Model:
    """What is to be in each journal, and where."""

    contents: dict[str, bytes]
    expected: list[tuple[AsyncAppend, str, int, int]]

    def keep(self, append: AsyncAppend, journal: str, data: bytes) -> None:
        begin = len(self.contents[journal])
        self.contents[journal] += data
        self.expected.append((append, journal, begin, begin + len(data)))


journals = st.sampled_from(NAMES)
sizes = st.sampled_from([0, 1, 7, 100, 3000])
steps = st.one_of(
    st.tuples(st.just("append"), journals, st.lists(sizes, max_size=3), st.booleans()),
    st.tuples(st.just("concurrent"), journals, st.lists(sizes, min_size=1, max_size=4)),
    st.tuples(st.just("try"), journals, sizes),
    st.tuples(st.just("registers"), journals, sizes),
    st.tuples(st.just("barrier"), journals, sizes),
    st.tuples(st.just("cancelled"), journals),
    st.tuples(st.just("await"), st.integers(0, 50)),
    st.tuples(st.just("close gate")),
    st.tuples(st.just("open gate")),
    st.tuples(st.just("fail"), st.integers(1, 3)),
    st.tuples(st.just("yield"), st.integers(1, 5)),
)


class Player:
    def __init__(self, service: AppendService, rpc: ScriptedRpc) -> None:
        self.service = service
        self.rpc = rpc
        self.model = Model(dict.fromkeys(NAMES, b""), [])
        self.counter = 0
        self.tasks: list[asyncio.Task[None]] = []

    def data(self, size: int) -> bytes:
        self.counter += 1
        return (b"%d." % self.counter * size)[:size]

    async def append(self, journal: str, sizes: list[int], keep: bool) -> None:
        append = await self.service.start_append(journal)
        data = b""
        for size in sizes:
            piece = self.data(size)
            append.write(piece)
            data += piece
            await asyncio.sleep(0)
        if keep:
            append.release()
            self.model.keep(append, journal, data)
        else:
            append.require(OSError("no"))
            with pytest.raises(OSError, match="no"):
                append.release()

    async def play(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("append", journal, sizes, keep):
                await self.append(journal, sizes, keep)
            case ("concurrent", journal, sizes):
                self.tasks += [
                    asyncio.create_task(self.append(journal, [size], bool(size % 2)))
                    for size in sizes
                ]
            case ("try", journal, size):
                data = self.data(size)
                append = self.service.try_append(journal, data)
                if append is not None:
                    self.model.keep(append, journal, data)
            case ("registers", journal, size):
                request = pb.AppendRequest(
                    journal=journal,
                    check_registers=pb.LabelSelector(include=pb.label_set("number", str(size))),
                )
                data = self.data(size)
                append = await self.service.start_append(request)
                append.write(data)
                append.release()
                self.model.keep(append, journal, data)
            case ("barrier", journal, size):
                data = self.data(size)
                before = {name: self.model.contents[name] for name in NAMES if name != journal}
                append = await self.service.start_append(
                    journal, self.service.pending_except(journal)
                )
                append.write(data)
                append.release()
                self.model.keep(append, journal, data)

                def check(append: AsyncAppend = append) -> None:
                    for name, content in before.items():
                        assert self.rpc.contents[name].startswith(content)

                append.operation.when_done(check)
            case ("cancelled", journal):
                waiting = asyncio.create_task(self.service.start_append(journal))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait((waiting,))
                if not waiting.cancelled():
                    waiting.result().release()
                    self.model.keep(waiting.result(), journal, b"")
            case ("await", index) if self.model.expected and self.rpc.open.is_set():
                await self.model.expected[index % len(self.model.expected)][0]
            case ("close gate",):
                self.rpc.open.clear()
            case ("open gate",):
                self.rpc.open.set()
            case ("fail", count):
                self.rpc.fail_next = count
            case ("yield", count):
                await turns(count)
            case _:
                pass  # It doesn't apply now.


@given(script=st.lists(steps, max_size=30), cutoff=st.sampled_from([5, 200, 1 << 26]))
@extent.examples(100)
def test_appends_amount_to_the_model(script: list[tuple[Any, ...]], cutoff: int) -> None:
    async def run() -> None:
        rpc = ScriptedRpc()
        client: Any = JournalClient(
            "http://127.0.0.1:1", retry=RetryPolicy(backoff=lambda attempt: 0.0)
        )
        client.context.rpc = rpc
        async with AppendService(client, cutoff_bytes=cutoff) as service:
            player = Player(service, rpc)
            for step in script:
                await player.play(step)
            rpc.open.set()
            await asyncio.gather(*player.tasks)
            await service.flush()
            for append, journal, begin, end in player.model.expected:
                response = await append
                assert append.commit_range == (begin, end)
                assert response.commit.journal == journal
                assert response.commit.begin <= begin <= end <= response.commit.end
        assert rpc.contents == player.model.contents
        assert rpc.rpcs <= len(player.model.expected) + 3 * len(script)
        assert service.status().journals == 0
        await client.aclose()

    asyncio.run(run())
