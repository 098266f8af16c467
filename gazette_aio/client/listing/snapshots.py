"""Listings of the messages of a List stream.

A snapshot begins with a message whose header has a revision, and continues with messages of further
journals. A message without journals ends a snapshot of a watch; a unary listing ends with its
stream.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.unknown_fields import UnknownFieldSet

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.client.listing.compat import UnmarkedListingError
from gazette_aio.client.listing.watch_plan import unexpected_revision
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.status_errors import status_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

# Wire: `next_page_token` of early versions of the protocol, which v0.89 doesn't have.
_NEXT_PAGE_TOKEN: Final = 4


class ListStream(Protocol):
    """Responses of a List RPC."""

    async def receive(self) -> pb.ListResponse | None:
        """Return the next response, or None at the end of the RPC. Cancellation: safe."""
        ...


def list_snapshots(
    stream: ListStream, request: pb.ListRequest, *, strict: bool = False
) -> AsyncGenerator[pb.ListResponse]:
    """Yield the listings of a List stream: one, or of a watch one after the other.

    Args:
        stream: Responses of the RPC.
        request: The request of the RPC.
        strict: Whether to check responses for all rules of the protocol.

    Raises:
        BrokerStatusError: The broker refused the listing.
        UnexpectedEOFError: The stream ended within a listing.
        ValidationError: A message is invalid, out of its order, or one of several pages.
        TransportError: The RPC failed.

    Cancellation: aborts — the generator ends.
    """
    return snapshots_of(list_messages(stream, request, strict=strict))


async def snapshots_of(
    messages: AsyncGenerator[pb.ListResponse | None],
) -> AsyncGenerator[pb.ListResponse]:
    """Yield the listings that messages make, each followed by None.

    Cancellation: aborts — the generator ends, and so does that of the messages.
    """
    snapshot: pb.ListResponse | None = None
    turns = Turns()
    async with aclosing(messages):
        async for message in messages:
            if message is None:
                assert snapshot is not None, "a snapshot has a first message"
                yield snapshot
                snapshot = None
            elif snapshot is None:
                snapshot = message
            else:
                for journal in message.journals:
                    snapshot.journals.append(journal)
                    await turns.rest()


async def list_messages(
    stream: ListStream, request: pb.ListRequest, *, strict: bool = False
) -> AsyncGenerator[pb.ListResponse | None]:
    """Yield the messages of a List stream, checked, and None after those of a whole listing.

    Arguments and errors are those of `list_snapshots()`.

    Cancellation: aborts — the generator ends.
    """
    after = request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
    first: pb.ListResponse | None = None  # Of the present snapshot.
    received = 0
    turns = Turns()
    while (response := await stream.receive()) is not None:
        received += 1
        # Wire: further messages may have a header, which is meaningless.
        if first is None or response.status != pb.Status.OK:
            _check_head(response, first or response, strict=strict)
        if first is None:
            first = response
            revision = response.header.etcd.revision
            if after and revision <= after:
                raise unexpected_revision(revision, f"> {after}")
            after = revision if request.watch else 0
        elif not response.journals:
            if not request.watch:
                raise pb.ValidationError("unexpected empty ListResponse.Journals in unary listing")
            first = None
            yield None
            continue
        # Receiving responses that are already queued doesn't suspend, however many there are.
        for index, journal in enumerate(response.journals):
            within(f"Journals[{index}]", pb.validate, journal, strict=strict)
            await turns.rest()
        yield response
    if request.watch and first is None:
        return
    is_resumed = request.HasField("watch_resume")
    if request.watch and first is not None and received == 1 and not is_resumed:
        raise UnmarkedListingError(first)
    if request.watch or first is None:
        raise pb.UnexpectedEOFError("unexpected EOF")
    yield None


def _check_head(response: pb.ListResponse, first: pb.ListResponse, *, strict: bool) -> None:
    """Check all of a message but its journals, with the header of the first of its listing."""
    unknown = UnknownFieldSet(response)
    if any(unknown[at].field_number == _NEXT_PAGE_TOKEN for at in range(len(unknown))):
        raise pb.ValidationError(
            "the broker lists journals in pages: brokers from v0.89 on are supported"
        )
    head = pb.ListResponse(status=response.status, header=first.header)
    pb.validate(head, strict=strict)
    if head.status != pb.Status.OK:
        raise status_error(head.status, header=head.header, response=response)
