"""Errors of an AppendService that end further appends, of one journal or of all.

Rules:

* A failed append ends all appends of its journal that were started before it failed: they were to
  follow it. This stays so when the error is passed over or cleared meanwhile.
* An append that is started later is tried afresh, as `passes()` decides: the broker judges it by
  itself, and refuses it again while the cause lasts. So a process heals once a journal exists.
* Passing over an error counts as clearing it (`ClearedError`), so that no transaction commits
  without the messages of the failed append. So does each append that the error ends later, as it
  was in line when the error was passed over. Barriers still include the error, even that of the
  journal they leave out: their owners rely on everything before, and only `clear()` says that they
  have seen to it.
* After a refusal by registers, another process owns the journal. Appends without a check of
  registers relied on the check that failed, so that only one with a check is tried afresh. The
  error stays until one has succeeded.
* A service of a shard, or of a recovery log, passes over no error: everything it appends builds
  on what it appended before, and the next owner of the shard starts from what is stored.
* A cancelled or closed service is at its end.
"""

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
    """An error of a journal that `clear_error()` has cleared, or that a new append passed over."""

    error: Exception
    count: int
    """Number of errors of the journal that were cleared so far, this one included."""


def passes(error: BaseException, request: pb.AppendRequest | str) -> bool:
    """Return whether an append that is started after `error` is tried afresh.

    Args:
        error: Error of earlier appends of its journal.
        request: Name of the journal, or the request of the append.
    """
    return not isinstance(error, pb.RegisterMismatchError) or (
        not isinstance(request, str) and request.HasField("check_registers")
    )


class JournalErrors:
    """First error of each journal with a failed append.

    Args:
        heals: Whether appends that are started later may be tried afresh.
    """

    def __init__(self, *, heals: bool) -> None:
        self._heals = heals
        self.cancellation: pb.TransportError | None = None
        """Error of all appends, once the service was cancelled."""
        self._failed: dict[str, AsyncOperation] = {}
        self._passed: dict[str, AsyncOperation] = {}
        self._cleared: dict[str, ClearedError] = {}
        self._changes: dict[str, int] = {}
        """Failures, and errors that were cleared, by journal."""

    def cancel(self) -> None:
        """Have all appends fail. Idempotent."""
        if self.cancellation is None:
            self.cancellation = pb.TransportError("CANCELLED", "the append service was cancelled")

    def of(self, journal: str) -> Exception | None:
        """Return the error of all further appends of `journal`."""
        return _error_of(self._failed.get(journal))

    def note(self, journal: str, error: Exception) -> None:
        """Have all further appends of `journal` fail with `error`, unless they fail already."""
        if error is self.of(journal):
            return
        self._note_change(journal)
        if journal in self._failed:
            return  # An append with a check of registers was tried. The first error stays.
        before = self._cleared.get(journal)
        if not self._passes_over(error, journal):
            level, text = (
                logging.WARNING,
                "appends of journal %s fail from now on, until clear_error(): %s",
            )
        else:
            # A service that tries the same in vain warns once.
            is_known = before is not None and str(before.error) == str(error)
            level = logging.DEBUG if is_known else logging.WARNING
            text = "appends of journal %s that were started by now fail: %s"
        _logger.log(level, text, journal, str(error), extra={"journal": journal})
        self._failed[journal] = finished_operation(error)

    def clear(self, journal: str) -> Exception | None:
        """Forget the error of `journal`, and return it."""
        passed = self._passed.pop(journal, None)
        if journal in self._failed:
            self._note_change(journal)
        return self._end(journal) or _error_of(passed)

    def clear_except(self, journal: str) -> None:
        """Forget the errors of all journals but one, and but refusals by registers."""
        for failed in self._failed.keys() - {journal}:
            error = self.of(failed)
            if error is not None and passes(error, failed):
                self.clear(failed)

    def against(self, request: pb.AppendRequest) -> Exception | None:
        """Return the error of an append that is about to be sent, or None."""
        error = self.of(request.journal)
        return None if self._passes_over(error, request) else error

    def pass_over(self, journal: str, request: pb.AppendRequest | str) -> None:
        """Pass over the error of a journal, if an append may.

        Args:
            journal: The journal.
            request: Request of an append that has succeeded, or the name of the journal for one
                that is being started.
        """
        failed = self._failed.get(journal)
        if failed is not None and self._passes_over(self.of(journal), request):
            self._passed.setdefault(journal, failed)
            self._end(journal)

    def _passes_over(self, error: Exception | None, request: pb.AppendRequest | str) -> bool:
        return self._heals and error is not None and passes(error, request)

    def _end(self, journal: str) -> Exception | None:
        error = _error_of(self._failed.pop(journal, None))
        if error is not None:
            before = self._cleared.get(journal)
            self._cleared[journal] = ClearedError(error, 1 if before is None else before.count + 1)
        return error

    def changes(self, journal: str) -> int:
        """Return the number of failures of `journal`, and of errors that `clear()` cleared."""
        return self._changes.get(journal, 0)

    def since(self, before: int, journal: str) -> Exception | None:
        """Return an error of `journal` since `changes()` returned `before`, or None."""
        if self.changes(journal) == before:
            return None
        return self.of(journal) or self._cleared[journal].error

    def _note_change(self, journal: str) -> None:
        self._changes[journal] = self.changes(journal) + 1

    def note_missing(self, journal: str) -> None:
        """Note that an append ends now, by an error that may have been passed over before."""
        if (cleared := self._cleared.get(journal)) is not None:
            self._cleared[journal] = dataclasses.replace(cleared)

    def cleared(self, journal: str) -> ClearedError | None:
        """Return the latest error of `journal` that was cleared or passed over, or None."""
        return self._cleared.get(journal)

    def operations(self) -> Iterator[OpFuture[Any]]:
        """Iterate failed operations whose errors nobody has cleared, and a cancellation."""
        # Invariant: appends that a cancellation ended are forgotten, but no barrier succeeds later.
        if self.cancellation is not None:
            yield finished_operation(self.cancellation)
        yield from self._passed.values()
        yield from self._failed.values()

    def __contains__(self, journal: str) -> bool:
        return journal in self._failed

    def __len__(self) -> int:
        """Number of journals whose appends fail until their error is cleared."""
        return sum(not self._passes_over(self.of(name), name) for name in self._failed)


def _error_of(failed: AsyncOperation | None) -> Exception | None:
    error = None if failed is None else failed.exception()
    assert error is None or isinstance(error, Exception)
    return error


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
