"""Hooks of an application, inspected once and called for one shard."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from gazette_aio.consumer.application.application import (
    Application,
    BatchConsumer,
    BeginFinisher,
    MessageProducer,
)
from gazette_aio.message import json_adapter
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.message import Adapter, Envelope, Publisher


class Hooks:
    """Hooks of an application, for one shard.

    Plain and async hooks are called alike, in the event loop.

    Args:
        application: The application.

    Raises:
        ConfigurationError: The application has neither `consume_message()` nor `consume_batch()`,
            lacks `adapter()` or `new_store()`, has an async adapter, has some hooks only of
            BeginFinisher or of MessageProducer, or has `run_in_thread = True`.
    """

    def __init__(self, application: Application[Any, Any]) -> None:
        self.application = application
        """The application."""
        kind = type(application).__name__
        for hook in ("adapter", "new_store"):
            if not _has(application, hook):
                raise ConfigurationError(f"{kind} has no {hook}()")
        for hook in ("adapter", "output_adapter"):
            if inspect.iscoroutinefunction(getattr(application, hook, None)):
                raise ConfigurationError(f"{kind}: {hook}() must be a plain function")
        self.consumes_batches: bool = _implements(application, BatchConsumer)
        """Whether the application consumes batches."""
        self.consume: Callable[..., Any]
        """`consume_batch()` or else `consume_message()`."""
        if self.consumes_batches:
            self.consume = cast("BatchConsumer[Any, Any]", application).consume_batch
        elif _has(application, "consume_message"):
            self.consume = application.consume_message
        else:
            raise ConfigurationError(f"{kind} has neither consume_message() nor consume_batch()")
        if getattr(application, "run_in_thread", False):
            raise ConfigurationError(
                f"{kind} sets run_in_thread, but hooks run in the event loop: do blocking work by "
                "`await asyncio.to_thread(...)` in an async hook, best in consume_batch()"
            )
        self.decides_errors: bool = _has(application, "on_message_error")
        """Whether the application has `on_message_error()`."""
        self._begin_finisher: BeginFinisher[Any] | None = None
        if _implements(application, BeginFinisher):
            self._begin_finisher = cast("BeginFinisher[Any]", application)
        self.producer: MessageProducer[Any, Any] | None = None
        """The application, if it reads messages of its own."""
        if _implements(application, MessageProducer):
            self.producer = cast("MessageProducer[Any, Any]", application)

    def output_adapter(self, shard: Shard) -> Adapter[Any]:
        """Return what encodes the messages of the shard's publisher."""
        if _has(self.application, "output_adapter"):
            return self.application.output_adapter(shard)
        return json_adapter()

    async def new_store(self, shard: Shard, recorder: Any) -> Store:
        """Return the store of a shard.

        Args:
            shard: The shard.
            recorder: Recorder of the recovery log, or None.

        Cancellation: aborts.
        """
        store: Store = await awaited(self.application.new_store(shard, recorder))
        return store

    async def begin_txn(self, shard: Shard, store: Store) -> None:
        """Begin a transaction, if the application wants to know.

        Cancellation: aborts — the transaction hasn't begun.
        """
        if self._begin_finisher is not None:
            await awaited(self._begin_finisher.begin_txn(shard, store))

    def finished_txn(
        self, shard: Shard, store: Store, commit: OpFuture[None]
    ) -> Awaitable[object] | None:
        """End a transaction, if the application wants to know, and return what's to be awaited."""
        if self._begin_finisher is None:
            return None
        return self._begin_finisher.finished_txn(shard, store, commit)

    async def on_message_error(
        self, shard: Shard, envelope: Envelope[Any], error: Exception
    ) -> object:
        """Return what the application decides about a message that can't be consumed.

        Cancellation: aborts.
        """
        return await awaited(self.application.on_message_error(shard, envelope, error))

    async def finalize_txn(self, shard: Shard, store: Store, publisher: Publisher[Any]) -> None:
        """Finish a transaction before it starts to commit, if the application wants to.

        Cancellation: aborts.
        """
        if _has(self.application, "finalize_txn"):
            await awaited(self.application.finalize_txn(shard, store, publisher))


async def awaited(returned: Any) -> Any:
    """Return the result of a plain or an async hook.

    Cancellation: aborts — the hook is cancelled.
    """
    return await returned if inspect.isawaitable(returned) else returned


def _has(application: object, hook: str, protocol: type = Application) -> bool:
    """Return whether an application defines a hook, rather than inherits it of the protocol."""
    defined = getattr(application, hook, None)
    return callable(defined) and getattr(defined, "__func__", None) is not vars(protocol)[hook]


def _implements(application: object, protocol: type) -> bool:
    """Return whether an application defines the hooks of an optional protocol.

    Raises:
        ConfigurationError: It defines some of them only, which would never be called.
    """
    hooks = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [hook for hook in hooks if not _has(application, hook, protocol)]
    if not missing:
        return True
    defined = [hook for hook in hooks if hook not in missing]
    if defined:
        raise ConfigurationError(
            f"{type(application).__name__} has {_listed(defined)}, but no {_listed(missing)}: "
            f"{protocol.__name__} needs all of them"
        )
    return False


def _listed(hooks: list[str]) -> str:
    return " and ".join(f"{hook}()" for hook in hooks)
