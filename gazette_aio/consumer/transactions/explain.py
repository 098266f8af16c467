"""Texts of errors, which statuses of shards show."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gazette_aio.protocol.errors import TransactionError
from gazette_aio.protocol.status_errors import text_without_endpoint

if TYPE_CHECKING:
    from collections.abc import Generator


def explained(step: str, error: BaseException) -> TransactionError:
    """Return the error of a step, `step: text of the error`, whose cause is the error.

    Wire: statuses of shards, and tools that read them, have these texts of Gazette.
    """
    failed = TransactionError(f"{step}: {text_without_endpoint(error) or repr(error)}")
    failed.__cause__ = error
    return failed


def failure_of(error: BaseException, cancelled: str) -> Exception:
    """Return why a shard fails, or raise what ends the task, or the process.

    Args:
        error: What was raised. It may be a BaseException that isn't a cancellation: modules in
            Rust raise their panics so, which must not end the other shards of the member.
        cancelled: Text for a cancellation that nobody asked for: a hook may raise one by itself,
            such as by awaiting a cancelled task.
    """
    match error:
        case Exception():
            return error
        case KeyboardInterrupt() | SystemExit() | GeneratorExit():
            raise error
        case asyncio.CancelledError():
            if (task := asyncio.current_task()) is not None and task.cancelling():
                try:
                    raise error
                finally:
                    del error  # Its traceback has this frame, and they would wait for a collection.
            return RuntimeError(cancelled)
        case _:
            failure = RuntimeError(repr(error))
            failure.__cause__ = error
            return failure


@contextmanager
def step(name: str) -> Generator[None, None, None]:
    """Explain an error of the block. Cancellation passes as it is."""
    try:
        yield
    except Exception as error:
        raise explained(name, error) from error
