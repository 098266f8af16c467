"""Conversion of gRPC's failures to the exceptions of this package."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.client.retry import MASKED_DETAILS, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


T = TypeVar("T")

TRUST_REMEDY: Final = "tls=TLSOptions(ca_file=…)"
AUTH_REMEDY: Final = "pass auth=KeyedAuth(…) or auth=BearerAuth(…)"
"""Remedies of programs, in whose place the command line names its options."""

_CONNECTION_REMEDIES: Final = (
    ("http1.x server", "the server speaks HTTP/1, not gRPC: give the port of gRPC"),
    ("WRONG_VERSION_NUMBER", "the server doesn't speak TLS: write http:// in the address"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        f"the server's certificate isn't trusted: name its authority by {TRUST_REMEDY}",
    ),
    (
        "Socket closed",
        "the server ends connections at once: if it speaks TLS, write https:// in the address",
    ),
)
"""Remedies of failed connections, by parts of gRPC's texts."""


_AUTH_REMEDIES: Final = (
    (
        "capability",
        ": ask for a token that has it; `gazette-aio token show` says what a token allows",
    ),
    ("missing", f": {AUTH_REMEDY}"),
    ("signature is invalid", ": sign it with a key that the server has"),
    ("token is expired", ": get a new one, or set the clocks of signer and server"),
)
"""Remedies of refused tokens, by parts of servers' texts."""


def connection_failure(details: str) -> str:
    """Return gRPC's text of a failure, with the remedy if it's that of a connection, and known."""
    if "failed to connect" not in details:
        return details
    for part, remedy in _CONNECTION_REMEDIES:
        if part in details:
            return f"{remedy} ({details})"
    return details


def transport_error(
    error: grpc.aio.AioRpcError, *, endpoint: str = "", journal: str = "", peer: str = "broker"
) -> pb.TransportError:
    """Return the exception of a failed RPC, with the failure as its cause.

    Args:
        error: Failure of the RPC.
        endpoint: Endpoint called, for the texts of UNAVAILABLE and UNAUTHENTICATED.
        journal: Journal of the request, or empty.
        peer: Kind of the member at the endpoint.
    """
    code = error.code()
    details = error.details() or ""
    retryable = is_transient(code.name, details)
    if code is grpc.StatusCode.UNAVAILABLE and endpoint:
        details = f"{peer} {endpoint}: {connection_failure(details)}"
    if code is grpc.StatusCode.UNAUTHENTICATED and endpoint:
        remedy = next((text for part, text in _AUTH_REMEDIES if part in details), "")
        details = f"{peer} {endpoint}: {details}{remedy}"
    mapped = pb.TransportError(code.name, details, journal=journal, retryable=retryable)
    # Invariant: an error that is kept doesn't keep its RPC, which the traceback leads to.
    mapped.__cause__ = error.with_traceback(None)
    return mapped


def at_once(coroutine: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a coroutine, or None if it would have to wait.

    The outcome of an ended RPC is known, but grpcio has only coroutines for it.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    return None


def when_done(call: grpc.aio.Call, function: Callable[[grpc.aio.Call], object]) -> None:
    """Call a function once, when a call ends.

    Some releases of grpcio repeat callbacks when another status replaces the first.
    """
    pending = [function]

    def end(ended: grpc.aio.Call) -> None:
        if pending:
            pending.pop()(ended)

    call.add_done_callback(end)


class FirstStatus:
    """The status with which a call of several requests ended first.

    If it arrives while a request is being sent, grpcio lets the failure to send that one replace it
    (grpc/grpc#36066).
    """

    def __init__(self, call: grpc.aio.Call) -> None:
        self._error: grpc.aio.AioRpcError | None = None
        when_done(call, self._keep)

    def _keep(self, call: grpc.aio.Call) -> None:
        code, details = at_once(call.code()), at_once(call.details())
        if code is not None:
            nothing = grpc.aio.Metadata()
            self._error = grpc.aio.AioRpcError(code, nothing, nothing, details)

    def unmasked(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """Return the error of the first status, if that of the call has replaced it."""
        return self._error if self._error and error.details() == MASKED_DETAILS else error


def is_being_cancelled() -> bool:
    """Return whether the running task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def closed_channel_is_an_error(journal: str = "") -> Generator[None]:
    """Raise a TransportError for an RPC that ends because its channel is closed.

    grpcio raises CancelledError, as if the task were being cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise pb.TransportError("CANCELLED", "the client was closed", journal=journal) from None
