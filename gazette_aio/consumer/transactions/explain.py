"""Texts of errors, which statuses of shards show."""

from __future__ import annotations

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


@contextmanager
def step(name: str) -> Generator[None, None, None]:
    """Explain an error of the block. Cancellation passes as it is."""
    try:
        yield
    except Exception as error:
        raise explained(name, error) from error
