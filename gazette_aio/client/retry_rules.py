"""Rules of retries: which failures are retried and when, and which end an operation.

`decide()` has one function of rules per operation, of which the first case that matches counts;
`RetryPolicy` bounds or overrides it. All of it is pure: callers sleep and count.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

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

if TYPE_CHECKING:
    from collections.abc import Callable

_GRACE_ATTEMPTS: Final = 4
"""Failed attempts for which a change may not have reached every broker yet."""

_CONTROL_ATTEMPTS: Final = 6
"""Failed attempts, about two seconds, within which a broker may restart or hand over."""

_TOKEN_ATTEMPTS: Final = 2
"""Failed attempts within which a token may have expired: its stream ends, then it's refused."""

_MAX_HOPS: Final = 3
"""Successive refusals that are followed to the broker they name."""


class _Course(enum.Enum):
    """Reaction to a failure: to end the operation, or to retry it after a delay.

    A retry is logged as a warning, or, quietly, unless it's the first one since the last success,
    or, silently, never.
    """

    RAISE = enum.auto()
    RETRY = enum.auto()
    RETRY_QUIETLY = enum.auto()
    RETRY_SILENTLY = enum.auto()


class Decision(NamedTuple):
    """Decision about one failure."""

    retry: bool
    delay: float = 0.0
    """Seconds to wait before the next attempt, without jitter."""
    log_level: int = 0
    """Level of the log record of the failure, or 0 for none."""
    hop: bool = False
    """Whether to try at once at a broker that the refusal names, which isn't a failed attempt."""


def decide(failure: Failure, policy: RetryPolicy) -> Decision:
    """Return the decision about `failure`."""
    if isinstance(failure.error, pb.UsageError):
        # The client was closed, for example: no repetition helps, and no policy knows better.
        return Decision(retry=False)
    hops = _names_another(failure)
    course = _Course.RETRY if hops else _RULES[failure.operation](failure, policy)
    if policy.on_error is not None and (answer := policy.on_error(failure)) is not None:
        if not answer:
            course, hops = _Course.RAISE, False
        elif course is _Course.RAISE:
            course = _Course.RETRY
    if hops:
        return Decision(retry=True, hop=True)
    if course is _Course.RAISE or _is_exhausted(failure, policy):
        return Decision(retry=False)
    # The first end of a stream is expected, and needs no delay.
    delay = policy.backoff(failure.attempt - (failure.error is None))
    quiet = course is _Course.RETRY_SILENTLY or (
        course is _Course.RETRY_QUIETLY and failure.attempt == 0
    )
    return Decision(retry=True, delay=delay, log_level=0 if quiet else logging.WARNING)


def _is_exhausted(failure: Failure, policy: RetryPolicy) -> bool:
    return (policy.max_attempts is not None and failure.attempt + 1 >= policy.max_attempts) or (
        policy.max_elapsed is not None and failure.elapsed >= policy.max_elapsed
    )


def _names_another(failure: Failure) -> bool:
    """Whether a refusal names the brokers of the journal, and the request forbids to proxy."""
    return (
        isinstance(failure.error, pb.NotJournalBrokerError | pb.NotJournalPrimaryBrokerError)
        # Brokers that disagree are given up on.
        and failure.hops < _MAX_HOPS
        # Requests that aren't of one journal have no such field.
        and getattr(failure.request, "do_not_proxy", False)
        and failure.error.header is not None
        and len(failure.error.header.route.members) > 0
    )


def _decide_read(failure: Failure, policy: RetryPolicy) -> _Course:
    match failure.error:
        case None:
            # Brokers end streams when they hand over, shut down, or a token expires. The first end
            # has no delay; further ones without progress in between have.
            return _Course.RETRY_SILENTLY
        case pb.TransportError() if _may_have_expired(failure):
            return _Course.RETRY_SILENTLY
        case pb.OffsetNotYetAvailableError() as error:
            # The request was made blocking after the RPC began.
            is_silent = failure.request.block
            # This replica lags behind the one that served earlier content, or doesn't know stored
            # fragments yet; or there is a hole that isn't old enough to be skipped.
            is_away = error.is_below_head or error.is_beyond_head
            is_silent |= is_away and failure.attempt < _GRACE_ATTEMPTS
            # Otherwise, the caller asked not to block.
            return _Course.RETRY_SILENTLY if is_silent else _Course.RAISE
        case pb.InsufficientJournalBrokersError() | pb.NotJournalBrokerError():
            return _Course.RETRY_QUIETLY  # Assignments are changing.
        case pb.JournalNotFoundError() if _may_appear(failure):
            return _Course.RETRY_QUIETLY
        case pb.JournalNotFoundError() | pb.SuspendedError() | pb.NotAllowedError():
            return _Course.RAISE  # The status remains until somebody changes the journal.
        case pb.OffsetBeyondHeadError() | pb.AuthorizationError() | pb.ConfigurationError():
            # The primary has confirmed that no content at that offset follows the content read
            # before; or nothing was sent.
            return _Course.RAISE
        case error if _is_permanent(error) or (
            # The file or its store is at fault, rather than the network or a moment.
            _is_unreadable(error) and _persists(failure, policy)
        ):
            return _Course.RAISE
        case pb.TransportError(http_status=400 | 401 | 403 | 404):
            # Signed URLs expire within a minute, and old files are removed: the next RPC brings a
            # URL that is right by now.
            return _Course.RETRY_QUIETLY
        case _:
            return _Course.RETRY  # Reads have no side effects, and continue at the next byte.


def _decide_append(failure: Failure, policy: RetryPolicy) -> _Course:
    match failure.error:
        case pb.TransportError() if _may_have_expired(failure):
            return _Course.RETRY_SILENTLY
        case error if _is_transient(error):
            # The broker may return. It may have appended already: at least once.
            return _Course.RETRY
        case pb.TransportError(code=code, details=details) if (
            code == MASKED_CODE and MASKED_DETAILS in details and failure.attempt < _GRACE_ATTEMPTS
        ):
            return _Course.RETRY  # The true status is lost; another attempt may well bring it.
        case (
            pb.NotJournalPrimaryBrokerError()
            | pb.NoJournalPrimaryBrokerError()
            | pb.InsufficientJournalBrokersError()
        ):
            return _Course.RETRY_QUIETLY  # Assignments are changing.
        case pb.JournalNotFoundError() if policy.retry_not_found and _may_appear(failure):
            return _Course.RETRY_QUIETLY
        case _:
            return _Course.RAISE  # The caller decides.


def _decide_service(failure: Failure, policy: RetryPolicy) -> _Course:
    match failure.error:
        case _ if policy.retry_check_registers and failure.request.HasField("check_registers"):
            return _Course.RETRY_QUIETLY  # The service holds on until it's cancelled.
        case (
            pb.FragmentStoreUnhealthyError()
            | pb.IndexHasGreaterOffsetError()
            | pb.JournalNotFoundError()
            | pb.NotAllowedError()
            | pb.RegisterMismatchError()
            | pb.WrongAppendOffsetError()
        ):
            return _Course.RAISE  # The status remains until somebody changes the journal.
        case pb.AuthorizationError() | pb.ConfigurationError():
            return _Course.RAISE  # Nothing was sent.
        case error if _persists(failure, policy) and (
            # A fresh token or a broker of another release would have helped by now.
            _is_permanent(error)
            # An invalid response: each attempt may have appended.
            or isinstance(error, pb.ValidationError)
        ):
            return _Course.RAISE
        case error if _is_permanent(error) and failure.attempt < _GRACE_ATTEMPTS:
            return _Course.RETRY_SILENTLY  # By default, it's raised by then.
        case _:
            return _Course.RETRY_QUIETLY  # Appends queued after this one rely on it.


def _decide_control(failure: Failure, _policy: RetryPolicy) -> _Course:
    # The broker may return. But the caller waits for the answer.
    passes = _is_transient(failure.error) and failure.attempt < _CONTROL_ATTEMPTS
    if _may_have_expired(failure):
        return _Course.RETRY_SILENTLY
    repeats = passes and _is_repeatable(failure.request)
    return _Course.RETRY_QUIETLY if repeats else _Course.RAISE


def _decide_watch(failure: Failure, _policy: RetryPolicy) -> _Course:
    match failure.error:
        case None:
            # Brokers end watches when they shut down, or a token expires. The first end has no
            # delay; further ones that follow at once, without a new listing, have.
            return _Course.RETRY_SILENTLY
        case pb.TransportError() if _may_have_expired(failure):
            return _Course.RETRY_SILENTLY
        case error if not failure.established and (
            _is_permanent(error) or isinstance(error, pb.AuthorizationError | pb.ConfigurationError)
        ):
            # The watch never worked, and the caller waits for it. Later on, somebody may repair
            # credentials or brokers, and the last snapshot remains usable meanwhile.
            return _Course.RAISE
        case _:
            return _Course.RETRY_QUIETLY  # Watches have no side effects.


def _decide_poll(failure: Failure, _policy: RetryPolicy) -> _Course:
    # The caller waits for the first listing, which was retried as any listing is.
    return _Course.RETRY if failure.established else _Course.RAISE


_RULES: Final[dict[Operation, Callable[[Failure, RetryPolicy], _Course]]] = {
    Operation.READ: _decide_read,
    Operation.APPEND: _decide_append,
    Operation.APPEND_SERVICE: _decide_service,
    Operation.CONTROL: _decide_control,
    Operation.WATCH: _decide_watch,
    Operation.POLL: _decide_poll,
}


def _may_have_expired(failure: Failure) -> bool:
    """Whether the token may have expired on its way. The next attempt carries a fresh one.

    It's retried silently: if a fresh token doesn't help, the error is raised at once.
    """
    error = failure.error
    return (
        isinstance(error, pb.TransportError)
        and error.code == "UNAUTHENTICATED"
        and failure.attempt < _TOKEN_ATTEMPTS
    )


def _may_appear(failure: Failure) -> bool:
    """Whether a missing journal may be new: it takes a moment to reach every broker."""
    return failure.attempt < _GRACE_ATTEMPTS and not failure.request.HasField("header")


def _persists(failure: Failure, policy: RetryPolicy) -> bool:
    return failure.attempt + 1 >= policy.permanent_attempts


def _is_permanent(error: pb.GazetteError | None) -> bool:
    return isinstance(error, pb.TransportError) and error.code in PERMANENT_CODES


def _is_transient(error: pb.GazetteError | None) -> bool:
    # An error of a closed client has such a code, and isn't retryable.
    return (
        isinstance(error, pb.TransportError) and error.code in TRANSIENT_CODES and error.retryable
    )


def _is_unreadable(error: pb.GazetteError | None) -> bool:
    """Whether content is damaged, or its store refuses it permanently."""
    if isinstance(error, pb.TransportError):
        # An RPC that fails with UNAVAILABLE is always retryable.
        is_fetch = error.http_status is not None or error.code == "UNAVAILABLE"
        return is_fetch and not error.retryable
    return isinstance(
        error,
        pb.FragmentError | pb.UnexpectedEOFError | pb.DidNotReadExpectedEOFError | pb.DataLossError,
    )


def _is_repeatable(request: object) -> bool:
    """Whether a second request has no other effects than the first.

    A second Unassign would remove assignments that were made since. A second Apply fails because of
    the changes of the first, unless it expects no revisions.
    """
    if isinstance(request, pb.consumer.UnassignRequest):
        return request.dry_run
    return not isinstance(request, pb.ApplyRequest | pb.consumer.ApplyRequest) or all(
        change.expect_mod_revision == -1 for change in request.changes
    )
