from __future__ import annotations

import dataclasses
import logging
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import Failure, Operation, RetryPolicy, backoff
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import TRANSIENT_CODES, is_transient
from gazette_aio.client.retry_rules import decide
from gazette_aio.protocol.status_errors import status_error

READ, APPEND, SERVICE = Operation.READ, Operation.APPEND, Operation.APPEND_SERVICE
CONTROL, WATCH, POLL = Operation.CONTROL, Operation.WATCH, Operation.POLL
STATUS = pb.Status
STATUSES = [status for status in STATUS.values() if status != STATUS.OK]
NOT_PRIMARY = STATUS.NOT_JOURNAL_PRIMARY_BROKER
PERMANENT = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED", "INVALID_ARGUMENT")
PASSING = ("UNAVAILABLE", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
MASKED = pb.TransportError("INTERNAL", "Internal error from Core")
OURS = (pb.AuthorizationError("no key"), pb.ConfigurationError("no file"))

JOURNAL = "a/journal"
REQUESTS: dict[Operation, Any] = {
    READ: pb.ReadRequest(journal=JOURNAL),
    APPEND: pb.AppendRequest(journal=JOURNAL),
    SERVICE: pb.AppendRequest(journal=JOURNAL),
    CONTROL: pb.ListRequest(),
    WATCH: pb.ListRequest(watch=True),
    POLL: pb.ListRequest(),
}
MANY = 1000


def coded(code: str) -> pb.TransportError:
    return pb.TransportError(code, "text", retryable=code in PASSING)


def fetched(status: int, *, retryable: bool = True) -> pb.TransportError:
    return pb.TransportError("", "text", http_status=status, retryable=retryable)


def not_yet(offset: int, write_head: int) -> pb.BrokerStatusError:
    response = pb.ReadResponse(offset=offset, write_head=write_head)
    return status_error(STATUS.OFFSET_NOT_YET_AVAILABLE, response=response)


def refusal(*members: str, status: int = STATUS.NOT_JOURNAL_BROKER) -> pb.BrokerStatusError:
    """A refusal which names other brokers."""
    header = pb.Header(
        route=pb.Route(members=[pb.ProcessSpec.ID(zone="a", suffix=name) for name in members])
    )
    return status_error(status, header=header)


def fail(operation: Operation, error: pb.GazetteError | None, attempt: int = 0) -> Failure:
    return Failure(operation, error, attempt, REQUESTS[operation])


def retries(failure: Failure, **options: Any) -> bool:
    return decide(failure, RetryPolicy(**options)).retry


def attempts_of(failure: Failure, **options: Any) -> int:
    """Attempts which a failure takes that repeats itself, or MANY if it never ends."""
    return next(
        (n + 1 for n in range(MANY) if not retries(failure._replace(attempt=n), **options)), MANY
    )


errors = st.sampled_from(
    [
        *(status_error(status) for status in [*STATUSES, 99]),
        *(coded(code) for code in (*PERMANENT, *PASSING)),
        *(fetched(status, retryable=again) for status in (404, 418) for again in (False, True)),
        MASKED,
        *OURS,
        pb.ValidationError("a response"),
        pb.FragmentError("damaged"),
        pb.UnexpectedEOFError("cut short"),
        not_yet(10, 20),
        refusal("one"),
        refusal("one", status=NOT_PRIMARY),
    ]
)
failures = st.builds(
    lambda operation, error, attempt, hops, established, direct: Failure(
        operation, error, attempt, request_of(operation, direct=direct), 0.0, hops, established
    ),
    st.sampled_from(Operation),
    st.none() | errors,
    st.integers(0, 20),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.none() | st.integers(1, 30),
    permanent_attempts=st.integers(1, 10),
    retry_not_found=st.booleans(),
    retry_check_registers=st.booleans(),
)


def request_of(operation: Operation, *, direct: bool) -> Any:
    request = type(REQUESTS[operation])()
    request.CopyFrom(REQUESTS[operation])
    if direct and operation in (READ, APPEND, SERVICE):
        request.do_not_proxy = True
    return request


# Delays and bounds.


def test_delays_grow_from_none_to_seconds() -> None:
    delays = [backoff(attempt) for attempt in range(-2, 50)]
    assert delays == sorted(delays)
    assert delays[:2] == [0.0, 0.0]
    assert all(0 < delay <= 0.1 for delay in delays[2:6])
    assert max(delays) == backoff(10**9) == 5.0


@given(failure=failures, policy=policies)
def test_every_failure_is_decided_within_the_bounds(failure: Failure, policy: RetryPolicy) -> None:
    decision = decide(failure, policy)
    if decision.hop:
        assert (decision.retry, decision.delay, decision.log_level) == (True, 0.0, 0)
        return
    assert decision.delay in (0.0, *(policy.backoff(n) for n in range(failure.attempt + 1)))
    if not decision.retry:
        return
    assert policy.max_attempts is None or failure.attempt + 1 < policy.max_attempts
    assert not decide(
        failure._replace(elapsed=7.0), dataclasses.replace(policy, max_elapsed=7.0)
    ).retry
    assert decide(failure._replace(elapsed=6.9), dataclasses.replace(policy, max_elapsed=7.0)).retry


@given(failure=failures, policy=policies)
def test_what_is_given_up_stays_so(failure: Failure, policy: RetryPolicy) -> None:
    if not decide(failure, policy).retry:
        assert not decide(failure._replace(attempt=failure.attempt + 1), policy).retry


@given(failure=failures, policy=policies, answer=st.sampled_from([None, True, False]))
def test_users_have_the_last_word_within_the_bounds(
    failure: Failure, policy: RetryPolicy, answer: bool | None
) -> None:
    decision = decide(failure, dataclasses.replace(policy, on_error=lambda _: answer))
    if answer is None:
        assert decision == decide(failure, policy)
    elif not answer:
        assert not decision.retry
    else:
        is_within = policy.max_attempts is None or failure.attempt + 1 < policy.max_attempts
        assert decision.retry is (decision.hop or is_within)


@given(failure=failures)
def test_first_failures_are_logged_less_than_further_ones(failure: Failure) -> None:
    first = decide(failure._replace(attempt=0), RetryPolicy())
    later = decide(failure._replace(attempt=1), RetryPolicy())
    assert {first.log_level, later.log_level} <= {0, logging.WARNING}
    if first.retry and later.retry:
        assert first.log_level <= later.log_level
    if failure.error is None and failure.operation in (READ, WATCH):
        assert later.log_level == 0


def test_policies_are_checked_and_pickle() -> None:
    wrong: list[dict[str, Any]] = [
        {"max_attempts": 0},
        {"max_elapsed": -1.0},
        {"jitter": 1.0},
        {"permanent_attempts": 0},
    ]
    for options in wrong:
        with pytest.raises(pb.ConfigurationError):
            RetryPolicy(**options)
    policy = RetryPolicy(max_attempts=3, jitter=0.0)
    assert pickle.loads(pickle.dumps(policy)) == policy


# Operations, by the failures which end them.


def ending(operation: Operation, attempt: int) -> set[str]:
    """Names of the statuses which end an operation at the failed attempt `attempt`."""
    return {
        STATUS.Name(status)
        for status in STATUSES
        if not retries(fail(operation, status_error(status), attempt))
    }


NEVER_READABLE = {"OFFSET_NOT_YET_AVAILABLE", "SUSPENDED", "NOT_ALLOWED"}
NEVER_APPENDED = {
    "FRAGMENT_STORE_UNHEALTHY",
    "INDEX_HAS_GREATER_OFFSET",
    "JOURNAL_NOT_FOUND",
    "NOT_ALLOWED",
    "REGISTER_MISMATCH",
    "WRONG_APPEND_OFFSET",
}
CHANGING = {
    "NOT_JOURNAL_PRIMARY_BROKER",
    "NO_JOURNAL_PRIMARY_BROKER",
    "INSUFFICIENT_JOURNAL_BROKERS",
}


@pytest.mark.parametrize(
    ("operation", "at_first", "at_last"),
    [
        (READ, NEVER_READABLE, NEVER_READABLE | {"JOURNAL_NOT_FOUND"}),
        (APPEND, *([{STATUS.Name(status) for status in STATUSES} - CHANGING] * 2)),
        (SERVICE, NEVER_APPENDED, NEVER_APPENDED),
        (CONTROL, *([{STATUS.Name(status) for status in STATUSES}] * 2)),
        (WATCH, set(), set()),
        (POLL, *([{STATUS.Name(status) for status in STATUSES}] * 2)),
    ],
)
def test_statuses_which_end_an_operation(
    operation: Operation, at_first: set[str], at_last: set[str]
) -> None:
    assert ending(operation, 0) == at_first
    assert ending(operation, MANY) == at_last
    # A status of another release is retried where nothing can be lost by it.
    assert retries(fail(operation, status_error(99))) is (operation in (READ, SERVICE, WATCH))


@pytest.mark.parametrize(
    ("operation", "codes"),
    [
        (READ, set(PASSING)),
        # With others, a broker may have committed the append, and a second one would repeat it.
        (APPEND, TRANSIENT_CODES & set(PASSING)),
        (SERVICE, set(PASSING)),
        (CONTROL, set()),
        (WATCH, set(PASSING)),
        (POLL, set()),
    ],
)
def test_codes_which_are_retried_for_ever(operation: Operation, codes: set[str]) -> None:
    found = {code for code in PASSING if attempts_of(fail(operation, coded(code))) == MANY}
    assert found == codes
    assert not any(attempts_of(fail(operation, coded(code))) == MANY for code in PERMANENT)


@pytest.mark.parametrize("code", PERMANENT)
def test_permanent_codes_end_all_but_what_has_worked(code: str) -> None:
    # The token of the first attempt may have expired.
    expected = 3 if code == "UNAUTHENTICATED" else 1
    for operation in (READ, APPEND, CONTROL, WATCH):
        assert attempts_of(fail(operation, coded(code))) == expected
    # Appends of a service end all later ones of their journal.
    assert attempts_of(fail(SERVICE, coded(code))) == 4
    assert attempts_of(fail(SERVICE, coded(code)), permanent_attempts=1) == 1
    for operation in (WATCH, POLL):
        established = fail(operation, coded(code))._replace(established=True)
        assert attempts_of(established) == MANY


@pytest.mark.parametrize("error", OURS)
def test_failures_of_our_own_end_all_but_what_has_worked(error: pb.GazetteError) -> None:
    for operation in Operation:
        assert not retries(fail(operation, error))
        established = fail(operation, error)._replace(established=True)
        assert retries(established) is (operation in (WATCH, POLL))


@given(error=st.none() | errors)
def test_established_lists_never_fail(error: pb.GazetteError | None) -> None:
    for operation in (WATCH, POLL):
        if operation is WATCH or error is not None:
            assert retries(fail(operation, error, MANY)._replace(established=True))


def test_transient_codes_are_retried_by_one_rule() -> None:
    for code in TRANSIENT_CODES:
        error = pb.TransportError(code, "text", retryable=is_transient(code, "text"))
        assert attempts_of(fail(CONTROL, error)) == 7
        closed = pb.TransportError(code, "the client was closed")
        assert attempts_of(fail(CONTROL, closed)) == attempts_of(fail(APPEND, closed)) == 1
    for text in ("Received message larger than max (9 vs. 4)", "received metadata size exceeds 8"):
        assert not is_transient("RESOURCE_EXHAUSTED", text)


def test_ends_of_streams_cost_a_delay_from_the_second_on() -> None:
    for operation in (READ, WATCH):
        delays = [decide(fail(operation, None, n), RetryPolicy()).delay for n in range(3)]
        assert delays == [0.0, backoff(0), backoff(1)]


def test_reads_at_the_write_head() -> None:
    at_head = fail(READ, not_yet(20, 20))
    assert attempts_of(at_head) == 1
    assert attempts_of(at_head._replace(request=pb.ReadRequest(block=True))) == MANY
    # A replica which lags behind is given some time.
    assert 1 < attempts_of(fail(READ, not_yet(10, 20))) < 10


def test_a_missing_journal_is_given_some_time_to_appear() -> None:
    missing = status_error(STATUS.JOURNAL_NOT_FOUND)
    assert 1 < attempts_of(fail(READ, missing)) < 10
    assert attempts_of(fail(APPEND, missing)) == 1
    assert 1 < attempts_of(fail(APPEND, missing), retry_not_found=True) < 10


def test_fragment_files() -> None:
    bad_certificate = pb.TransportError("UNAVAILABLE", "invalid", retryable=False)
    damaged = pb.FragmentError("damaged")
    for error in (damaged, bad_certificate, fetched(404), fetched(418, retryable=False)):
        found = [attempts_of(fail(READ, error), permanent_attempts=n) for n in (1, 4)]
        assert found == ([MANY, MANY] if error.retryable else [1, 4])
    assert attempts_of(fail(READ, fetched(503))) == MANY


def test_a_masked_status_is_asked_for_again() -> None:
    assert 1 < attempts_of(fail(APPEND, MASKED)) < 10
    assert attempts_of(fail(SERVICE, MASKED)) == MANY


def test_an_invalid_response_may_stand_for_an_append() -> None:
    error = pb.ValidationError("a response")
    assert not retries(fail(APPEND, error))
    assert attempts_of(fail(SERVICE, error)) == 4
    assert attempts_of(fail(READ, error)) == MANY


def test_a_service_which_waits_to_be_fenced_off() -> None:
    mismatch = fail(SERVICE, status_error(STATUS.REGISTER_MISMATCH))
    selector = pb.LabelSelector(include=pb.label_set("a-label", ""))
    fencing = mismatch._replace(request=pb.AppendRequest(journal=JOURNAL, check_registers=selector))
    assert not retries(mismatch, retry_check_registers=True)
    assert not retries(fencing)
    assert attempts_of(fencing, retry_check_registers=True) == MANY


@pytest.mark.parametrize(
    ("revisions", "is_repeated"), [((), True), ((-1, -1), True), ((-1, 0), False), ((7,), False)]
)
def test_an_apply_is_repeated_if_that_makes_no_difference(
    revisions: tuple[int, ...], is_repeated: bool
) -> None:
    changes = [pb.ApplyRequest.Change(expect_mod_revision=revision) for revision in revisions]
    failure = fail(CONTROL, coded("UNAVAILABLE"))._replace(request=pb.ApplyRequest(changes=changes))
    assert retries(failure) is is_repeated
    assert attempts_of(failure) < 10


# Refusals which name another broker.

DIRECT = {
    READ: pb.ReadRequest(journal=JOURNAL, do_not_proxy=True),
    APPEND: pb.AppendRequest(journal=JOURNAL, do_not_proxy=True),
    SERVICE: pb.AppendRequest(journal=JOURNAL, do_not_proxy=True),
    CONTROL: pb.FragmentsRequest(journal=JOURNAL, do_not_proxy=True),
}


@pytest.mark.parametrize("operation", DIRECT)
@pytest.mark.parametrize("status", [STATUS.NOT_JOURNAL_BROKER, NOT_PRIMARY])
def test_refusals_are_followed_if_the_request_forbids_to_proxy(
    operation: Operation, status: int
) -> None:
    direct = fail(operation, refusal("one", status=status))._replace(request=DIRECT[operation])
    assert decide(direct, RetryPolicy(max_attempts=1)).hop
    assert decide(direct._replace(hops=2), RetryPolicy(max_attempts=1)).hop
    for other in (
        direct._replace(hops=3),
        direct._replace(request=REQUESTS[operation]),
        direct._replace(error=refusal(status=status)),
        direct._replace(error=status_error(status)),
        direct._replace(error=refusal("one", status=STATUS.JOURNAL_NOT_FOUND)),
    ):
        assert not decide(other, RetryPolicy()).hop
    assert not retries(direct, on_error=lambda _: False)


def test_headers_of_refusals_are_kept_for_the_next_attempt_only() -> None:
    request = pb.ReadRequest(journal=JOURNAL, do_not_proxy=True)
    attempts = Attempts(READ, RetryPolicy(backoff=lambda _: 0.5, jitter=0.0), request)
    error = refusal("one")
    for _ in range(3):
        assert attempts.failed(error) == 0.0
        assert request.header == error.header
        assert attempts.count == 0
    assert attempts.failed(error) == 0.5
    assert not request.HasField("header")
    assert attempts.count == 1
    # Hops which follow something else begin anew.
    assert attempts.failed(error) == 0.0
    assert request.HasField("header")
    attempts.failed(None)
    assert not request.HasField("header")
    for _ in range(2):
        attempts.failed(error)
    attempts.succeeded()
    assert [attempts.failed(error) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_no_record_promises_that_a_retried_call_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Attempts(Operation.CONTROL, RetryPolicy(max_attempts=3), pb.ListRequest())
    for _ in range(2):
        attempts.failed(pb.TransportError("UNAVAILABLE", "gone", retryable=True))
    with pytest.raises(pb.TransportError, match="gone"):
        attempts.failed(pb.TransportError("UNAVAILABLE", "gone", retryable=True))
    [record] = caplog.records
    assert record.message == "control of ListRequest fails, and is retried: UNAVAILABLE: gone"


@pytest.mark.parametrize("operation", [READ, APPEND, SERVICE, CONTROL, WATCH])
def test_a_refused_token_is_raised_and_not_logged(
    operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = Attempts(operation, RetryPolicy(), REQUESTS[operation])
    error = pb.TransportError("UNAUTHENTICATED", "who are you")

    def fail_often() -> None:
        for _ in range(MANY):
            attempts.failed(error)

    with pytest.raises(pb.TransportError, match="who are you"):
        fail_often()
    assert attempts.count > 1
    assert not caplog.records


def test_a_refused_token_is_logged_if_it_is_retried_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = Attempts(SERVICE, RetryPolicy(permanent_attempts=MANY), REQUESTS[SERVICE])
    for _ in range(MANY - 1):
        attempts.failed(pb.TransportError("UNAUTHENTICATED", "who are you"))
    assert "who are you" in caplog.text
