"""Probes of the write head of a journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client.attempts import until_success
from gazette_aio.client.reads.reader import Reader
from gazette_aio.client.retry import Operation
from gazette_aio.client.rpc.member_choice import Mode
from gazette_aio.client.rpc.read_message import ReadContent
from gazette_aio.protocol.journal import encodable

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient

PROBE_SECONDS: Final = 30.0
"""Seconds within which a broker must answer a probe."""

LOOK_LIMIT_SECONDS: Final = 10.0
"""Seconds to wait for an answer to a single look at the head."""

_ANSWERS: Final = (pb.Status.OK, pb.Status.OFFSET_NOT_YET_AVAILABLE)


async def head_of(client: JournalClient, journal: str, seconds: float = PROBE_SECONDS) -> int:
    """Return the write head of a journal, as one of its brokers knows it.

    This takes one RPC without content. The broker may not know the most recent appends yet.

    Args:
        client: Client to use.
        journal: Name of the journal.
        seconds: Time limit of an answer and of retries.

    Raises:
        ValidationError: The name isn't valid.
        BrokerStatusError: The broker refused.
        TransportError: The RPC failed.
        OperationTimeoutError: No broker answers in time.

    Cancellation: safe.
    """
    context = client.context
    request = pb.ReadRequest(journal=encodable(journal), offset=-1, metadata_only=True)
    context.rpc.check_request(request)  # Failures of attempts to read are retried.
    deadline = context.deadline("probe", seconds, journal=journal)

    async def look() -> int:
        async with Reader(client, request, on_offset_jump="skip") as reader:
            response = await reader.next_response()
            if response is not None and response.status in _ANSWERS:
                return response.write_head
            await reader.next_response()  # Raises the exception of the status.
            text = f"the broker ended a probe of journal {journal}"
            raise pb.TransportError("UNAVAILABLE", text, journal=journal, retryable=True)

    policy, ready = context.retry_policy, context.dispatcher.ready
    return await deadline.run(
        until_success(look, Operation.READ, policy, request, ready=ready, deadline=deadline)
    )


async def look_at_head(
    client: JournalClient, journal: str, before: pb.Header | None, claims: pb.Claims | None
) -> pb.ReadResponse | None:
    """Return what a broker knows of the write head of a journal, or None if none answers.

    Args:
        client: Client to use.
        journal: Name of the journal.
        before: Header of an earlier answer. If given, its primary is asked, if it can be reached,
            after it has listed the fragment stores.
        claims: Claims of the RPCs; None for the least ones they need.

    Cancellation: safe.
    """
    rpc = client.context.rpc
    request = pb.ReadRequest(
        header=before, journal=journal, offset=-1, metadata_only=True, block=False
    )
    try:
        async with client.context.head_looks, asyncio.timeout(LOOK_LIMIT_SECONDS):
            if before is not None:
                listing = pb.FragmentsRequest(header=before, journal=journal, page_limit=1)
                await rpc.list_fragments(listing, claims=claims, mode=Mode.PRIMARY)
            stream = await rpc.read(request, claims=claims, mode=Mode.PRIMARY)
            try:
                response = await stream.receive()
            finally:
                await stream.aclose()
    except (pb.GazetteError, TimeoutError):
        return None
    if response is None or isinstance(response, ReadContent) or response.status not in _ANSWERS:
        return None
    return response
