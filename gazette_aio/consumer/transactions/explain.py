"""Texts of errors, which statuses of shards show."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gazette_aio.protocol.errors import TransactionError
from gazette_aio.protocol.status_errors import text_without_endpoint

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gazette_aio.message import Envelope


def explained(step: str, error: BaseException) -> TransactionError:
    """Return the error of a step, `step: type of the error: its text`, whose cause is the error."""
    failed = TransactionError(f"{step}: {described(error)}")
    failed.__cause__ = error
    return failed


def described(error: BaseException) -> str:
    """Return type and text of an error, or only the text if that names a step already."""
    text = text_without_endpoint(error)
    if type(error) is TransactionError:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(envelopes: Sequence[Envelope[Any]]) -> str:
    """Return where messages of one journal are, and the UUID of a single one that has any."""
    first, last = envelopes[0], envelopes[-1]
    if first is not last:
        return f"{first.journal} from offset {first.begin} to {last.end}"
    uuid = f" (UUID {first.uuid})" if first.uuid.int else ""
    return f"{first.journal} at offset {first.begin}{uuid}"


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
def explaining(name: str) -> Generator[None, None, None]:
    """Explain an error of the block. Cancellation passes as it is."""
    try:
        yield
    except Exception as error:
        raise explained(name, error) from error
