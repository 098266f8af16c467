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


def hook(*_: Any) -> None:
    pass


async def async_hook(_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        ({"consume_message": None}, "neither consume_message"),
        ({"adapter": None}, "has no adapter"),
        ({"new_store": None}, "has no new_store"),
        ({"adapter": async_hook}, r"adapter\(\) must be a plain function"),
        ({"output_adapter": async_hook}, r"output_adapter\(\) must be a plain function"),
        ({"run_in_thread": True}, r"`await asyncio\.to_thread\(\.\.\.\)`"),
        ({"begin_txn": hook}, r"has begin_txn\(\), but no finished_txn\(\): BeginFinisher needs"),
        ({"finished_txn": hook}, r"has finished_txn\(\), but no begin_txn\(\)"),
        (
            {"read_messages": hook},
            r"has read_messages\(\), but no replay_range\(\) and read_through\(\): MessageP",
        ),
        (
            {"read_messages": hook, "read_through": hook},
            r"read_through\(\), but no replay_range\(\)",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_applications_that_are_refused(hooks: dict[str, Any], text: str):
    application: Any = Least()
    vars(application).update(hooks)
    with pytest.raises(ConfigurationError, match=text):
        Hooks(application)


def test_hooks_that_are_inherited_of_an_optional_protocol_are_not_there():
    class Inheriting(Least, BeginFinisher[Any]):
        def begin_txn(self, shard: Any, store: Any, /) -> None:
            pass

    application: Any = Inheriting()
    with pytest.raises(ConfigurationError, match=r"no finished_txn\(\)"):
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
