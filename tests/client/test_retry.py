from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import Failure, Operation, RetryPolicy, backoff
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import RULES, Course, decide, matching_rule
from gazette_aio.protocol.errors import status_error

READ = pb.ReadRequest(journal="a/journal")
BLOCKING = pb.ReadRequest(journal="a/journal", block=True)
APPEND = pb.AppendRequest(journal="a/journal")
REGISTERS = pb.AppendRequest(
    journal="a/journal", check_registers=pb.LabelSelector(include=pb.label_set("a-label", ""))
)
STATUS = pb.Status
MASKED = pb.TransportError("INTERNAL", "Internal error from Core")


def fail(
    operation: Operation,
    error: object,
    attempt: int = 0,
    request: object = READ,
    *,
    established: bool = False,
) -> Failure:
    if isinstance(error, int):
        error = status_error(error)
    elif isinstance(error, str):
        error = pb.TransportError(error, "text")
    return Failure(operation, error, attempt, request, established=established)  # type: ignore[arg-type]


def test_the_schedule() -> None:
    assert [backoff(attempt) for attempt in range(-2, 9)] == [
        0.0, 0.0, 0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0, 5.0, 5.0,
    ]  # fmt: skip
    assert backoff(10**6) == 5.0


def apply_request(*revisions: int) -> pb.ApplyRequest:
    return pb.ApplyRequest(
        changes=[pb.ApplyRequest.Change(expect_mod_revision=revision) for revision in revisions]
    )


R, A, S = Operation.READ, Operation.APPEND, Operation.APPEND_SERVICE
C = Operation.CONTROL
W, P = Operation.WATCH, Operation.POLL
LIST = pb.ListRequest()
RAISE, RETRY = Course.RAISE, Course.RETRY
QUIET, SILENT = Course.RETRY_QUIET_AT_FIRST, Course.RETRY_SILENT


def behind_head() -> pb.BrokerStatusError:
    response = pb.ReadResponse(offset=10, write_head=20)
    return status_error(STATUS.OFFSET_NOT_YET_AVAILABLE, response=response)


CASES = [
    (fail(R, None), SILENT),
    (fail(R, STATUS.OFFSET_NOT_YET_AVAILABLE), RAISE),
    (fail(R, STATUS.OFFSET_NOT_YET_AVAILABLE, request=BLOCKING), SILENT),
    (fail(R, STATUS.INSUFFICIENT_JOURNAL_BROKERS), QUIET),
    (fail(R, STATUS.NOT_JOURNAL_BROKER), QUIET),
    (fail(R, STATUS.JOURNAL_NOT_FOUND, 3), QUIET),
    (fail(R, STATUS.JOURNAL_NOT_FOUND, 4), RAISE),
    (fail(R, STATUS.SUSPENDED), RAISE),
    (fail(R, STATUS.NOT_ALLOWED), RAISE),
    (fail(R, 99), RETRY),
    (fail(R, "UNAVAILABLE"), RETRY),
    (fail(R, "CANCELLED"), RETRY),
    (fail(R, "UNKNOWN", 1000), RETRY),
    (fail(R, "UNAUTHENTICATED", 1), QUIET),
    (fail(R, "UNAUTHENTICATED", 2), RAISE),
    (fail(A, "UNAUTHENTICATED", 1, APPEND), QUIET),
    (fail(A, "UNAUTHENTICATED", 2, APPEND), RAISE),
    (fail(C, "UNAUTHENTICATED", 1, pb.ListRequest()), QUIET),
    (fail(C, "UNAUTHENTICATED", 2, pb.ListRequest()), RAISE),
    (fail(R, "PERMISSION_DENIED"), RAISE),
    (fail(R, "UNIMPLEMENTED"), RAISE),
    (fail(R, "INVALID_ARGUMENT"), RAISE),
    (fail(R, pb.AuthorizationError("no")), RAISE),
    (fail(R, pb.ConfigurationError("no")), RAISE),
    (fail(R, pb.ValidationError("a response")), RETRY),
    (fail(A, "UNAVAILABLE", 1000, APPEND), RETRY),
    (fail(A, "UNKNOWN", 0, APPEND), RAISE),
    (fail(A, "CANCELLED", 0, APPEND), RAISE),
    (fail(A, MASKED, 3, APPEND), RETRY),
    (fail(A, MASKED, 4, APPEND), RAISE),
    (fail(A, STATUS.NOT_JOURNAL_PRIMARY_BROKER, 0, APPEND), QUIET),
    (fail(A, STATUS.NO_JOURNAL_PRIMARY_BROKER, 0, APPEND), QUIET),
    (fail(A, STATUS.INSUFFICIENT_JOURNAL_BROKERS, 0, APPEND), QUIET),
    (fail(A, STATUS.JOURNAL_NOT_FOUND, 0, APPEND), RAISE),
    (fail(A, STATUS.WRONG_APPEND_OFFSET, 0, APPEND), RAISE),
    (fail(A, STATUS.REGISTER_MISMATCH, 0, REGISTERS), RAISE),
    (fail(S, "UNKNOWN", 1000, APPEND), QUIET),
    (fail(S, STATUS.FRAGMENT_STORE_UNHEALTHY, 0, APPEND), RAISE),
    (fail(S, STATUS.INDEX_HAS_GREATER_OFFSET, 0, APPEND), RAISE),
    (fail(S, STATUS.JOURNAL_NOT_FOUND, 0, APPEND), RAISE),
    (fail(S, STATUS.NOT_ALLOWED, 0, APPEND), RAISE),
    (fail(S, STATUS.REGISTER_MISMATCH, 0, REGISTERS), RAISE),
    (fail(S, STATUS.WRONG_APPEND_OFFSET, 0, APPEND), RAISE),
    (fail(S, STATUS.SUSPENDED, 0, APPEND), QUIET),
    (fail(S, "UNAUTHENTICATED", 2, APPEND), QUIET),
    (fail(S, "UNAUTHENTICATED", 3, APPEND), RAISE),
    (fail(S, pb.AuthorizationError("no"), 0, APPEND), RAISE),
    (fail(S, pb.ValidationError("a response"), 2, APPEND), QUIET),
    (fail(S, pb.ValidationError("a response"), 3, APPEND), RAISE),
    (fail(S, MASKED, 1000, APPEND), QUIET),
    (fail(C, "UNAVAILABLE", 5, pb.ListRequest()), QUIET),
    (fail(C, "UNAVAILABLE", 6, pb.ListRequest()), RAISE),
    (fail(C, "UNAVAILABLE", 0, pb.ApplyRequest()), QUIET),
    (fail(C, "UNAVAILABLE", 0, apply_request(-1, -1)), QUIET),
    (fail(C, "UNAVAILABLE", 0, apply_request(-1, 0)), RAISE),
    (fail(C, "UNAVAILABLE", 0, apply_request(7)), RAISE),
    (fail(C, "UNKNOWN", 0, pb.ListRequest()), RAISE),
    (fail(C, STATUS.ETCD_TRANSACTION_FAILED, 0, apply_request(-1)), RAISE),
    (fail(R, behind_head(), 3), SILENT),
    (fail(R, behind_head(), 4), RAISE),
    (fail(R, pb.FragmentError("damaged"), 2), RETRY),
    (fail(R, pb.FragmentError("damaged"), 3), RAISE),
    (fail(R, pb.TransportError("", "no such file", http_status=404), 2), QUIET),
    (fail(R, pb.TransportError("", "no such file", http_status=404), 3), RAISE),
    (fail(C, STATUS.NOT_JOURNAL_BROKER, 0, LIST), RAISE),
    (fail(W, None, 0, LIST), SILENT),
    (fail(W, None, 1000, LIST, established=True), SILENT),
    (fail(W, "UNAUTHENTICATED", 1, LIST), QUIET),
    (fail(W, "UNAUTHENTICATED", 2, LIST), RAISE),
    (fail(W, "PERMISSION_DENIED", 0, LIST), RAISE),
    (fail(W, "UNIMPLEMENTED", 0, LIST), RAISE),
    (fail(W, "UNAUTHENTICATED", 1000, LIST, established=True), QUIET),
    (fail(W, "UNAVAILABLE", 1000, LIST), QUIET),
    (fail(W, "UNKNOWN", 0, LIST), QUIET),
    (fail(W, pb.AuthorizationError("no"), 0, LIST), RAISE),
    (fail(W, pb.ConfigurationError("no"), 0, LIST), RAISE),
    (fail(W, pb.AuthorizationError("no"), 0, LIST, established=True), QUIET),
    (fail(W, pb.ValidationError("a response"), 0, LIST), QUIET),
    (fail(W, STATUS.WRONG_ROUTE, 0, LIST), QUIET),
    (fail(P, "UNAVAILABLE", 0, LIST), RAISE),
    (fail(P, "UNAVAILABLE", 1000, LIST, established=True), RETRY),
    (fail(P, pb.AuthorizationError("no"), 0, LIST, established=True), RETRY),
]


@pytest.mark.parametrize(("failure", "course"), CASES)
def test_the_table(failure: Failure, course: Course) -> None:
    assert matching_rule(failure, RetryPolicy()).course is course
    assert decide(failure, RetryPolicy()).retry is (course is not RAISE)


def test_options_of_rows() -> None:
    not_found = fail(A, STATUS.JOURNAL_NOT_FOUND, 3, APPEND)
    assert decide(not_found, RetryPolicy(retry_not_found=True)).retry
    assert not decide(not_found._replace(attempt=4), RetryPolicy(retry_not_found=True)).retry

    holding_on = RetryPolicy(retry_check_registers=True)
    mismatch = fail(S, STATUS.REGISTER_MISMATCH, 99, REGISTERS)
    assert decide(mismatch, holding_on).retry
    assert not decide(mismatch._replace(request=APPEND), holding_on).retry

    assert not decide(fail(S, "UNIMPLEMENTED", 0, APPEND), RetryPolicy(permanent_attempts=1)).retry


@pytest.mark.parametrize("status", [s for s in STATUS.values() if s != STATUS.OK])
@pytest.mark.parametrize("operation", Operation)
def test_every_status_has_a_row(operation: Operation, status: int) -> None:
    request = READ if operation is R else APPEND
    for attempt in (0, 3, 4, 100):
        assert matching_rule(fail(operation, status, attempt, request), RetryPolicy()) in RULES


def test_each_row_is_of_use() -> None:
    cases = [
        *((failure, RetryPolicy()) for failure, _ in CASES),
        *((fail(*case[:2], 0, case[2]), RetryPolicy()) for case in FOLLOWED),
        (
            fail(A, STATUS.JOURNAL_NOT_FOUND, 0, APPEND),
            RetryPolicy(retry_not_found=True),
        ),
        (
            fail(S, STATUS.REGISTER_MISMATCH, 0, REGISTERS),
            RetryPolicy(retry_check_registers=True),
        ),
    ]
    reached = {id(matching_rule(failure, policy)) for failure, policy in cases}
    assert [rule.what for rule in RULES if id(rule) not in reached] == []


def test_rows_are_told_apart_and_explained() -> None:
    assert len({(rule.operation, rule.what) for rule in RULES}) == len(RULES)
    assert all(rule.why.endswith(".") for rule in RULES)


def test_logging_levels() -> None:
    policy = RetryPolicy()
    assert decide(fail(R, None, 5), policy).log_level == 0
    assert decide(fail(R, STATUS.NOT_JOURNAL_BROKER), policy).log_level == 0
    assert decide(fail(R, STATUS.NOT_JOURNAL_BROKER, 1), policy).log_level == logging.WARNING
    assert decide(fail(R, "UNKNOWN"), policy).log_level == logging.WARNING


def test_delays() -> None:
    policy = RetryPolicy()
    assert [decide(fail(R, None, attempt), policy).delay for attempt in range(4)] == [
        0.0, 0.05, 0.05, 0.1,
    ]  # fmt: skip
    assert [decide(fail(R, "UNKNOWN", attempt), policy).delay for attempt in range(3)] == [
        0.05, 0.05, 0.1,
    ]  # fmt: skip


def test_bounds() -> None:
    error = fail(R, "UNAVAILABLE", 2)
    assert decide(error, RetryPolicy(max_attempts=4)).retry
    assert not decide(error, RetryPolicy(max_attempts=3)).retry
    late = error._replace(elapsed=10.0)
    assert decide(late, RetryPolicy(max_elapsed=10.5)).retry
    assert not decide(late, RetryPolicy(max_elapsed=10.0)).retry


@pytest.mark.parametrize(
    ("answer", "error", "retried"),
    [
        (None, "UNAVAILABLE", True),
        (False, "UNAVAILABLE", False),
        (True, "PERMISSION_DENIED", True),
        (None, "PERMISSION_DENIED", False),
    ],
)
def test_the_user_has_the_last_word(answer: bool | None, error: str, retried: bool) -> None:
    assert decide(fail(R, error), RetryPolicy(on_error=lambda _: answer)).retry is retried
    # Bounds hold nevertheless.
    bounded = RetryPolicy(on_error=lambda _: answer, max_attempts=1)
    assert not decide(fail(R, error), bounded).retry


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


# Refusals which name another broker.


def refusal(*members: str, status: int = STATUS.NOT_JOURNAL_BROKER) -> pb.BrokerStatusError:
    header = pb.Header(
        route=pb.Route(members=[pb.ProcessSpec.ID(zone="a", suffix=name) for name in members])
    )
    return status_error(status, header=header)


NOT_PRIMARY = STATUS.NOT_JOURNAL_PRIMARY_BROKER
DIRECT_READ = pb.ReadRequest(journal="a/journal", do_not_proxy=True)
DIRECT_APPEND = pb.AppendRequest(journal="a/journal", do_not_proxy=True)
DIRECT_FRAGMENTS = pb.FragmentsRequest(journal="a/journal", do_not_proxy=True)


FOLLOWED = [
    (R, refusal("one"), DIRECT_READ, Course.HOP),
    (A, refusal("one", status=NOT_PRIMARY), DIRECT_APPEND, Course.HOP),
    (S, refusal("one", status=NOT_PRIMARY), DIRECT_APPEND, Course.HOP),
    (C, refusal("one"), DIRECT_FRAGMENTS, Course.HOP),
    # Who may proxy, or tells of nobody, is to try again himself.
    (R, refusal("one"), READ, QUIET),
    (R, refusal(), DIRECT_READ, QUIET),
    (R, status_error(STATUS.NOT_JOURNAL_BROKER), DIRECT_READ, QUIET),
    (A, refusal("one", status=NOT_PRIMARY), APPEND, QUIET),
    (C, refusal("one"), pb.FragmentsRequest(journal="a/journal"), RAISE),
    (R, refusal("one", status=STATUS.JOURNAL_NOT_FOUND), DIRECT_READ, QUIET),
]


@pytest.mark.parametrize(("operation", "error", "request_", "course"), FOLLOWED)
def test_refusals_are_followed(
    operation: Operation, error: pb.GazetteError, request_: object, course: Course
) -> None:
    assert matching_rule(fail(operation, error, 0, request_), RetryPolicy()).course is course


def test_hops_cost_nothing_and_are_bounded() -> None:
    failure = fail(R, refusal("one"), 0, DIRECT_READ)
    strict = RetryPolicy(max_attempts=1)
    assert decide(failure, strict) == (True, 0.0, 0, True)
    assert decide(failure._replace(hops=2), strict).hop
    assert not decide(failure._replace(hops=3), strict).retry
    later = decide(failure._replace(hops=3), RetryPolicy())
    assert later.retry
    assert not later.hop
    assert not decide(failure, RetryPolicy(on_error=lambda _: False)).retry


def test_headers_of_refusals_are_kept_for_the_next_attempt_only() -> None:
    request = pb.ReadRequest(journal="a/journal", do_not_proxy=True)
    attempts = Attempts(R, RetryPolicy(backoff=lambda _: 0.5, jitter=0.0), request)
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
