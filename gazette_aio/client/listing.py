"""Listing and applying journals, and listing fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.list_fold import ListFold
from gazette_aio.client.retry import Operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from google.protobuf.message import Message

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.stream import ResponseStream

    Request = TypeVar("Request", bound=Message)

T = TypeVar("T")


async def read_list_response(
    stream: ResponseStream[pb.ListResponse], fold: ListFold
) -> pb.ListResponse | None:
    """Return the next snapshot of a List stream, or None if a watch ended behind the last one.

    Cancellation: safe — what was received of the snapshot is kept in `fold`.

    Raises:
        BrokerStatusError: The broker refused the listing.
        UnexpectedEOFError: The stream ended within a snapshot.
        ValidationError: A message is invalid.
        TransportError: The RPC failed.
    """
    while (response := await stream.receive()) is not None:
        if (snapshot := fold.receive(response)) is not None:
            return snapshot
    return fold.end()


async def list_all_journals(
    client: JournalClient, request: pb.ListRequest | pb.LabelSelector | str = ""
) -> pb.ListResponse:
    """Return all journals that a selector matches, ordered by name.

    Args:
        client: Client to use.
        request: A selector, its text, or a request. The empty text matches every journal.

    Cancellation: safe.

    Raises:
        ValidationError: The selector or a response is invalid.
        BrokerStatusError: The broker refused the listing.
        TransportError: The RPC failed, or no broker answers.
    """
    if isinstance(request, str):
        request = pb.parse_label_selector(request)
    if isinstance(request, pb.LabelSelector):
        request = pb.ListRequest(selector=request)
    if request.watch:
        raise pb.ValidationError("expected ListRequest.Watch to be false")

    async def attempt(request: pb.ListRequest) -> pb.ListResponse:
        stream = await client.rpc.list(request)
        try:
            listing = await read_list_response(stream, ListFold(request, strict=client.rpc.strict))
        finally:
            await stream.aclose()
        assert listing is not None
        return listing

    return await _retried(client, request, attempt)


async def get_journal(client: JournalClient, name: str) -> pb.ListResponse.Journal:
    """Return the listing of one journal: its spec, revisions and route.

    Args:
        client: Client to use.
        name: The journal. A metadata segment is left out of account.

    Cancellation: safe.

    Raises:
        JournalNotFoundError: There is no such journal.
        GazetteError: As `list_all_journals()`.
    """
    selector = pb.LabelSelector(include=pb.label_set("name", pb.strip_meta(name)))
    listing = await list_all_journals(client, selector)
    if not listing.journals:
        raise pb.JournalNotFoundError(
            f"named journal does not exist ({name})",
            journal=name,
            header=listing.header,
            response=listing,
        )
    return listing.journals[0]


async def apply_journals(
    client: JournalClient,
    request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change],
    *,
    batch_size: int = 0,
) -> pb.ApplyResponse:
    """Create, update and delete journals, and return the response to the last batch.

    If the broker becomes unavailable, a transaction is made again only if it expects no revisions
    (-1). Otherwise whether it was applied is unknown then.

    Args:
        client: Client to use.
        request: The changes.
        batch_size: Changes of each transaction, of which brokers accept some 128; 0 makes one of
            all. Transactions before one that fails remain: the error has the number of their
            changes as `applied`.

    Cancellation: aborts — what was applied remains.

    Raises:
        ValidationError: A change or a response is invalid.
        EtcdTransactionFailedError: An expected revision differs.
        BrokerStatusError: The broker refused a transaction.
        TransportError: An RPC failed, or no broker answers.
    """
    if batch_size < 0:
        raise pb.ConfigurationError("batch_size must not be negative")
    changes = list(request.changes if isinstance(request, pb.ApplyRequest) else request)
    pb.validate(pb.ApplyRequest(changes=changes))
    for index, change in enumerate(changes):
        # Journals which have such names already may still be deleted.
        if change.HasField("upsert"):
            try:
                client.rpc.check_journal(change.upsert.name)
            except pb.ValidationError as error:
                raise error.extend(f"Changes[{index}].Upsert.Name") from None
    size = batch_size or max(len(changes), 1)
    response = pb.ApplyResponse()
    for begin in range(0, max(len(changes), 1), size):
        try:
            batch = pb.ApplyRequest(changes=changes[begin : begin + size])
            response = await _retried(client, batch, client.rpc.apply)
            _check(client, response)
        except pb.GazetteError as error:
            error.applied = begin  # type: ignore[attr-defined]
            raise
    return response


async def list_all_fragments(
    client: JournalClient, request: pb.FragmentsRequest | str
) -> pb.FragmentsResponse:
    """Return all fragments of a journal which a request asks for.

    An error behind the first page has the response merged so far as `partial`.

    Args:
        client: Client to use.
        request: The journal, or a request with bounds.

    Cancellation: safe.

    Raises:
        ValidationError: The request or a response is invalid.
        BrokerStatusError: The broker refused the listing.
        TransportError: The RPC failed, or no broker answers.
    """
    merged: pb.FragmentsResponse | None = None
    try:
        async for page in _fragment_pages(client, request):
            if merged is None:
                merged = page
            else:
                merged.fragments.extend(page.fragments)
    except pb.GazetteError as error:
        error.partial = merged  # type: ignore[attr-defined]
        raise
    assert merged is not None
    merged.next_page_token = 0
    return merged


async def iter_fragments(
    client: JournalClient, request: pb.FragmentsRequest | str
) -> AsyncIterator[pb.FragmentsResponse._Fragment]:
    """Yield the fragments of a journal, listing page by page.

    Cancellation: safe.

    Raises:
        GazetteError: As `list_all_fragments()`.
    """
    async for page in _fragment_pages(client, request):
        for fragment in page.fragments:
            yield fragment


async def _fragment_pages(
    client: JournalClient, request: pb.FragmentsRequest | str
) -> AsyncIterator[pb.FragmentsResponse]:
    paged = pb.FragmentsRequest()
    if isinstance(request, str):
        paged.journal = request
    else:
        paged.CopyFrom(request)
    while True:
        page = await _retried(client, paged, client.rpc.list_fragments)
        _check(client, page, paged.journal)
        # Wire: a token which doesn't move on would have us ask for ever.
        if page.next_page_token and page.next_page_token <= paged.next_page_token:
            raise pb.ValidationError(
                f"invalid NextPageToken ({page.next_page_token}; "
                f"expected > {paged.next_page_token})"
            )
        yield page
        if not page.next_page_token:
            return
        paged.next_page_token = page.next_page_token


async def fragment_store_health(
    client: JournalClient, store: str, *, check_delete_prefix: str | None = None
) -> pb.FragmentStoreHealthResponse:
    """Have a broker check a fragment store, and return what it found.

    Args:
        client: Client to use.
        store: URL of the store.
        check_delete_prefix: Prefix below which to check that files can be deleted, ending in a
            slash or empty; None doesn't check.

    Returns:
        The response, of status OK or FRAGMENT_STORE_UNHEALTHY.

    Cancellation: safe.

    Raises:
        ValidationError: An argument or the response is invalid.
        BrokerStatusError: The broker refused to check.
        TransportError: The RPC failed. Brokers before v0.101 answer UNIMPLEMENTED.
    """
    request = pb.FragmentStoreHealthRequest(
        fragment_store=store,
        check_delete=check_delete_prefix is not None,
        check_delete_prefix=check_delete_prefix or "",
    )
    response = await _retried(client, request, client.rpc.fragment_store_health)
    if response.status != pb.Status.FRAGMENT_STORE_UNHEALTHY:
        _check(client, response)
    return response


async def _retried(
    client: JournalClient, request: Request, attempt: Callable[[Request], Awaitable[T]]
) -> T:
    pb.validate(request)
    attempts = Attempts(Operation.CONTROL, client.retry_policy, request)
    while True:
        # That no broker answers in time isn't retried: it has been.
        await client.rpc.dispatcher.ready()
        try:
            return await attempt(request)
        except pb.TransportError as error:
            await attempts.pause(error)


def _check(
    client: JournalClient,
    response: pb.ApplyResponse | pb.FragmentsResponse | pb.FragmentStoreHealthResponse,
    journal: str = "",
) -> None:
    pb.validate(response, strict=client.rpc.strict)
    if response.status != pb.Status.OK:
        raise pb.status_error(
            response.status, journal=journal, header=response.header, response=response
        )
