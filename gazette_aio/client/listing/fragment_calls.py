"""Calls that list fragments, and check fragment stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.client.listing.calls import check_status, retried
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.journal import encodable, require_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.context import ClientContext
    from gazette_aio.client.deadline import Deadline


async def list_all_fragments(
    client: JournalClient, request: pb.FragmentsRequest | str, *, timeout: float | None = None
) -> pb.FragmentsResponse:
    """Return all fragments of a journal that a request selects.

    An error after the first page has the response merged so far as `partial`.

    Args:
        client: Client to use.
        request: The journal, or a request with bounds.
        timeout: Seconds to wait for all pages, `math.inf` for no limit; None for that of the
            client.

    Raises:
        ValidationError: The request or a response is invalid.
        BrokerStatusError: The broker refused the listing.
        TransportError: The RPC failed, or no broker answers.
        OperationTimeoutError: The time is over.

    Cancellation: safe.
    """
    require_request(request, pb.FragmentsRequest)
    journal = request if isinstance(request, str) else request.journal
    deadline = client.context.deadline("list fragments", timeout, journal=journal)
    merged: pb.FragmentsResponse | None = None

    async def merge() -> None:
        nonlocal merged
        turns = Turns()
        async for page in _fragment_pages(client.context, request, deadline):
            if merged is None:
                merged = page
                continue
            for fragment in page.fragments:
                merged.fragments.append(fragment)
                await turns.rest()

    try:
        await deadline.run(merge())
    except pb.GazetteError as error:
        error.partial = merged
        raise
    assert merged is not None
    merged.next_page_token = 0
    return merged


async def iter_fragments(
    client: JournalClient, request: pb.FragmentsRequest | str
) -> AsyncGenerator[pb.FragmentsResponse._Fragment]:
    """Yield the fragments of a journal, listed page by page.

    Raises:
        GazetteError: As `list_all_fragments()`.

    Cancellation: safe.
    """
    async for page in _fragment_pages(client.context, request):
        for fragment in page.fragments:
            yield fragment


async def _fragment_pages(
    context: ClientContext, request: pb.FragmentsRequest | str, deadline: Deadline | None = None
) -> AsyncGenerator[pb.FragmentsResponse]:
    paged = pb.FragmentsRequest()
    if isinstance(request, str):
        paged.journal = encodable(request)
    else:
        paged.CopyFrom(request)
    pb.validate(paged)
    while True:
        page = await retried(context, paged, _page_once, deadline=deadline)
        # Wire: a token that doesn't advance would mean an endless loop.
        if page.next_page_token and page.next_page_token <= paged.next_page_token:
            raise pb.ValidationError(
                f"invalid NextPageToken ({page.next_page_token}; "
                f"expected > {paged.next_page_token})"
            )
        yield page
        if not page.next_page_token:
            return
        paged.next_page_token = page.next_page_token


async def _page_once(context: ClientContext, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
    page = await context.rpc.list_fragments(request)
    await _check_page(context, page, request.journal)
    context.router.update_route(request.journal, page.header.route)
    return page


async def fragment_store_health(
    client: JournalClient,
    store: str,
    *,
    check_delete_prefix: str | None = None,
    timeout: float | None = None,
) -> pb.FragmentStoreHealthResponse:
    """Have a broker check a fragment store, as `JournalClient.fragment_store_health()`.

    Raises:
        GazetteError: As `JournalClient.fragment_store_health()`.

    Cancellation: safe.
    """
    request = pb.FragmentStoreHealthRequest(
        fragment_store=store,
        check_delete=check_delete_prefix is not None,
        check_delete_prefix=check_delete_prefix or "",
    )
    pb.validate(request)
    deadline = client.context.deadline(f"check of store {store}", timeout)
    return await deadline.run(retried(client.context, request, _health_once, deadline=deadline))


async def _health_once(
    context: ClientContext, request: pb.FragmentStoreHealthRequest
) -> pb.FragmentStoreHealthResponse:
    response = await context.rpc.fragment_store_health(request)
    if response.status != pb.Status.FRAGMENT_STORE_UNHEALTHY:
        check_status(context, response)
    return response


async def _check_page(context: ClientContext, page: pb.FragmentsResponse, journal: str) -> None:
    check_status(context, pb.FragmentsResponse(status=page.status, header=page.header), journal)
    turns = Turns()
    for index, listed in enumerate(page.fragments):
        within(f"Fragments[{index}]", pb.validate, listed, strict=context.strict)
        await turns.rest()
