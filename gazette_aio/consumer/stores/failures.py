"""Failures of stores: of their files and databases, and by other processes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gazette_aio.protocol.errors import FencedError, GazetteError, StoreError

if TYPE_CHECKING:
    from collections.abc import Generator


@contextlib.contextmanager
def explained(
    step: str, failures: type[Exception] | tuple[type[Exception], ...] = OSError
) -> Generator[None]:
    """Raise failures of the block as a StoreError, with the step before their text.

    Errors of this package pass as they are.
    """
    try:
        yield
    except GazetteError:
        raise
    except failures as error:
        raise StoreError(f"{step}: {error}") from error


def fenced() -> FencedError:
    """Return the error of a commit whose shard another process has restored since."""
    return FencedError("checkpoint fence was updated (ie, by a new primary)")
