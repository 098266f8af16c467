"""Policy of retries, and the failures it's about."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEDULE: Final = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0)
LONGEST_DELAY: Final = 5.0
"""Longest delay between attempts, in seconds."""

PERMANENT_CODES: Final = frozenset(
    {"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "INVALID_ARGUMENT"}
)
"""gRPC codes that a repeated request meets again."""

TRANSIENT_CODES: Final = frozenset({"UNAVAILABLE", "CANCELLED", "ABORTED", "RESOURCE_EXHAUSTED"})
"""gRPC codes by which a server, a proxy or the library refuses a request for the moment.

A request that its caller cancelled raises CancelledError instead.
"""

_TOO_LARGE: Final = ("message larger than max", "metadata size exceeds")
"""Texts of RESOURCE_EXHAUSTED for a request or a response that is refused each time."""

MASKED_CODE: Final = "INTERNAL"
MASKED_DETAILS: Final = "Internal error from Core"
"""Code and text by which grpcio replaces the true status when a peer ends a stream early."""


def backoff(attempt: int) -> float:
    """Return the seconds to wait after the failed attempt `attempt`, counted from zero.

    -1 stands for a failure that needs no delay.
    """
    if attempt < 0:
        return 0.0
    return _SCHEDULE[attempt] if attempt < len(_SCHEDULE) else LONGEST_DELAY


def is_transient(code: str, details: str) -> bool:
    """Return whether a repeated RPC may succeed, by the code and the text of its failure."""
    if code == MASKED_CODE:
        # Wire: grpcio loses the status of a stream if its peer ends it during a write.
        return details == MASKED_DETAILS
    return code in TRANSIENT_CODES and not any(text in details for text in _TOO_LARGE)


class Operation(enum.Enum):
    """An operation that may be retried."""

    READ = "read"
    """A Read RPC of a RetryReader."""
    APPEND = "append"
    """An Append RPC of `client.append()`."""
    APPEND_SERVICE = "append service"
    """An Append RPC of an AppendService."""
    CONTROL = "control"
    """A List, Apply, ListFragments or FragmentStoreHealth RPC."""
    WATCH = "watch"
    """A watching List RPC of a WatchedList."""
    POLL = "poll"
    """A listing of a PolledList. The first one is retried as `CONTROL` before it fails as this."""


class Failure(NamedTuple):
    """One failed attempt."""

    operation: Operation
    error: pb.GazetteError | None
    """The error, or None for a stream that ended early."""
    attempt: int
    """Failed attempts since the last success, before this one."""
    request: Any
    """The request of the RPC."""
    elapsed: float = 0.0
    """Seconds since the first failure after the last success. A watch succeeds with a listing that
    differs from the one before, or with a resumed stream that lasted for a while."""
    hops: int = 0
    """Successive refusals before this one that were followed to another broker."""
    established: bool = False
    """Whether a watch, or a polled listing, has had a listing before."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of the retry table, and exceptions to it.

    Args:
        max_attempts: Attempts since the last success after which an operation fails; None for any
            number.
        max_elapsed: Seconds since the first of successive failures after which a further one ends
            the operation; None for no limit. Attempts and delays aren't cut short.
        on_error: Called with each Failure. True retries within the bounds, False ends the
            operation, and None leaves the decision to the table. It must not block. An exception
            of it ends the operation.
        backoff: Function from the number of the attempt to seconds of delay. The number is -1 for
            the first of successive ends of a stream, which is no error.
        jitter: Share of each delay by which it's randomly lengthened or shortened; 0.1 by default.
        permanent_attempts: Attempts of an AppendService before an error that looks permanent
            (`PERMANENT_CODES`, or an invalid response) ends its batch, and of a read before a
            fragment file that is damaged, or that its store refuses permanently, ends it.
        retry_not_found: Whether `client.append()` retries JOURNAL_NOT_FOUND within a short grace,
            which is useful just after the journal was created.
        retry_check_registers: Whether an AppendService retries every failure of a request with
            `check_registers`, which is useful to a process that waits to be fenced off.

    Raises:
        ConfigurationError: An option is out of its range.
    """

    max_attempts: int | None = None
    max_elapsed: float | None = None
    on_error: Callable[[Failure], bool | None] | None = None
    backoff: Callable[[int], float] = backoff
    jitter: float = 0.1
    permanent_attempts: int = 4
    retry_not_found: bool = False
    retry_check_registers: bool = False

    def within(self, seconds: float) -> RetryPolicy:
        """Return the policy with a bound of `max_elapsed`."""
        elapsed = seconds if self.max_elapsed is None else min(self.max_elapsed, seconds)
        # With a limit of zero, not even a stream that ended would be renewed.
        return dataclasses.replace(self, max_elapsed=max(elapsed, 0.001))

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise pb.ConfigurationError("max_attempts must be one or more")
        if self.max_elapsed is not None and self.max_elapsed < 0:
            raise pb.ConfigurationError("max_elapsed must not be negative")
        if self.permanent_attempts < 1:
            raise pb.ConfigurationError("permanent_attempts must be one or more")
        if not 0 <= self.jitter < 1:
            raise pb.ConfigurationError("jitter must be within [0, 1)")
