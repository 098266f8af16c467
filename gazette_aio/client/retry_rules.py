"""Table of retries: which failures are retried and when, and which end an operation.

`decide()` looks up the first row of `RULES` that matches a `Failure`, and `RetryPolicy` bounds or
overrides the row. All of it is pure: callers sleep and count.

A row takes one of these courses:

* `raise`: the operation ends with the error.
* `retry`: try again after `backoff(attempt)`, with a warning in the log.
* `retry, quiet at first`: the same, but the first failure since the last success isn't logged.
* `retry, silent`: the same, never logged.
* `hop`: try again at once, at a broker that the refusal names. It isn't logged, and doesn't count
  as a failed attempt.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.client.retry import (
    MASKED_CODE,
    MASKED_DETAILS,
    PERMANENT_CODES,
    TRANSIENT_CODES,
    Failure,
    Operation,
    RetryPolicy,
)

GRACE_ATTEMPTS: Final = 4
"""Failed attempts for which a change may not have reached every broker yet."""

CONTROL_ATTEMPTS: Final = 6
"""Failed attempts, about two seconds, within which a broker may restart or hand over."""

TOKEN_ATTEMPTS: Final = 2
"""Failed attempts within which a token may have expired: its stream ends, then it's refused."""

MAX_HOPS: Final = 3
"""Successive refusals that are followed to the broker they name."""


class Course(enum.Enum):
    """Reaction to a failure."""

    RAISE = "raise"
    RETRY = "retry"
    RETRY_QUIET_AT_FIRST = "retry, quiet at first"
    RETRY_SILENT = "retry, silent"
    HOP = "hop"


class Decision(NamedTuple):
    """Decision about one failure."""

    retry: bool
    delay: float
    """Seconds to wait before the next attempt, without jitter."""
    log_level: int
    """Level of the log record of the failure, or 0 for none."""
    hop: bool = False
    """Whether to try at a broker that the refusal names."""


_Predicate: TypeAlias = Callable[[Failure, RetryPolicy], bool]


class Rule(NamedTuple):
    """A row of the table."""

    what: str
    matches: _Predicate
    course: Course
    why: str


def _all(*predicates: _Predicate) -> _Predicate:
    return lambda failure, policy: all(each(failure, policy) for each in predicates)


def _either(*predicates: _Predicate) -> _Predicate:
    return lambda failure, policy: any(each(failure, policy) for each in predicates)


def _is(*classes: type[pb.GazetteError]) -> _Predicate:
    return lambda failure, _: isinstance(failure.error, classes)


def _is_coded(*codes: str) -> _Predicate:
    return lambda failure, _: (
        isinstance(failure.error, pb.TransportError) and failure.error.code in codes
    )


def _is_within(attempts: int) -> _Predicate:
    return lambda failure, _: failure.attempt < attempts


def _persists(failure: Failure, policy: RetryPolicy) -> bool:
    return failure.attempt + 1 >= policy.permanent_attempts


def _any(_failure: Failure, _policy: RetryPolicy) -> bool:
    return True


def _is_end(failure: Failure, _: RetryPolicy) -> bool:
    return failure.error is None


def _is_first(failure: Failure, _: RetryPolicy) -> bool:
    return not failure.established


_is_permanent = _is_coded(*PERMANENT_CODES)
_has_transient_code = _is_coded(*TRANSIENT_CODES)
_is_ours = _is(pb.AuthorizationError, pb.ConfigurationError)
_is_damage = _is(
    pb.FragmentError, pb.UnexpectedEOFError, pb.DidNotReadExpectedEOFError, pb.DataLossError
)


def _is_transient(failure: Failure, _: RetryPolicy) -> bool:
    # An error of a closed client has such a code, and isn't retryable.
    return _has_transient_code(failure, _) and failure.error is not None and failure.error.retryable


def _is_masked(failure: Failure, _: RetryPolicy) -> bool:
    error = failure.error
    return (
        isinstance(error, pb.TransportError)
        and error.code == MASKED_CODE
        and MASKED_DETAILS in error.details
    )


def _is_behind_head(failure: Failure, _: RetryPolicy) -> bool:
    return isinstance(failure.error, pb.OffsetNotYetAvailableError) and bool(failure.request.block)


def _is_away_from_head(failure: Failure, _: RetryPolicy) -> bool:
    error = failure.error
    return (
        isinstance(error, pb.OffsetNotYetAvailableError)
        and error.response is not None
        and error.response.offset != error.response.write_head
    )


def _names_another(failure: Failure, _: RetryPolicy) -> bool:
    return (
        isinstance(failure.error, pb.NotJournalBrokerError | pb.NotJournalPrimaryBrokerError)
        and failure.hops < MAX_HOPS
        # Requests that aren't of one journal have no such field.
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


def _is_to_be_fenced(failure: Failure, policy: RetryPolicy) -> bool:
    return policy.retry_check_registers and bool(failure.request.HasField("check_registers"))


def _is_perishable(failure: Failure, _: RetryPolicy) -> bool:
    error = failure.error
    return isinstance(error, pb.TransportError) and error.http_status in (400, 401, 403, 404)


def _is_refused_fetch(failure: Failure, _: RetryPolicy) -> bool:
    # An RPC that fails with UNAVAILABLE is always retryable.
    error = failure.error
    return (
        isinstance(error, pb.TransportError)
        and (error.http_status is not None or error.code == "UNAVAILABLE")
        and not error.retryable
    )


def _is_repeatable(failure: Failure, _: RetryPolicy) -> bool:
    request = failure.request
    if isinstance(request, pb.consumer.UnassignRequest):
        return request.dry_run
    return not isinstance(request, pb.ApplyRequest | pb.consumer.ApplyRequest) or all(
        change.expect_mod_revision == -1 for change in request.changes
    )


_HOP: Final = Rule(
    "NOT_JOURNAL_BROKER, NOT_JOURNAL_PRIMARY_BROKER, and the request forbids to proxy",
    _names_another,
    Course.HOP,
    "The refusal names the brokers of the journal. Brokers that disagree are given up on.",
)
_EXPIRED: Final = Rule(
    "UNAUTHENTICATED, within grace",
    _all(_is_coded("UNAUTHENTICATED"), _is_within(TOKEN_ATTEMPTS)),
    Course.RETRY_QUIET_AT_FIRST,
    "The token may have expired on its way. The next attempt carries a fresh one.",
)
_LOCAL: Final = Rule(
    "local authorization or configuration", _is_ours, Course.RAISE, "Nothing was sent."
)

RULES: Final[dict[Operation, tuple[Rule, ...]]] = {
    Operation.READ: (
        Rule(
            "end of stream",
            _is_end,
            Course.RETRY_SILENT,
            "Brokers end streams when they hand over, shut down, or a token expires. The first end "
            "has no delay; further ones without progress in between have.",
        ),
        Rule(
            "OFFSET_NOT_YET_AVAILABLE, and the request blocks",
            _is_behind_head,
            Course.RETRY_SILENT,
            "The request was made blocking after the RPC began.",
        ),
        Rule(
            "OFFSET_NOT_YET_AVAILABLE away from the write head, within grace",
            _all(_is_away_from_head, _is_within(GRACE_ATTEMPTS)),
            Course.RETRY_SILENT,
            "This replica lags behind the one that served earlier content, or doesn't know stored "
            "fragments yet; or there is a hole that isn't old enough to be skipped.",
        ),
        Rule(
            "OFFSET_NOT_YET_AVAILABLE",
            _is(pb.OffsetNotYetAvailableError),
            Course.RAISE,
            "The caller asked not to block.",
        ),
        Rule(
            "an offset beyond the write head, as the primary has confirmed",
            _is(pb.OffsetBeyondHeadError),
            Course.RAISE,
            "Content at that offset is none that follows the content read before.",
        ),
        _HOP,
        Rule(
            "INSUFFICIENT_JOURNAL_BROKERS, NOT_JOURNAL_BROKER",
            _is(pb.InsufficientJournalBrokersError, pb.NotJournalBrokerError),
            Course.RETRY_QUIET_AT_FIRST,
            "Assignments are changing.",
        ),
        Rule(
            "JOURNAL_NOT_FOUND, within grace",
            _may_appear,
            Course.RETRY_QUIET_AT_FIRST,
            "A new journal takes a moment to reach every broker.",
        ),
        Rule(
            "JOURNAL_NOT_FOUND, SUSPENDED, NOT_ALLOWED",
            _is(pb.JournalNotFoundError, pb.SuspendedError, pb.NotAllowedError),
            Course.RAISE,
            "The status remains until somebody changes the journal.",
        ),
        _EXPIRED,
        Rule("permanent gRPC codes", _is_permanent, Course.RAISE, "The request itself is refused."),
        _LOCAL,
        Rule(
            "content that is damaged, or that its store refuses permanently, repeatedly",
            _all(_either(_is_damage, _is_refused_fetch), _persists),
            Course.RAISE,
            "The file or the store is at fault, rather than the network or a moment.",
        ),
        Rule(
            "HTTP 400, 401, 403, 404 of a fragment file",
            _is_perishable,
            Course.RETRY_QUIET_AT_FIRST,
            "Signed URLs expire within a minute, and old files are removed: the next RPC brings a "
            "URL that is right by now.",
        ),
        Rule(
            "anything else",
            _any,
            Course.RETRY,
            "Reads have no side effects, and continue at the very next byte.",
        ),
    ),
    Operation.APPEND: (
        _HOP,
        _EXPIRED,
        Rule(
            "transient gRPC codes",
            _is_transient,
            Course.RETRY,
            "The broker may return. It may have appended already: at least once.",
        ),
        Rule(
            "masked status, within grace",
            _all(_is_masked, _is_within(GRACE_ATTEMPTS)),
            Course.RETRY,
            "The true status is lost; another attempt is likely to bring it.",
        ),
        Rule(
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
            "JOURNAL_NOT_FOUND within grace, and the policy asks",
            _is_asked_to_appear,
            Course.RETRY_QUIET_AT_FIRST,
            "A new journal takes a moment to reach every broker.",
        ),
        Rule("anything else", _any, Course.RAISE, "The caller decides."),
    ),
    Operation.APPEND_SERVICE: (
        _HOP,
        Rule(
            "anything, and the request has check_registers, and the policy asks",
            _is_to_be_fenced,
            Course.RETRY_QUIET_AT_FIRST,
            "The service holds on until it's cancelled.",
        ),
        Rule(
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
            "The status remains until somebody changes the journal.",
        ),
        _LOCAL,
        Rule(
            "permanent gRPC codes, repeatedly",
            _all(_is_permanent, _persists),
            Course.RAISE,
            "A fresh token or a broker of another release would have helped by now.",
        ),
        Rule(
            "an invalid request or response, repeatedly",
            _all(_is(pb.ValidationError), _persists),
            Course.RAISE,
            "Each attempt may have appended, whatever the broker answers.",
        ),
        Rule(
            "anything else",
            _any,
            Course.RETRY_QUIET_AT_FIRST,
            "Appends queued after this one rely on it.",
        ),
    ),
    Operation.CONTROL: (
        _HOP,
        _EXPIRED,
        Rule(
            "transient gRPC codes within grace, and the request may be repeated",
            _all(_is_transient, _is_within(CONTROL_ATTEMPTS), _is_repeatable),
            Course.RETRY_QUIET_AT_FIRST,
            "The broker may return. An Apply may be repeated if it expects no revisions: otherwise "
            "the second one fails because of the changes of the first. A second Unassign would "
            "remove assignments that were made since.",
        ),
        Rule("anything else", _any, Course.RAISE, "The caller waits for the answer."),
    ),
    Operation.WATCH: (
        Rule(
            "end of stream",
            _is_end,
            Course.RETRY_SILENT,
            "Brokers end watches when they shut down, or a token expires. The first end has no "
            "delay; further ones that follow at once, without a new listing, have.",
        ),
        _EXPIRED,
        Rule(
            "permanent gRPC codes, local authorization or configuration, before the first snapshot",
            _all(_is_first, _either(_is_permanent, _is_ours)),
            Course.RAISE,
            "The watch never worked, and the caller waits for it. Later on, somebody may repair "
            "credentials or brokers, and the last snapshot remains usable meanwhile.",
        ),
        Rule(
            "anything else",
            _any,
            Course.RETRY_QUIET_AT_FIRST,
            "The last snapshot remains usable, and watches have no side effects.",
        ),
    ),
    Operation.POLL: (
        Rule(
            "before the first listing",
            _is_first,
            Course.RAISE,
            "The caller waits for it, and it was retried as any listing is.",
        ),
        Rule("anything else", _any, Course.RETRY, "The last listing remains usable."),
    ),
}
"""Rows by operation. The last row of each matches everything."""


def decide(failure: Failure, policy: RetryPolicy) -> Decision:
    """Return the decision about `failure`."""
    if isinstance(failure.error, pb.UsageError):
        # The client was closed, for example: no repetition helps, and no policy knows better.
        return Decision(retry=False, delay=0.0, log_level=0)
    rules = RULES[failure.operation]
    course = next(rule.course for rule in rules if rule.matches(failure, policy))
    if policy.on_error is not None and (answer := policy.on_error(failure)) is not None:
        if not answer:
            course = Course.RAISE
        elif course is Course.RAISE:
            course = Course.RETRY

    if course is Course.HOP:
        return Decision(retry=True, delay=0.0, log_level=0, hop=True)

    if course is Course.RAISE or _is_exhausted(failure, policy):
        return Decision(retry=False, delay=0.0, log_level=0)

    # The first end of a stream is expected, and needs no delay.
    delay = policy.backoff(failure.attempt - (failure.error is None))
    quiet = course is Course.RETRY_SILENT or (
        course is Course.RETRY_QUIET_AT_FIRST and failure.attempt == 0
    )
    return Decision(retry=True, delay=delay, log_level=0 if quiet else logging.WARNING)


def _is_exhausted(failure: Failure, policy: RetryPolicy) -> bool:
    return (policy.max_attempts is not None and failure.attempt + 1 >= policy.max_attempts) or (
        policy.max_elapsed is not None and failure.elapsed >= policy.max_elapsed
    )
