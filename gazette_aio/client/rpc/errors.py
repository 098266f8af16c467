"""Conversion of gRPC's failures to the exceptions of this package."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import grpc
import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.client.retry import is_transient

if TYPE_CHECKING:
    from collections.abc import Generator


def transport_error(
    error: grpc.aio.AioRpcError, *, endpoint: str = "", journal: str = "", peer: str = "broker"
) -> pb.TransportError:
    """Return the exception of a failed RPC, with the failure as its cause.

    Args:
        error: Failure of the RPC.
        endpoint: Endpoint called, for the text of UNAVAILABLE.
        journal: Journal of the request, or empty.
        peer: Kind of the member at the endpoint.
    """
    code = error.code()
    details = error.details() or ""
    retryable = is_transient(code.name, details)
    if code is grpc.StatusCode.UNAVAILABLE and endpoint:
        details = f"{peer} {endpoint}: {details}"
    mapped = pb.TransportError(code.name, details, journal=journal, retryable=retryable)
    # Invariant: an error that is kept doesn't keep its RPC, which the traceback leads to.
    mapped.__cause__ = error.with_traceback(None)
    return mapped


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
