"""Probe of the write head of a journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.reads.reader import Reader
from gazette_aio.client.retry import Operation
from gazette_aio.protocol.journal import encodable

if TYPE_CHECKING:
    from gazette_aio.client.context import HasContext

PROBE_SECONDS: Final = 30.0
"""Seconds after which a failing probe isn't retried."""

_ANSWERS: Final = (pb.Status.OK, pb.Status.OFFSET_NOT_YET_AVAILABLE)


async def head_of(client: HasContext, journal: str, seconds: float = PROBE_SECONDS) -> int:
    """Return the write head of a journal, as one of its brokers knows it.

    This takes one RPC without content. The broker may not know the most recent appends yet.

    Args:
        client: Client to use.
        journal: Name of the journal.
        seconds: Time limit of an answer and of retries.

    Raises:
        BrokerStatusError: The broker refused.
        TransportError: The RPC failed, or no broker answers.

    Cancellation: safe.
    """
    request = pb.ReadRequest(journal=encodable(journal), offset=-1, metadata_only=True)
    attempts = Attempts(Operation.READ, client.context.retry_policy.within(seconds), request)
    while True:
        # ready() retries by itself.
        await client.context.dispatcher.ready()
        failure: pb.GazetteError | None = None
        async with Reader(client, request, on_offset_jump="skip") as reader:
            try:
                async with asyncio.timeout(seconds):
                    response = await reader.next_response()
                    if response is not None and response.status in _ANSWERS:
                        return response.write_head
                    await reader.next_response()  # Raises the exception of the status.
            except TimeoutError:
                text = f"no broker answers a probe of journal {journal}"
                failure = pb.TransportError("DEADLINE_EXCEEDED", text, journal=journal)
            except pb.GazetteError as error:
                failure = error
        await attempts.pause(failure)
