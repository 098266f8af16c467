"""Hooks of applications, plain, async and in threads."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.application import Application, BeginFinisher, DeferToNextTransaction
from gazette_aio.consumer.application import hooks as hooks_module
from gazette_aio.consumer.application.hook_thread import HookThread
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.finisher import Finisher
from gazette_aio.message import json_adapter
from gazette_aio.protocol.errors import ConfigurationError
from tests.waiting import eventually, turns


class Least:
    """An application without optional hooks."""

    def adapter(self, spec: Any) -> Any:
        return json_adapter()

    def new_store(self, shard: Any, recorder: Any) -> Any:
        return ("store", shard, recorder)

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        pass


ANY: Any = object()
ANY_SHARD: Any = SimpleNamespace(id="shard-A")


async def test_optional_hooks_may_be_left_out():
    application: Any = Least()
    hooks = Hooks(application)
    assert not hooks.is_producer
    assert hooks.consume_batch is None
    assert hooks.output_adapter(ANY) is None
    assert await hooks.new_store(ANY, None, print) == ("store", ANY, None)
    await hooks.begin_txn(ANY, ANY)
    await hooks.finalize_txn(ANY, ANY, ANY)
    assert hooks.finished_txn(ANY, ANY, finished_operation()) is None
    await hooks.aclose()


async def test_hooks_that_are_only_inherited_of_the_protocol_are_not_there():
    class Derived(Application[Any, Any]):
        def adapter(self, spec: Any, /) -> Any:
            return json_adapter()

        def new_store(self, shard: Any, recorder: Any, /) -> Any:
            return None

        def consume_batch(self, *_: Any) -> int:
            return 0

    hooks = Hooks(Derived())
    assert hooks.output_adapter(ANY) is None
    assert hooks.consume_message is None
    assert hooks.consume_batch is not None


def test_an_application_has_to_consume():
    class Without(Application[Any, Any]):
        def adapter(self, spec: Any, /) -> Any:
            return json_adapter()

        def new_store(self, shard: Any, recorder: Any, /) -> Any:
            return None

    with pytest.raises(ConfigurationError, match="neither consume_message"):
        Hooks(Without())


@pytest.mark.parametrize("hook", ["adapter", "new_store"])
def test_an_application_has_to_have_required_hooks(hook: str):
    application: Any = Least()
    setattr(application, hook, None)
    with pytest.raises(ConfigurationError, match=f"has no {hook}"):
        Hooks(application)


@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        (["begin_txn"], r"has begin_txn\(\), but no finished_txn\(\): BeginFinisher needs"),
        (["finished_txn"], r"has finished_txn\(\), but no begin_txn\(\)"),
        (
            ["read_messages"],
            r"has read_messages\(\), but no replay_range\(\) and read_through\(\): MessageP",
        ),
        (["read_messages", "read_through"], r"read_through\(\), but no replay_range\(\)"),
    ],
    ids=str,
)
def test_optional_protocols_are_whole(hooks: list[str], text: str):
    application: Any = Least()
    for hook in hooks:
        setattr(application, hook, lambda *_: None)
    with pytest.raises(ConfigurationError, match=text):
        Hooks(application)


def test_hooks_that_are_inherited_of_an_optional_protocol_are_not_there():
    class Inheriting(Least, BeginFinisher[Any]):
        def begin_txn(self, shard: Any, store: Any, /) -> None:
            pass

    application: Any = Inheriting()
    with pytest.raises(ConfigurationError, match=r"no finished_txn\(\)"):
        Hooks(application)


@pytest.mark.parametrize("hook", ["adapter", "output_adapter"])
def test_adapters_are_plain(hook: str):
    async def adapter(_: Any) -> Any:
        return json_adapter()

    application: Any = Least()
    setattr(application, hook, adapter)
    with pytest.raises(ConfigurationError, match=rf"{hook}\(\) must be a plain function"):
        Hooks(application)


def test_an_async_consuming_hook_cant_run_in_a_thread():
    class Threaded(Least):
        run_in_thread = True

        async def consume_batch(self, *_: Any) -> int:
            return 0

    application: Any = Threaded()
    with pytest.raises(ConfigurationError, match="consuming hook is async"):
        Hooks(application)


async def test_plain_hooks_share_a_thread_and_async_ones_stay_in_the_loop():
    threads: dict[str, threading.Thread] = {}

    class Threaded(Least):
        run_in_thread = True

        def begin_txn(self, shard: Any, store: Any) -> None:
            threads["begin"] = threading.current_thread()

        def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
            threads["finalize"] = threading.current_thread()

        async def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            threads["finished"] = threading.current_thread()

    application: Any = Threaded()
    hooks = Hooks(application, "shard-A")
    await hooks.begin_txn(ANY, ANY)
    await hooks.finalize_txn(ANY, ANY, ANY)
    await Finisher(hooks, ANY_SHARD, ANY).committing(finished_operation())
    await hooks.aclose()
    assert threads["begin"] is threads["finalize"]
    assert "shard-A" in threads["begin"].name
    assert threads["finished"] is threading.current_thread()


@pytest.mark.parametrize("run_in_thread", [False, True])
async def test_hooks_see_the_context_variables_that_earlier_ones_set(run_in_thread: bool):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    words = contextvars.ContextVar[str]("words")
    seen: list[str] = []

    class Setting(Least):
        def begin_txn(self, shard: Any, store: Any) -> None:
            seen.append(tenant.get())
            tenant.set("acme")
            words.set("to be")

        def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
            seen.extend((tenant.get(), words.get()))
            tenant.set("nobody")

        async def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            seen.extend((tenant.get(), words.get()))

    application: Any = Setting()
    application.run_in_thread = run_in_thread
    hooks = Hooks(application)
    tenant.set("caller")
    await hooks.begin_txn(ANY, ANY)
    await hooks.finalize_txn(ANY, ANY, ANY)
    await Finisher(hooks, ANY_SHARD, ANY).committing(finished_operation())
    await hooks.aclose()
    assert seen == ["caller", "acme", "to be", "nobody", "to be"]


@pytest.mark.parametrize("has_failed", [False, True])
async def test_the_end_of_a_transaction_resets_what_its_begin_has_set(
    has_failed: bool, caplog: pytest.LogCaptureFixture
):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    tokens: list[contextvars.Token[str]] = []

    class Resetting(Least):
        def begin_txn(self, shard: Any, store: Any) -> None:
            tokens.append(tenant.set("acme"))

        def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            tenant.reset(tokens.pop())

    hooks = Hooks(Resetting())
    finisher = Finisher(hooks, ANY_SHARD, ANY)
    await hooks.begin_txn(ANY, ANY)
    assert tenant.get() == "acme"
    await (finisher.failed if has_failed else finisher.committing)(finished_operation())
    assert tenant.get() == "nobody"
    assert not caplog.records


async def test_the_context_variables_of_a_hook_in_a_thread_are_kept_whatever_it_ends_by():
    tenant = contextvars.ContextVar("tenant", default="nobody")
    entered, leave = threading.Event(), threading.Event()
    thread = HookThread("shard-A")

    def defer() -> None:
        tenant.set("acme")
        raise DeferToNextTransaction

    with pytest.raises(DeferToNextTransaction):
        await thread.call(defer)
    assert tenant.get() == "acme"

    def begin() -> None:
        entered.set()
        leave.wait()
        tenant.set("umbrella")

    async def cancelled() -> str:
        with pytest.raises(asyncio.CancelledError):
            await thread.call(begin)
        return tenant.get()

    task = asyncio.create_task(cancelled())
    await eventually(entered.is_set)
    task.cancel()
    leave.set()
    assert await task == "umbrella"
    await thread.aclose()


async def test_a_cancelled_hook_in_a_thread_is_waited_for():
    entered, leave = threading.Event(), threading.Event()

    def hook() -> None:
        entered.set()
        leave.wait()

    thread = HookThread("shard-A")
    task = asyncio.create_task(thread.call(hook))
    await eventually(entered.is_set)
    task.cancel()
    await turns()
    task.cancel()
    await turns()
    assert not task.done()
    leave.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    await thread.aclose()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_store_that_is_made_after_a_cancellation_is_handed_over(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
):
    """Whether the hook returns while its cancelled caller still waits for it, or later."""
    seconds = 0.01 if is_late else 30.0
    monkeypatch.setattr(hooks_module, "HookThread", partial(HookThread, abandon_seconds=seconds))
    entered, leave = threading.Event(), threading.Event()
    dropped: list[Any] = []

    class Threaded(Least):
        run_in_thread = True

        def new_store(self, shard: Any, recorder: Any) -> Any:
            entered.set()
            leave.wait()
            return "a store"

    application: Any = Threaded()
    hooks = Hooks(application)
    task = asyncio.create_task(hooks.new_store(ANY, None, dropped.append))
    await eventually(entered.is_set)
    task.cancel()
    if is_late:
        await asyncio.wait((task,))
        assert not dropped
    leave.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    await eventually(lambda: dropped == ["a store"])
    await hooks.aclose()


async def test_a_store_that_is_still_to_be_made_is_not():
    entered, leave = threading.Event(), threading.Event()
    dropped: list[Any] = []

    class Disguised(Least):
        run_in_thread = True

        def new_store(self, shard: Any, recorder: Any) -> Any:
            entered.set()
            leave.wait()
            return self.make()

        async def make(self) -> Any:
            raise AssertionError

    application: Any = Disguised()
    hooks = Hooks(application)
    task = asyncio.create_task(hooks.new_store(ANY, None, dropped.append))
    await eventually(entered.is_set)
    task.cancel()
    leave.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not dropped
    await hooks.aclose()


async def test_a_begin_that_outlives_its_cancellation_is_reported():
    entered, leave, begun = threading.Event(), threading.Event(), threading.Event()

    class Threaded(Least):
        run_in_thread = True

        def begin_txn(self, shard: Any, store: Any) -> None:
            entered.set()
            leave.wait()

        def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            pass

    application: Any = Threaded()
    hooks = Hooks(application)
    task = asyncio.create_task(hooks.begin_txn(ANY, ANY, begun.set))
    await eventually(entered.is_set)
    task.cancel()
    leave.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert begun.is_set()
    await hooks.aclose()


async def test_the_wait_for_a_hook_in_a_thread_is_bounded(caplog: pytest.LogCaptureFixture):
    leave = threading.Event()
    thread = HookThread("shard-A", abandon_seconds=0.01)
    task = asyncio.create_task(thread.call(leave.wait))
    await turns()
    with caplog.at_level(logging.WARNING):
        task.cancel()
        await asyncio.wait((task,))
    leave.set()
    await thread.aclose()
    assert task.cancelled()
    assert "a hook of shard-A is still running" in caplog.text


STUCK = """
import asyncio, threading
from gazette_aio.consumer.application.hook_thread import HookThread

async def main():
    entered = threading.Event()
    def hook():
        entered.set()
        threading.Event().wait()
    thread = HookThread("shard-A", abandon_seconds=0.01)
    task = asyncio.create_task(thread.call(hook))
    while not entered.is_set():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    await thread.aclose()

asyncio.run(main())
print("the end")
"""


async def test_a_hook_that_never_returns_does_not_keep_the_process_from_its_end():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUCK, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert output == b"the end\n"
    assert process.returncode == 0


async def test_the_end_of_a_thread_waits_for_all_its_callers():
    """Such as a request that waits beside the transactions, behind which its hook is queued."""
    entered, leave = threading.Event(), threading.Event()
    made: list[str] = []

    def hook(name: str) -> None:
        entered.set()
        leave.wait()
        made.append(name)

    thread = HookThread("shard-A")
    first, second = (asyncio.create_task(thread.call(hook, name)) for name in ("one", "two"))
    await eventually(entered.is_set)
    closing = asyncio.create_task(thread.aclose())
    await turns()
    assert not closing.done()
    leave.set()
    await closing
    assert made == ["one", "two"]
    await asyncio.gather(first, second)


async def test_the_thread_of_hooks_ends():
    thread = HookThread("shard-A")
    name = await thread.call(lambda: threading.current_thread().name)
    await thread.aclose()
    await thread.aclose()
    await eventually(lambda: all(each.name != name for each in threading.enumerate()))
    with pytest.raises(RuntimeError, match="the thread of shard-A has ended"):
        await thread.call(print)


async def test_a_hook_in_a_thread_that_raises_stop_iteration_fails():
    thread = HookThread("shard-A")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await thread.call(lambda: next(iter(())))
    await thread.aclose()


async def test_a_begin_in_a_thread_that_is_async_in_disguise_is_awaited():
    awaited: list[str] = []

    class Disguised(Least):
        run_in_thread = True

        async def begin(self) -> None:
            awaited.append("begin")

        def begin_txn(self, shard: Any, store: Any) -> Any:
            return self.begin()

        def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            pass

    application: Any = Disguised()
    hooks = Hooks(application)
    await hooks.begin_txn(ANY, ANY, lambda: awaited.append("begun"))
    assert awaited == ["begin", "begun"]
    await hooks.aclose()
