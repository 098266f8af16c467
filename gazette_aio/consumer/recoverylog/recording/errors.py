"""Exceptions of recorders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.protocol.errors import FencedError, StoreError, TransportError
from gazette_aio.protocol.status_errors import RegisterMismatchError

if TYPE_CHECKING:
    from gazette_aio.consumer.recoverylog.author import Author


class RecorderError(StoreError):
    """A recorder was misused or has failed. It records nothing further."""


class RecorderFencedError(RecorderError, FencedError):
    """Another process has taken over the recovery log. Nothing of this recorder is committed."""


def append_error(log: str, author: Author, error: Exception) -> Exception:
    """Return the error of a recorder whose append has failed."""
    if not isinstance(error, RegisterMismatchError):
        return error
    fenced = RecorderFencedError(
        f"another process has taken over the recovery log {log} from author {author}"
    )
    fenced.__cause__ = error
    return fenced


def is_cancellation(error: Exception) -> bool:
    """Return whether an error is that of a recorder that was cancelled."""
    return isinstance(error, TransportError) and error.code == "CANCELLED"


def later_error(log: str, error: Exception) -> Exception:
    """Return the error of a call after a recorder has failed, or was cancelled."""
    if is_cancellation(error):
        return error
    if isinstance(error, RecorderFencedError):
        return RecorderFencedError(*error.args)
    later = RecorderError(f"the recorder of {log} records nothing further: {error}")
    later.__cause__ = error
    return later
