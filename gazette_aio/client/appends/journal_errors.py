"""Errors of an AppendService that end all further appends, of one journal or of all."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.client.appends.futures import (
    AsyncOperation,
    OpFuture,
    finished_operation,
    parked,
)
from gazette_aio.protocol.status_errors import text_without_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ClearedError:
    """An error of a journal that `clear_error()` has cleared."""

    error: BaseException
    count: int
    """Number of errors of the journal that were cleared so far, this one included."""


class JournalErrors:
    """First error of each journal with a failed append, until it's cleared."""

    def __init__(self) -> None:
        self.cancellation: pb.TransportError | None = None
        """Error of all appends, once the service was cancelled."""
        self._failed: dict[str, AsyncOperation] = {}
        self._cleared: dict[str, ClearedError] = {}

    def cancel(self) -> None:
        """Have all appends fail. Idempotent."""
        if self.cancellation is None:
            self.cancellation = pb.TransportError("CANCELLED", "the append service was cancelled")

    def of(self, journal: str) -> Exception | None:
        """Return the error of all further appends of `journal`."""
        if (failed := self._failed.get(journal)) is None:
            return None
        error = failed.exception()
        assert isinstance(error, Exception)
        return error

    def note(self, journal: str, error: Exception) -> None:
        """Have all further appends of `journal` fail with `error`, unless they fail already."""
        if journal in self._failed:
            return
        _logger.warning(
            "appends of journal %s fail from now on: %s",
            journal,
            str(error),
            extra={"journal": journal},
        )
        self._failed[journal] = finished_operation(error)

    def clear(self, journal: str) -> BaseException | None:
        """Forget the error of `journal`, and return it."""
        error = self.of(journal)
        if error is not None:
            del self._failed[journal]
            before = self._cleared.get(journal)
            self._cleared[journal] = ClearedError(error, 1 if before is None else before.count + 1)
        return error

    def cleared(self, journal: str) -> ClearedError | None:
        """Return the latest error of `journal` that was cleared, or None."""
        return self._cleared.get(journal)

    def operations_except(self, journal: str) -> Iterator[OpFuture[Any]]:
        """Iterate the failed operations of other journals than `journal`, and a cancellation."""
        # Invariant: appends that a cancellation ended are forgotten, but no barrier succeeds later.
        if self.cancellation is not None:
            yield finished_operation(self.cancellation)
        for name, failed in self._failed.items():
            if name != journal:
                yield failed

    def __contains__(self, journal: str) -> bool:
        return journal in self._failed

    def __len__(self) -> int:
        return len(self._failed)


async def failed_dependency(
    dependencies: Iterable[asyncio.Future[Any]],
) -> pb.DependencyError | None:
    """Wait for the dependencies of an append. Return the error of the first that fails, or None.

    Cancellation: safe.
    """
    for dependency in dependencies:
        if not dependency.done():
            await parked(dependency)
        cause: BaseException | None
        if dependency.cancelled():
            cause = asyncio.CancelledError("it was cancelled")
        else:
            cause = dependency.exception()
        if cause is not None:
            error = pb.DependencyError(f"dependency failed: {text_without_endpoint(cause)}")
            error.__cause__ = cause
            return error
    return None
