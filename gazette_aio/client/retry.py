"""Which failures are retried, when, and which end an operation.

Everything here is pure: `decide()` looks up the first row of `RULES` which matches a `Failure`,
and `RetryPolicy` bounds or overrides what the row says. Sleeping and counting is up to the caller.

A row takes one of these courses:

* `raise`: the operation ends with the error.
* `retry`: try again after `backoff(attempt)`, with a warning in the log.
* `retry, quiet at first`: the same, but the first failure since the last success isn't logged.
* `retry, silent`: the same, never logged.
* `hop`: try again at once, at a broker which the refusal names. It isn't logged, and isn't counted
  as a failed attempt.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import gazette_aio.protocol as pb

_SCHEDULE: Final = (0.05, 0.05, 0.1, 0.1, 1.0, 1.0)
LONGEST_DELAY: Final = 5.0
"""Seconds between attempts in the long run."""

GRACE_ATTEMPTS: Final = 4
"""Failed attempts which may be a change that hasn't spread to every broker yet."""

CONTROL_ATTEMPTS: Final = 6
"""Failed attempts, some two seconds of them, within which a broker may restart or hand over."""

TOKEN_ATTEMPTS: Final = 2
"""Failed attempts within which a token may have expired: its stream ends, then it's refused."""

MAX_HOPS: Final = 3
"""Refusals in a row which are followed to the broker that they name."""

PERMANENT_CODES: Final = frozenset(
    {"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "INVALID_ARGUMENT"}
)
"""gRPC codes which the same request will meet again."""

_PERISHABLE_STATUSES: Final = frozenset({400, 401, 403, 404})

MASKED_CODE: Final = "INTERNAL"
MASKED_DETAILS: Final = "Internal error from Core"
"""What grpcio reports in place of the true status when a peer ends a stream early."""


def backoff(attempt: int) -> float:
    """Return seconds to wait after the failure `attempt`, counted from zero.

    Minus one stands for a failure which costs no delay.
    """
    if attempt < 0:
        return 0.0
    return _SCHEDULE[attempt] if attempt < len(_SCHEDULE) else LONGEST_DELAY


class Operation(enum.Enum):
    """What failed."""

    READ = "read"
    """A Read RPC of a RetryReader."""
    APPEND = "append"
    """An Append RPC of `append()`."""
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
    """The error, or None for a stream which ended before it should."""
    attempt: int
    """Failed attempts since the last success before this one."""
    request: Any
    """The request of the RPC."""
    elapsed: float = 0.0
    """Seconds since the first failure since the last success. For a watch that is a listing which
    differs from the one before, or a resumed stream which stood a while."""
    hops: int = 0
    """Refusals in a row before this one which were followed to another broker."""
    established: bool = False
    """Whether a watch, or a polled listing, has had a listing before."""


class Course(enum.Enum):
    """What to do about a failure."""

    RAISE = "raise"
    RETRY = "retry"
    RETRY_QUIET_AT_FIRST = "retry, quiet at first"
    RETRY_SILENT = "retry, silent"
    HOP = "hop"


class Decision(NamedTuple):
    """What `decide()` made of a failure."""

    retry: bool
    delay: float
    """Seconds to wait before the next attempt, without jitter."""
    log_level: int
    """Level of the log record which tells of the failure, or 0 for none."""
    hop: bool = False
    """Whether to try at a broker which the refusal names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds and exceptions to the rows of the retry table.

    Args:
        max_attempts: Attempts since the last success after which an operation fails; None for any.
        max_elapsed: Seconds since the first failure in a row from which on a further one fails the
            operation; None for any. It doesn't cut attempts or delays short.
        on_error: Called with each Failure. True retries it within the bounds, False ends the
            operation, and None leaves the decision to the table. It must not block; what it raises
            ends the operation.
        backoff: Seconds to wait by number of the attempt, in place of the built-in schedule. That
            is -1 for the first end of a stream in a row, which nothing is wrong with.
        jitter: Share of each delay by which it's randomly lengthened or shortened.
        permanent_attempts: Attempts of an AppendService before an error which looks permanent
            (`PERMANENT_CODES`, or an invalid response) ends its batch; and of a read before a
            damaged fragment file, or one which its store refuses for good, ends it.
        retry_not_found: Whether `append()` retries JOURNAL_NOT_FOUND for a short grace, as is
            useful right after the journal was created.
        retry_check_registers: Whether an AppendService retries every failure of a request which
            has `check_registers`, as one does which waits to be fenced off.
    """

    max_attempts: int | None = None
    max_elapsed: float | None = None
    on_error: Callable[[Failure], bool | None] | None = None
    backoff: Callable[[int], float] = backoff
    jitter: float = 0.1
    permanent_attempts: int = 4
    retry_not_found: bool = False
    retry_check_registers: bool = False

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise pb.ConfigurationError("max_attempts must be one or more")
        if self.max_elapsed is not None and self.max_elapsed < 0:
            raise pb.ConfigurationError("max_elapsed must not be negative")
        if self.permanent_attempts < 1:
            raise pb.ConfigurationError("permanent_attempts must be one or more")
        if not 0 <= self.jitter < 1:
            raise pb.ConfigurationError("jitter must be within [0, 1)")


_Predicate: TypeAlias = Callable[[Failure, RetryPolicy], bool]


class Rule(NamedTuple):
    """A row of the table."""

    operation: Operation
    what: str
    matches: _Predicate
    course: Course
    why: str


def is_masked(error: pb.GazetteError | None) -> bool:
    """Whether `error` may stand for any other status, which grpcio lost."""
    return (
        isinstance(error, pb.TransportError)
        and error.code == MASKED_CODE
        and MASKED_DETAILS in error.details
    )


def _is(*classes: type[pb.GazetteError]) -> _Predicate:
    def matches(failure: Failure, _: RetryPolicy) -> bool:
        return isinstance(failure.error, classes)

    return matches


def _is_coded(*codes: str) -> _Predicate:
    def matches(failure: Failure, _: RetryPolicy) -> bool:
        return isinstance(failure.error, pb.TransportError) and failure.error.code in codes

    return matches


_is_permanent = _is_coded(*PERMANENT_CODES)
_is_unavailable = _is_coded("UNAVAILABLE")
_is_unauthenticated = _is_coded("UNAUTHENTICATED")
_is_ours = _is(pb.AuthorizationError, pb.ConfigurationError)
_is_damage = _is(pb.FragmentError, pb.UnexpectedEOFError, pb.DidNotReadExpectedEOFError)


def _any(_failure: Failure, _policy: RetryPolicy) -> bool:
    return True


def _is_end(failure: Failure, _: RetryPolicy) -> bool:
    return failure.error is None


def _is_behind_head(failure: Failure, _: RetryPolicy) -> bool:
    return isinstance(failure.error, pb.OffsetNotYetAvailableError) and bool(failure.request.block)


def _is_away_from_head(failure: Failure, _: RetryPolicy) -> bool:
    error = failure.error
    return (
        isinstance(error, pb.OffsetNotYetAvailableError)
        and failure.attempt < GRACE_ATTEMPTS
        and error.response is not None
        and error.response.offset != error.response.write_head
    )


def _names_another(failure: Failure, _: RetryPolicy) -> bool:
    return (
        isinstance(failure.error, pb.NotJournalBrokerError | pb.NotJournalPrimaryBrokerError)
        and failure.hops < MAX_HOPS
        # Requests which aren't of one journal have no such field.
        and getattr(failure.request, "do_not_proxy", False)
        and failure.error.header is not None
        and len(failure.error.header.route.members) > 0
    )


def _may_appear(failure: Failure, _: RetryPolicy) -> bool:
    return (
        isinstance(failure.error, pb.JournalNotFoundError)
        and failure.attempt < GRACE_ATTEMPTS
        and not failure.request.HasField("header")
    )


def _is_asked_to_appear(failure: Failure, policy: RetryPolicy) -> bool:
    return policy.retry_not_found and _may_appear(failure, policy)


def _may_expire(failure: Failure, policy: RetryPolicy) -> bool:
    return _is_unauthenticated(failure, policy) and failure.attempt < TOKEN_ATTEMPTS


def _may_unmask(failure: Failure, _: RetryPolicy) -> bool:
    return is_masked(failure.error) and failure.attempt < GRACE_ATTEMPTS


def _holds_on(failure: Failure, policy: RetryPolicy) -> bool:
    return policy.retry_check_registers and bool(failure.request.HasField("check_registers"))


def _stays_permanent(failure: Failure, policy: RetryPolicy) -> bool:
    return _is_permanent(failure, policy) and failure.attempt + 1 >= policy.permanent_attempts


def _stays_invalid(failure: Failure, policy: RetryPolicy) -> bool:
    return (
        isinstance(failure.error, pb.ValidationError)
        and failure.attempt + 1 >= policy.permanent_attempts
    )


def _stays_unreadable(failure: Failure, policy: RetryPolicy) -> bool:
    return (
        _is_damage(failure, policy) or _is_refused_fetch(failure)
    ) and failure.attempt + 1 >= policy.permanent_attempts


def _is_perishable(failure: Failure, _: RetryPolicy) -> bool:
    error = failure.error
    return isinstance(error, pb.TransportError) and error.http_status in _PERISHABLE_STATUSES


def _is_refused_fetch(failure: Failure) -> bool:
    # An RPC that fails with UNAVAILABLE is always retryable.
    error = failure.error
    return (
        isinstance(error, pb.TransportError)
        and (error.http_status is not None or error.code == "UNAVAILABLE")
        and not error.retryable
    )


def _may_return(failure: Failure, policy: RetryPolicy) -> bool:
    return (
        _is_unavailable(failure, policy)
        and failure.attempt < CONTROL_ATTEMPTS
        and is_repeatable(failure.request)
    )


def _is_first(failure: Failure, _: RetryPolicy) -> bool:
    return not failure.established


def _is_refused_at_first(failure: Failure, policy: RetryPolicy) -> bool:
    return _is_first(failure, policy) and (
        _is_permanent(failure, policy) or _is_ours(failure, policy)
    )


def is_repeatable(request: Any) -> bool:
    """Whether making a control RPC once more leads to the same as making it once."""
    if not isinstance(request, pb.ApplyRequest):
        return True
    return all(change.expect_mod_revision == -1 for change in request.changes)


_R, _A, _S = Operation.READ, Operation.APPEND, Operation.APPEND_SERVICE
_C = Operation.CONTROL
_W, _P = Operation.WATCH, Operation.POLL


def _hop(operation: Operation) -> Rule:
    return Rule(
        operation,
        "NOT_JOURNAL_BROKER, NOT_JOURNAL_PRIMARY_BROKER, and the request forbids to proxy",
        _names_another,
        Course.HOP,
        "The refusal tells who serves the journal. Brokers which disagree are given up on.",
    )


def _expired(operation: Operation) -> Rule:
    return Rule(
        operation,
        "UNAUTHENTICATED, within grace",
        _may_expire,
        Course.RETRY_QUIET_AT_FIRST,
        "The token may have expired on its way. The next attempt carries a fresh one.",
    )


RULES: Final[tuple[Rule, ...]] = (
    # Reads.
    Rule(
        _R,
        "end of stream",
        _is_end,
        Course.RETRY_SILENT,
        "Brokers end streams when they hand over, shut down, or a token expires. The first costs "
        "no delay; further ones without progress between them do.",
    ),
    Rule(
        _R,
        "OFFSET_NOT_YET_AVAILABLE, and the request blocks",
        _is_behind_head,
        Course.RETRY_SILENT,
        "The request was made blocking after the RPC began.",
    ),
    Rule(
        _R,
        "OFFSET_NOT_YET_AVAILABLE away from the write head, within grace",
        _is_away_from_head,
        Course.RETRY_SILENT,
        "This replica lags behind the one which served what was read before, or has yet to learn "
        "of stored fragments; or there is a hole which isn't old enough to be skipped.",
    ),
    Rule(
        _R,
        "OFFSET_NOT_YET_AVAILABLE",
        _is(pb.OffsetNotYetAvailableError),
        Course.RAISE,
        "The caller asked not to block.",
    ),
    _hop(_R),
    Rule(
        _R,
        "INSUFFICIENT_JOURNAL_BROKERS, NOT_JOURNAL_BROKER",
        _is(pb.InsufficientJournalBrokersError, pb.NotJournalBrokerError),
        Course.RETRY_QUIET_AT_FIRST,
        "Assignments are changing.",
    ),
    Rule(
        _R,
        "JOURNAL_NOT_FOUND, within grace",
        _may_appear,
        Course.RETRY_QUIET_AT_FIRST,
        "A new journal takes a moment to reach every broker.",
    ),
    Rule(
        _R,
        "JOURNAL_NOT_FOUND, SUSPENDED, NOT_ALLOWED",
        _is(pb.JournalNotFoundError, pb.SuspendedError, pb.NotAllowedError),
        Course.RAISE,
        "It will remain so until someone changes the journal.",
    ),
    _expired(_R),
    Rule(
        _R, "permanent gRPC codes", _is_permanent, Course.RAISE, "The request is refused as such."
    ),
    Rule(_R, "local authorization or configuration", _is_ours, Course.RAISE, "Nothing was sent."),
    Rule(
        _R,
        "a fragment file which is damaged, or refused for good by its store, time and again",
        _stays_unreadable,
        Course.RAISE,
        "It's the file or the store which is at fault, rather than the network or a moment.",
    ),
    Rule(
        _R,
        "HTTP 400, 401, 403, 404 of a fragment file",
        _is_perishable,
        Course.RETRY_QUIET_AT_FIRST,
        "Signed URLs expire within a minute, and files are removed as they age: the next RPC "
        "brings what's right by now.",
    ),
    Rule(
        _R,
        "anything else",
        _any,
        Course.RETRY,
        "Reads are free of side effects, and go on at the very next byte.",
    ),
    # One append.
    _hop(_A),
    _expired(_A),
    Rule(
        _A,
        "UNAVAILABLE",
        _is_unavailable,
        Course.RETRY,
        "The broker may return. It may also have appended already: at least once.",
    ),
    Rule(
        _A,
        "masked status, within grace",
        _may_unmask,
        Course.RETRY,
        "The true status is lost; another attempt is likely to bring it.",
    ),
    Rule(
        _A,
        "NOT_JOURNAL_PRIMARY_BROKER, NO_JOURNAL_PRIMARY_BROKER, INSUFFICIENT_JOURNAL_BROKERS",
        _is(
            pb.NotJournalPrimaryBrokerError,
            pb.NoJournalPrimaryBrokerError,
            pb.InsufficientJournalBrokersError,
        ),
        Course.RETRY_QUIET_AT_FIRST,
        "Assignments are changing.",
    ),
    Rule(
        _A,
        "JOURNAL_NOT_FOUND within grace, and the caller asked",
        _is_asked_to_appear,
        Course.RETRY_QUIET_AT_FIRST,
        "A new journal takes a moment to reach every broker.",
    ),
    Rule(_A, "anything else", _any, Course.RAISE, "The caller knows what it's good for."),
    # Batches of an AppendService.
    _hop(_S),
    Rule(
        _S,
        "anything, and the request has check_registers, and the policy asks",
        _holds_on,
        Course.RETRY_QUIET_AT_FIRST,
        "The service is to hold on until it's cancelled.",
    ),
    Rule(
        _S,
        "FRAGMENT_STORE_UNHEALTHY, INDEX_HAS_GREATER_OFFSET, JOURNAL_NOT_FOUND, NOT_ALLOWED, "
        "REGISTER_MISMATCH, WRONG_APPEND_OFFSET",
        _is(
            pb.FragmentStoreUnhealthyError,
            pb.IndexHasGreaterOffsetError,
            pb.JournalNotFoundError,
            pb.NotAllowedError,
            pb.RegisterMismatchError,
            pb.WrongAppendOffsetError,
        ),
        Course.RAISE,
        "It will remain so until someone changes the journal.",
    ),
    Rule(_S, "local authorization or configuration", _is_ours, Course.RAISE, "Nothing was sent."),
    Rule(
        _S,
        "permanent gRPC codes, time and again",
        _stays_permanent,
        Course.RAISE,
        "A fresh token or a broker of another release would have helped by now.",
    ),
    Rule(
        _S,
        "an invalid request or response, time and again",
        _stays_invalid,
        Course.RAISE,
        "Each attempt may have appended, whatever the broker makes of it.",
    ),
    Rule(
        _S,
        "anything else",
        _any,
        Course.RETRY_QUIET_AT_FIRST,
        "Appends queued behind this one rely on it.",
    ),
    # Everything else.
    _hop(_C),
    _expired(_C),
    Rule(
        _C,
        "UNAVAILABLE within grace, and the request may be repeated",
        _may_return,
        Course.RETRY_QUIET_AT_FIRST,
        "The broker may return. An Apply may be repeated if it expects no revisions: otherwise a "
        "second one fails because of what the first one did.",
    ),
    Rule(_C, "anything else", _any, Course.RAISE, "The caller waits for the answer."),
    # Watched and polled listings.
    Rule(
        _W,
        "end of stream",
        _is_end,
        Course.RETRY_SILENT,
        "Brokers end watches when they shut down, or a token expires. The first costs no delay; "
        "further ones which follow at once, with nothing new, do.",
    ),
    _expired(_W),
    Rule(
        _W,
        "permanent gRPC codes, local authorization or configuration, before the first snapshot",
        _is_refused_at_first,
        Course.RAISE,
        "It never worked, and the caller waits for it. Later on, who maintains credentials or "
        "brokers may be about to mend it, and the last snapshot remains of use meanwhile.",
    ),
    Rule(
        _W,
        "anything else",
        _any,
        Course.RETRY_QUIET_AT_FIRST,
        "The last snapshot remains of use, and watches are free of side effects.",
    ),
    Rule(
        _P,
        "before the first listing",
        _is_first,
        Course.RAISE,
        "The caller waits for it, and it was retried as any listing is.",
    ),
    Rule(_P, "anything else", _any, Course.RETRY, "The last listing remains of use."),
)
"""The table. For each operation its last row matches everything."""

_BY_OPERATION: Final = {
    operation: tuple(rule for rule in RULES if rule.operation is operation)
    for operation in Operation
}


def matching_rule(failure: Failure, policy: RetryPolicy) -> Rule:
    """Return the first row which matches `failure`."""
    return next(rule for rule in _BY_OPERATION[failure.operation] if rule.matches(failure, policy))


def decide(failure: Failure, policy: RetryPolicy) -> Decision:
    """Return what to do about `failure`."""
    course = matching_rule(failure, policy).course
    if policy.on_error is not None and (answer := policy.on_error(failure)) is not None:
        if not answer:
            course = Course.RAISE
        elif course is Course.RAISE:
            course = Course.RETRY

    if course is Course.HOP:
        return Decision(retry=True, delay=0.0, log_level=0, hop=True)

    if course is Course.RAISE or _is_exhausted(failure, policy):
        return Decision(retry=False, delay=0.0, log_level=0)

    # The first end of a stream is expected, and costs nothing.
    delay = policy.backoff(failure.attempt - (failure.error is None))
    quiet = course is Course.RETRY_SILENT or (
        course is Course.RETRY_QUIET_AT_FIRST and failure.attempt == 0
    )
    return Decision(retry=True, delay=delay, log_level=0 if quiet else logging.WARNING)


def _is_exhausted(failure: Failure, policy: RetryPolicy) -> bool:
    return (policy.max_attempts is not None and failure.attempt + 1 >= policy.max_attempts) or (
        policy.max_elapsed is not None and failure.elapsed >= policy.max_elapsed
    )
