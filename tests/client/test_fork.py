"""New clients in forked processes."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from gazette_aio.client import connect
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import listing

SCRIPT = """
import asyncio, gc, os, signal, sys, time
from gazette_aio.client import connect

async def use():
    async with connect(sys.argv[1]) as client:
        return len((await client.list()).journals)

def in_child(main, threads=1):
    # gRPC ends its threads some time after its last channel is closed. A child forked before that
    # has copies of their locks, and hangs.
    while len(os.listdir("/proc/self/task")) > threads:
        time.sleep(0)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    signal.alarm(60)
    asyncio._set_running_loop(None)  # Private: asyncio has no other way out of a loop in a fork.
    try:
        print("child", asyncio.run(main()), flush=True)
    except RuntimeError as error:
        print("child", error, flush=True)
    os._exit(0)

async def connected():
    async with connect(sys.argv[1]) as client:
        await client.list()
        in_child(use, threads=sys.maxsize)
        return len((await client.list()).journals)

async def leave_behind():
    client = connect(sys.argv[1])
    return len((await client.list()).journals)

print("parent", asyncio.run(use()), flush=True)
in_child(use)
print("parent", asyncio.run(leave_behind()), flush=True)
gc.collect()
in_child(use)
print("parent", asyncio.run(connected()), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")
@pytest.mark.slow  # It's another process, which imports everything.
async def test_new_clients_after_a_fork(broker: StubBroker) -> None:
    """They work if there was none at that time, and otherwise tell why they don't."""
    broker.list_handler = lambda request: listing("a/one", "a/two")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        broker.endpoint,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    first, after, left_behind, after_that, while_connected, last = output.decode().splitlines()
    assert first == left_behind == last == "parent 2"
    assert after == after_that == "child 2"
    assert while_connected.startswith("child this process was forked while a client was connected")


async def test_a_client_of_another_thread_connects_meanwhile(
    broker: StubBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It doesn't disturb the look at the clients that were connected before a fork."""
    has_connected, may_close = threading.Event(), threading.Event()
    process = os.getpid()

    async def connects() -> None:
        async with connect(broker.endpoint) as client:
            client.context.dispatcher.default()
            has_connected.set()
            await asyncio.to_thread(may_close.wait, 30)

    thread = threading.Thread(target=asyncio.run, args=(connects(),))

    def connects_first() -> int:
        if thread.ident is None:
            thread.start()
            assert has_connected.wait(30)
        return process

    async with connect(broker.endpoint) as one, connect(broker.endpoint) as two:
        one.context.dispatcher.default()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", connects_first)
            two.context.dispatcher.default()
        may_close.set()
        await asyncio.to_thread(thread.join, 30)
