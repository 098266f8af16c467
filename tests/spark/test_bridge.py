"""Coroutines which are called from threads that have no event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import JournalClient, connect
from gazette_aio.spark import bridge
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.fragments.test_direct_reads import CONTENT, Serving
from tests.client.support import JOURNAL, listing
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No test leaves a thread behind."""
    yield
    bridge.close()
    assert not bridge_threads()


def bridge_threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("gazette-spark")}


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def count(limit: int) -> AsyncGenerator[int]:
    for number in range(limit):
        await asyncio.sleep(0)
        yield number


class Closing:
    """An async iterator of numbers without end, which tells how it fared."""

    def __init__(self) -> None:
        self.made = 0
        self.closed = threading.Event()
        self.waits = threading.Event()
        self.gate_at = -1

    async def numbers(self) -> AsyncGenerator[int]:
        try:
            while True:
                if self.made == self.gate_at:
                    self.waits.set()
                    await asyncio.Event().wait()
                yield self.made
                self.made += 1
        finally:
            await asyncio.sleep(0)  # Closing takes a loop.
            self.closed.set()


def test_nothing_begins_before_the_first_use() -> None:
    items = bridge.iterate(lambda: count(3))
    assert not bridge_threads()
    del items
    assert not bridge_threads()


def test_run() -> None:
    assert [bridge.run(double(number)) for number in range(3)] == [0, 2, 4]
    assert bridge_threads() == {"gazette-spark"}

    async def where() -> tuple[int, asyncio.AbstractEventLoop]:
        return threading.get_ident(), asyncio.get_running_loop()

    assert bridge.run(where()) == bridge.run(where(), timeout=60)
    assert bridge.run(where())[0] != threading.get_ident()


def test_errors_come_with_their_tracebacks() -> None:
    async def deep() -> None:
        raise pb.StoreError("deep down")

    async def fails() -> int:
        await asyncio.sleep(0)
        await deep()
        return 1

    async def fails_later() -> AsyncIterator[int]:
        yield 1
        await deep()

    for timeout in (None, 5.0):
        with pytest.raises(pb.StoreError, match="deep down") as info:
            bridge.run(fails(), timeout)
        assert {"fails", "deep"} <= {f.name for f in traceback.extract_tb(info.tb)}
    items = bridge.iterate(fails_later)
    assert next(items) == 1
    with pytest.raises(pb.StoreError, match="deep down") as info:
        next(items)
    assert {"fails_later", "deep"} <= {f.name for f in traceback.extract_tb(info.tb)}
    assert list(items) == []


def test_make_may_fail() -> None:
    def make() -> AsyncIterator[int]:
        raise pb.StoreError("no iterator")

    with pytest.raises(pb.StoreError, match="no iterator"):
        list(bridge.iterate(make))


def test_a_timeout_waits_for_the_end_of_the_coroutine() -> None:
    ended = False

    async def waits() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(TimeoutError):
        bridge.run(waits(), timeout=0.01)
    assert ended

    async def times_out() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        bridge.run(times_out())


def test_iterate() -> None:
    assert list(bridge.iterate(lambda: count(100))) == list(range(100))
    assert list(bridge.iterate(lambda: count(0), depth=1)) == []
    with pytest.raises(pb.ConfigurationError, match="depth"):
        bridge.iterate(lambda: count(1), depth=0)


@pytest.mark.parametrize("depth", [1, 4])
def test_read_ahead_is_bounded(depth: int) -> None:
    closing = Closing()
    items = bridge.iterate(closing.numbers, depth)
    for number in range(20):
        assert next(items) == number
        for _ in range(30):
            bridge.run(asyncio.sleep(0))  # It would go on, if it could.
        # What was taken, and what's ahead of it.
        assert closing.made == number + depth
    items.close()
    assert closing.closed.is_set()


def test_items_are_not_held_on_to() -> None:
    class Item:
        pass

    async def make() -> AsyncIterator[object]:
        item = Item()
        first = weakref.ref(item)
        yield item
        del item
        # Not even while the next one is awaited.
        await eventually(lambda: first() is None)
        yield 2

    items = bridge.iterate(make)
    next(items)
    assert bridge.run(asyncio.to_thread(next, items), timeout=60) == 2


def test_threads_of_blocking_calls_end_with_the_loop() -> None:
    name = bridge.run(asyncio.to_thread(lambda: threading.current_thread().name))
    assert name in bridge_threads()
    bridge.close()
    assert not bridge_threads()


def test_threads_are_used_again_until_the_loop_ends() -> None:
    hops = [bridge.run(in_thread(threading.current_thread)) for _ in range(3)]
    assert len(set(hops)) == 1
    assert hops[0].is_alive()
    bridge.close()
    hops[0].join(60)
    assert not hops[0].is_alive()


@pytest.mark.parametrize("gate_at", [-1, 0, 1, 3])
@pytest.mark.parametrize("how", ["close", "drop", "raise"])
def test_who_stops_early_closes_the_iterator(gate_at: int, how: str) -> None:
    closing = Closing()
    closing.gate_at = gate_at
    items = bridge.iterate(closing.numbers)
    if gate_at:
        assert next(items) == 0
    if gate_at > 0:
        assert closing.waits.wait(60)
    if how == "close":
        items.close()
        items.close()
        assert list(items) == []
    elif how == "raise":
        with pytest.raises(pb.StoreError):
            items.throw(pb.StoreError("the consumer's"))
        assert list(items) == []
    else:
        del items
    # It never began, if nothing was asked for.
    assert closing.closed.is_set() is (gate_at != 0)


def test_a_generator_which_is_collected_in_the_loop_does_not_block_it() -> None:
    closing = Closing()
    items = [bridge.iterate(closing.numbers)]
    assert next(items[0]) == 0

    async def drop() -> None:
        items.clear()
        gc.collect(0)

    bridge.run(drop(), timeout=60)
    assert closing.closed.wait(60)


def test_a_generator_which_is_collected_within_a_cycle_ends_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closing = Closing()
    cycle: list[object] = []
    cycle.append(cycle)
    items = bridge.iterate(closing.numbers, depth=1)
    cycle.append(items)
    assert next(items) == 0
    assert bridge.run(double(1)) == 2
    del cycle, items

    async def collect() -> None:
        gc.collect()

    bridge.run(collect())
    assert closing.closed.wait(60)
    assert not caplog.text


def test_errors_do_not_keep_what_they_were_raised_in() -> None:
    class Rows:
        pass

    rows: list[weakref.ref[Rows]] = []

    async def fail() -> None:
        content = Rows()
        rows.append(weakref.ref(content))
        raise pb.StoreError("damaged")

    async def fail_later() -> AsyncIterator[int]:
        yield 1
        await fail()

    gc.disable()
    try:
        with pytest.raises(pb.StoreError):
            bridge.run(fail())
        with pytest.raises(pb.StoreError):
            list(bridge.iterate(fail_later))
        bridge.close()
        assert [row() for row in rows] == [None, None]
    finally:
        gc.enable()


def test_an_iterator_which_does_not_end_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bridge, "CLOSE_SECONDS", 0.05)
    may_end = asyncio.Event()

    async def stubborn() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await may_end.wait()

    items = bridge.iterate(stubborn, depth=1)
    assert next(items) == 1
    items.close()
    assert "doesn't end" in caplog.text
    monkeypatch.undo()

    async def end() -> None:
        may_end.set()
        # All but the one which keeps the loop going.
        others = {task for task in asyncio.all_tasks() if task.get_name() != "gazette-spark"}
        await asyncio.wait(others - {asyncio.current_task()})

    bridge.run(end())


BLOCKED = """
import threading
from gazette_aio.spark import bridge

async def block():
    blocked.set()
    threading.Event().wait()

bridge.CLOSE_SECONDS = 0.05
blocked = threading.Event()
threading.Thread(target=lambda: bridge.run(block()), daemon=True).start()
blocked.wait()
"""


def test_a_loop_which_is_blocked_does_not_keep_the_interpreter() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, check=True
    )
    assert b"is blocked" in ended.stderr


def test_the_loop_does_not_wait_for_itself() -> None:
    async def nested() -> None:
        with pytest.raises(RuntimeError, match="own thread"):
            bridge.run(double(1))
        with pytest.raises(RuntimeError, match="own thread"):
            bridge.run(double(1), timeout=1)
        with pytest.raises(RuntimeError, match="own thread"):
            next(bridge.iterate(lambda: count(1)))
        with pytest.raises(RuntimeError, match="own thread"):
            next(items)
        with pytest.raises(RuntimeError, match="own thread"):
            bridge.close()

    items = bridge.iterate(lambda: count(9))
    assert next(items) == 0
    bridge.run(nested())


async def test_another_loop_may_wait() -> None:
    """As that of a notebook does."""
    assert bridge.run(double(4)) == 8


def test_a_task_which_ends_the_interpreter_does_not_end_the_loop() -> None:
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit, match="3"):
        bridge.run(leave())
    assert bridge.run(double(2)) == 4


def test_close_ends_what_is_under_way() -> None:
    closing = Closing()
    closing.gate_at = 1
    items = bridge.iterate(closing.numbers)
    assert next(items) == 0
    assert closing.waits.wait(60)
    waiting = threading.Event()

    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    with concurrent.futures.ThreadPoolExecutor() as threads:
        run = threads.submit(bridge.run, wait())
        assert waiting.wait(60)
        bridge.close()
        with pytest.raises(concurrent.futures.CancelledError):
            run.result(60)
    with pytest.raises(concurrent.futures.CancelledError):
        list(items)
    assert closing.closed.is_set()
    bridge.close()
    # The next use begins anew.
    assert bridge.run(double(1)) == 2


def test_a_suspended_iterator_survives_close() -> None:
    closing = Closing()
    items = bridge.iterate(closing.numbers, depth=2)
    assert next(items) == 0
    bridge.close()
    assert closing.closed.is_set()
    items.close()


class FakeClient:
    def __init__(self, key: str) -> None:
        self.key = key
        self.closes = 0

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closes += 1
        if self.key == "bad":
            raise pb.StoreError("it doesn't close")


def test_clients_are_kept_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    bad = bridge.run(bridge.client_of("bad", FakeClient))
    good = bridge.run(bridge.client_of("good", FakeClient))
    assert bridge.run(bridge.client_of("good", FakeClient)) is good
    assert bridge.run(bridge.client_of("bad", FakeClient)) is bad is not good
    bridge.close()
    assert (bad.closes, good.closes) == (1, 1)
    assert "doesn't close" in caplog.text
    assert bridge.run(bridge.client_of("good", FakeClient)) is not good


async def test_clients_belong_to_their_loops() -> None:
    here = await bridge.client_of("key", FakeClient)
    assert await bridge.client_of("key", FakeClient) is here
    there = bridge.run(bridge.client_of("key", FakeClient))
    assert there is not here
    await bridge.close_clients()
    await bridge.close_clients()
    assert (here.closes, there.closes) == (1, 0)


async def test_clients_whose_factory_fails_are_made_again() -> None:
    def fail(key: str) -> FakeClient:
        raise pb.ConfigurationError(f"no {key}")

    with pytest.raises(pb.ConfigurationError, match="no key"):
        await bridge.client_of("key", fail)
    assert (await bridge.client_of("key", FakeClient)).key == "key"
    await bridge.close_clients()


async def test_reads_of_a_journal(stub: StubBroker) -> None:
    """Many uses take one client, one connection, and the same threads."""
    Serving(stub)
    clients: list[JournalClient] = []

    def make(endpoint: str) -> JournalClient:
        clients.append(connect(endpoint))
        return clients[-1]

    async def read(begin: int, end: int) -> AsyncGenerator[tuple[int, bytes]]:
        client = await bridge.client_of(stub.endpoint, make)
        async with BoundedReader(client, JOURNAL, begin, end, direct=False) as reader:
            async for item in reader:
                yield item

    def use(number: int) -> bytes:
        items = bridge.iterate(lambda: read(number, 60))
        if number % 3 == 0:
            return next(items)[1]  # And no more of it.
        return b"".join(data for _, data in items)

    assert await asyncio.to_thread(use, 1) == CONTENT[1:]
    before = {thread.ident for thread in threading.enumerate()}
    for number in range(50):
        data = await asyncio.to_thread(use, number)
        assert CONTENT[number:].startswith(data)
        assert data if number % 3 == 0 else data == CONTENT[number:]
    assert len(clients) == 1
    assert clients[0].status().streams == ()
    after = {thread.ident for thread in threading.enumerate()}
    # Those of the test's own pool may grow.
    assert {i for i in after - before if i is not None} <= {
        t.ident for t in threading.enumerate() if t.name.startswith("asyncio_")
    }
    assert bridge_threads() == {"gazette-spark"}
    await asyncio.to_thread(bridge.close)
    assert ", closed," in repr(clients[0])


@pytest.fixture
async def stub() -> AsyncIterator[StubBroker]:
    async with StubBroker() as broker:
        broker.list_handler = lambda request: listing("a/one", "a/two")
        yield broker


# Other processes.

_PREAMBLE = """
import asyncio, os, signal, sys, threading
import gazette_aio.spark.bridge as bridge
assert threading.active_count() == 1
from gazette_aio.client import connect

async def names(address):
    client = await bridge.client_of(address, connect)
    return len((await client.list()).journals)

async def numbers():
    for number in range(100):
        yield number

async def here():
    return os.getpid(), threading.get_ident()

def in_child(function):
    sys.stdout.flush()
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    signal.alarm(20)
    try:
        print("child", function(), flush=True)
    except Exception as error:
        print("child", type(error).__name__, error, flush=True)
    os._exit(0)
"""

_FORKS = """
items = bridge.iterate(numbers)
assert [next(items) for _ in range(3)] == [0, 1, 2]
parent = bridge.run(here())
assert parent[0] == os.getpid()

def own_loop():
    child = bridge.run(here(), timeout=60)
    assert child[0] == os.getpid() != parent[0]
    assert list(bridge.iterate(numbers)) == list(range(100))
    return "works"

in_child(own_loop)
in_child(lambda: next(items))  # What was begun by the parent isn't the child's.
print("parent", next(items), bridge.run(here()) == parent)
print("parent", bridge.run(names(sys.argv[1])))
in_child(own_loop)
in_child(lambda: bridge.run(names(sys.argv[1]), timeout=60))
print("parent", bridge.run(names(sys.argv[1])))
bridge.close()
in_child(lambda: bridge.run(names(sys.argv[1]), timeout=60))
print("parent", bridge.run(names(sys.argv[1])))
"""

_EXIT = """
items = bridge.iterate(numbers)
next(items)

class Client:
    def __init__(self, key):
        pass

    async def aclose(self):
        await asyncio.sleep(0)
        print("closed")

bridge.run(bridge.client_of("key", Client))
print(bridge.run(names(sys.argv[1])))
"""


async def script(stub: StubBroker, text: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        "-c",
        _PREAMBLE + text,
        stub.endpoint,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    # gRPC has a word to say on forks. Warnings would be errors, which nobody may catch.
    assert not any(word in errors for word in (b"Traceback", b"Warning", b"ignored")), errors
    return output.decode().splitlines()


@pytest.mark.slow  # It's another process, which imports everything.
async def test_forks(stub: StubBroker) -> None:
    lines = await script(stub, _FORKS)
    assert lines[:5] == [
        "child works",
        "child UsageError this process was forked since the iteration began",
        "parent 3 True",
        "parent 2",
        "child works",
    ]
    # gRPC doesn't survive it; but nobody waits for ever.
    assert lines[5].startswith("child UsageError this process was forked while a client was")
    assert lines[6:] == ["parent 2", "child 2", "parent 2"]


@pytest.mark.slow  # It's another process, which imports everything.
async def test_clients_are_closed_when_the_interpreter_exits(stub: StubBroker) -> None:
    assert await script(stub, _EXIT) == ["2", "closed"]
