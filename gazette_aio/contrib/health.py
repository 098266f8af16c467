"""Health of a client, for the probes of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.errors import GazetteError

if TYPE_CHECKING:
    from gazette_aio.client import ClientStatus, JournalClient

MOST_PENDING_BYTES: Final = 256 << 20
PROBE_SECONDS: Final = 2.0

_PROBE: Final = "name=gazette-aio/health"
"""Selector of a journal that doesn't have to exist."""


def problems(
    client: JournalClient, *, max_pending_bytes: int = MOST_PENDING_BYTES
) -> tuple[str, ...]:
    """Return the problems of a client, without a request: a readiness probe.

    Args:
        client: The client.
        max_pending_bytes: Most bytes of pending appends without a problem; 256 MiB by default.

    Returns:
        Texts without secrets; none if the client works, or wasn't used yet.

    Example:
        if found := problems(client):
            return Response(str(found), status_code=503)
    """
    return status_problems(client.status(), max_pending_bytes=max_pending_bytes)


def status_problems(status: ClientStatus, *, max_pending_bytes: int) -> tuple[str, ...]:
    """Return the problems that a status shows.

    Args:
        status: Status of the client.
        max_pending_bytes: Most bytes of pending appends without a problem.
    """
    found: list[str] = []
    if status.connection in ("transient_failure", "closed"):
        found.append(f"the connection to {status.endpoint} is in state {status.connection}")
    if failed := status.appends.failed_journals:
        found.append(f"appends to {failed} journals fail until clear_error()")
    if (pending := status.appends.pending_bytes) > max_pending_bytes:
        found.append(f"{pending} bytes wait to be appended")
    found += [
        f"the list of journals {watch.selector!r} isn't current: {watch.last_error}"
        for watch in status.watches
        if watch.last_error is not None
    ]
    return tuple(found)


async def probe(
    client: JournalClient,
    *,
    timeout: float = PROBE_SECONDS,  # noqa: ASYNC109 - The error tells what failed.
    max_pending_bytes: int = MOST_PENDING_BYTES,
) -> tuple[str, ...]:
    """Return the problems of a client, after a request to a broker.

    Use this as a startup or readiness probe, not as a liveness probe: a restart of the service
    doesn't help if its broker is away. The token of the client must permit LIST.

    Args:
        client: The client.
        timeout: Seconds to wait for the broker's answer; 2 by default.
        max_pending_bytes: As for `problems()`.

    Cancellation: safe.
    """
    found = problems(client, max_pending_bytes=max_pending_bytes)
    try:
        await client.list(_PROBE, timeout=timeout)
    except GazetteError as error:
        return (*found, str(error))
    return found
