"""Hooks of applications, plain and async."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.application import Application, BeginFinisher
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.finisher import Finisher
from gazette_aio.message import JSONAdapter, json_adapter
from gazette_aio.protocol.errors import ConfigurationError


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
    assert hooks.producer is None
    assert not hooks.consumes_batches
    assert isinstance(hooks.output_adapter(ANY), JSONAdapter)
    assert await hooks.new_store(ANY, None) == ("store", ANY, None)
    await hooks.begin_txn(ANY, ANY)
    await hooks.finalize_txn(ANY, ANY, ANY)
    assert hooks.finished_txn(ANY, ANY, finished_operation()) is None


async def test_hooks_that_are_only_inherited_of_the_protocol_are_not_there():
    class Derived(Application[Any, Any]):
        def adapter(self, spec: Any, /) -> Any:
            return json_adapter()

        def new_store(self, shard: Any, recorder: Any, /) -> Any:
            return None

        def consume_batch(self, *_: Any) -> int:
            return 0

    hooks = Hooks(Derived())
    assert isinstance(hooks.output_adapter(ANY), JSONAdapter)
    assert hooks.consumes_batches


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


def test_hooks_in_threads_are_refused():
    application: Any = Least()
    application.run_in_thread = True
    with pytest.raises(ConfigurationError, match=r"`await asyncio\.to_thread\(\.\.\.\)`"):
        Hooks(application)


@pytest.mark.parametrize("hook", ["adapter", "output_adapter"])
def test_adapters_are_plain(hook: str):
    async def adapter(_: Any) -> Any:
        return json_adapter()

    application: Any = Least()
    setattr(application, hook, adapter)
    with pytest.raises(ConfigurationError, match=rf"{hook}\(\) must be a plain function"):
        Hooks(application)


async def test_hooks_see_the_context_variables_that_earlier_ones_set():
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
    hooks = Hooks(application)
    tenant.set("caller")
    await hooks.begin_txn(ANY, ANY)
    await hooks.finalize_txn(ANY, ANY, ANY)
    await Finisher(hooks, ANY_SHARD, ANY).committing(finished_operation())
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
