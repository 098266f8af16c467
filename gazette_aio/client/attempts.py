"""Attempts of one retried operation: counts, delays, and log records."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.retry import Failure, Operation, RetryPolicy
from gazette_aio.client.retry_rules import decide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client.deadline import Deadline

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Attempts:
    """Failed attempts since the last success.

    Args:
        operation: The operation.
        policy: Failures to retry.
        request: The request, which the policy sees. The header of a refusal that names another
            broker is set in it for the next attempt only.
        endpoint: Endpoint of the client, for log records.

    The first failure to be logged is logged as a warning, and so is the success after it. Failures
    in between are logged for debugging.
    """

    def __init__(
        self,
        operation: Operation,
        policy: RetryPolicy,
        request: Any,
        endpoint: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._last_logged = ""
        self._operation = operation
        self._policy = policy
        self._failed_since: float | None = None
        self._hops = 0
        self.request = request
        self.count: int = 0
        """Failed attempts since the last success."""
        self.established = False
        """See `Failure`."""

    @property
    def _journal(self) -> str:
        journal: str = getattr(self.request, "journal", "")
        return journal

    @property
    def _subject(self) -> str:
        what = f"journal {self._journal}" if self._journal else type(self.request).__name__
        return f"{what} at {self._endpoint}" if self._endpoint else what

    def succeeded(self) -> None:
        """Note a success, and count from zero again."""
        if self._last_logged:
            self._log_success()
        self.reset()

    def reset(self) -> None:
        """Count from zero again, as the operation begins anew."""
        self._last_logged = ""
        self.count = 0
        self._failed_since = None
        self._hops = 0

    def failed(self, error: pb.GazetteError | None) -> float:
        """Note a failure, or with None the early end of a stream.

        Returns:
            Seconds to wait before the next attempt.

        Raises:
            GazetteError: `error` if it isn't retried, with the number of its attempt.
        """
        now = time.monotonic()
        failed_since = now if self._failed_since is None else self._failed_since
        attempt = self.count
        failure = Failure(
            operation=self._operation,
            error=error,
            attempt=attempt,
            request=self.request,
            elapsed=now - failed_since,
            hops=self._hops,
            established=self.established,
        )
        decision = decide(failure, self._policy)
        if decision.hop:
            assert isinstance(error, pb.BrokerStatusError)
            self._hops += 1
            self.request.header.CopyFrom(error.header)
            return 0.0
        self.count += 1
        self._failed_since = failed_since
        self._hops = 0
        if isinstance(self.request, pb.ReadRequest | pb.AppendRequest | pb.FragmentsRequest):
            # After any other failure, the next attempt doesn't rely on that broker.
            self.request.ClearField("header")
        if isinstance(error, pb.StatusError | pb.TransportError):
            error.attempt = attempt
        if not decision.retry:
            if error is None:
                error = pb.UnexpectedEOFError(
                    "the broker keeps ending the stream", journal=self._journal
                )
            raise error.with_traceback(None)

        if decision.log_level:
            # Invariant: a record that is kept doesn't keep the error's RPC and its connection.
            text = str(error)
            _logger.log(
                logging.DEBUG if self._last_logged else decision.log_level,
                "%s of %s fails, and is retried: %s",
                self._operation.value,
                self._subject,
                text,
                extra={"journal": self._journal, "attempt": attempt},
            )
            self._last_logged = text
        jitter = self._policy.jitter
        return decision.delay * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311

    def _log_success(self) -> None:
        assert self._failed_since is not None, "a failure was logged"
        _logger.warning(
            "%s of %s succeeds again after %d failures in %.1f s; the last one was: %s",
            self._operation.value,
            self._subject,
            self.count,
            time.monotonic() - self._failed_since,
            self._last_logged,
            extra={"journal": self._journal, "attempt": self.count},
        )


async def until_success(
    call: Callable[[], Awaitable[T]],
    operation: Operation,
    policy: RetryPolicy,
    request: Any,
    *,
    endpoint: str = "",
    ready: Callable[[], Awaitable[object]] | None = None,
    deadline: Deadline | None = None,
) -> T:
    """Return the result of `call`, repeated after pauses until it succeeds.

    Args:
        call: One attempt.
        operation: As of Attempts, like `policy`, `request` and `endpoint`.
        policy: See there.
        request: See there.
        endpoint: See there.
        ready: Waits for the server before each attempt. Its time-out isn't retried, because gRPC
            has retried meanwhile.
        deadline: Notes the latest failure that is being retried, for its own error.

    Raises:
        GazetteError: The error isn't retried.

    Cancellation: that of `call`.
    """
    attempts: Attempts | None = None
    while True:
        if ready is not None:
            await ready()
        try:
            result = await call()
        except pb.GazetteError as error:
            if attempts is None:
                attempts = Attempts(operation, policy, request, endpoint)
            if deadline is not None:
                deadline.note(error)
            await asyncio.sleep(attempts.failed(error))
        else:
            if attempts is not None:
                attempts.succeeded()
                if deadline is not None:
                    deadline.note(None)
            return result
