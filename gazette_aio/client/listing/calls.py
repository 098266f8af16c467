"""Calls that list and apply journals."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.listing.batches import apply_in_batches
from gazette_aio.client.listing.prefixes import (
    has_prefixes,
    journal_filter,
    show_support,
    unmatched,
    without_prefixes,
)
from gazette_aio.client.listing.snapshots import list_messages, list_snapshots
from gazette_aio.client.retry import Operation
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.journal import encodable, strip_meta
from gazette_aio.protocol.status_errors import status_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from google.protobuf.message import Message

    from gazette_aio.client.context import HasContext
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.retry import Failure, RetryPolicy

    Request = TypeVar("Request", bound=Message)

T = TypeVar("T")
_Part: TypeAlias = "Iterable[pb.ListResponse.Journal]"

_SLICE_CHECKED: Final = 32
_SLICE_COPIED: Final = 256


def list_request(request: pb.ListRequest | pb.LabelSelector | str) -> pb.ListRequest:
    """Return the request of a selector or of its text; a request is returned as it is.

    Raises:
        ValidationError: The selector is invalid, or the request is that of a watch.
    """
    if isinstance(request, str):
        request = pb.parse_label_selector(request)
    if isinstance(request, pb.LabelSelector):
        request = pb.ListRequest(selector=request)
    if request.watch:
        raise pb.ValidationError("expected ListRequest.Watch to be false")
    pb.validate(request)
    return request


async def list_all_journals(
    client: HasContext,
    request: pb.ListRequest | pb.LabelSelector | str = "",
    *,
    timeout: float | None = None,
) -> pb.ListResponse:
    """Return all journals that a selector matches, ordered by name.

    Args:
        client: Client to use.
        request: A selector, its text, or a request. The empty text matches every journal.
        timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

    Raises:
        ValidationError: The selector or a response is invalid.
        BrokerStatusError: The broker refused the listing.
        TransportError: The RPC failed, or no broker answers.
        OperationTimeoutError: The time is over.

    Cancellation: safe.
    """
    request = list_request(request)
    deadline = client.context.deadline("list", timeout)
    policy = client.context.retry_policy
    return await deadline.run(list_retried(client, request, policy, deadline))


async def list_retried(
    client: HasContext,
    request: pb.ListRequest,
    policy: RetryPolicy,
    deadline: Deadline | None = None,
) -> pb.ListResponse:
    """Return the listing of a request without `watch`, and note the routes of its journals.

    Raises:
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    listing = await retried(client, request, list_once, policy, deadline)
    await update_routes(client, listing.journals)
    return listing


async def list_once(client: HasContext, request: pb.ListRequest) -> pb.ListResponse:
    """Return the listing of a request without `watch`, without retries.

    Raises:
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    listing = await _list_once(client, request)
    if await _ignores_prefixes(client, request.selector, listing.journals):
        return await list_selected_here(client, request)
    return listing


async def list_selected_here(client: HasContext, request: pb.ListRequest) -> pb.ListResponse:
    """Return the listing of a request, whose prefixes the broker doesn't know.

    Raises:
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    if not has_prefixes(request.selector):
        return await _list_once(client, request)
    wider = pb.ListRequest(selector=without_prefixes(request.selector))
    listing = await _list_once(client, wider)
    selected = pb.ListResponse(status=listing.status, header=listing.header)
    matches = journal_filter(request.selector)
    for begin in range(0, len(listing.journals), _SLICE_CHECKED):
        journals = listing.journals[begin : begin + _SLICE_CHECKED]
        selected.journals.extend(journal for journal in journals if matches(journal))
        await asyncio.sleep(0)
    return selected


async def _list_once(client: HasContext, request: pb.ListRequest) -> pb.ListResponse:
    stream = await client.context.rpc.list(request)
    try:
        snapshots = list_snapshots(stream, request, strict=client.context.strict)
        async with aclosing(snapshots):
            return await anext(snapshots)
    finally:
        await stream.aclose()


async def _ignores_prefixes(
    client: HasContext,
    selector: pb.LabelSelector,
    journals: Iterable[pb.ListResponse.Journal],
) -> bool:
    """Return whether a broker that listed `journals` ignores prefixes, and `selector` has some."""
    context = client.context
    if context.knows_prefixes or not has_prefixes(selector):
        return False
    if not show_support(journals):
        # Wire: such a broker doesn't know watches either, whose listings end with another message.
        probe = pb.ListRequest(selector=unmatched(), watch=True)
        stream = await context.rpc.list(probe)
        try:
            if await stream.receive() is None or await stream.receive() is None:
                return True
        finally:
            await stream.aclose()
    context.knows_prefixes = True
    return False


async def iter_journals(
    client: HasContext,
    request: pb.ListRequest | pb.LabelSelector | str = "",
    *,
    timeout: float | None = None,
) -> AsyncGenerator[pb.ListResponse.Journal]:
    """Yield the journals that a selector matches as they're received, ordered by name.

    It needs little memory for any number of journals. The RPC is open until the last journal was
    taken: close a generator that you leave early, by `contextlib.aclosing()`. Failures are retried
    until the first journal was yielded.

    Args:
        client: Client to use.
        request: A selector, its text, or a request. The empty text matches every journal.
        timeout: Seconds to wait for the first journals, `math.inf` for no limit; None for that of
            the client.

    Raises:
        GazetteError: As `list_all_journals()`.

    Cancellation: aborts — the generator ends.
    """
    request = list_request(request)
    deadline = client.context.deadline("list", timeout)
    # A consumer may take its time: only the wait for the first journals is bounded.
    part, parts = await deadline.run(retried(client, request, _begin_parts, deadline=deadline))
    async with aclosing(parts):
        while part is not None:
            for journal in part:
                yield journal
            part = await anext(parts, None)


async def _begin_parts(
    client: HasContext, request: pb.ListRequest
) -> tuple[_Part | None, AsyncGenerator[_Part]]:
    """Return the first part of a listing, or None, and the generator of the others."""
    parts = _parts(client, request)
    return await anext(parts, None), parts


async def _parts(client: HasContext, request: pb.ListRequest) -> AsyncGenerator[_Part]:
    context = client.context
    stream = await context.rpc.list(request)
    is_checked = False
    try:
        async with aclosing(list_messages(stream, request, strict=context.strict)) as messages:
            async for message in messages:
                journals = () if message is None else message.journals
                if not is_checked and await _ignores_prefixes(client, request.selector, journals):
                    break
                is_checked = True
                if journals:
                    await update_routes(client, journals)
                    yield journals
            else:
                return
    finally:
        await stream.aclose()
    wider = pb.ListRequest(selector=without_prefixes(request.selector))
    matches = journal_filter(request.selector)
    async with aclosing(_parts(client, wider)) as parts:
        async for part in parts:
            yield filter(matches, part)


async def update_routes(client: HasContext, journals: Iterable[pb.ListResponse.Journal]) -> None:
    """Note the routes of listed journals. Cancellation: safe — some aren't noted."""
    for number, journal in enumerate(journals, 1):
        client.context.router.update_route(journal.spec.name, journal.route)
        if number % _SLICE_COPIED == 0:
            await asyncio.sleep(0)


async def get_journal(
    client: HasContext, name: str, *, timeout: float | None = None
) -> pb.ListResponse.Journal:
    """Return the listing of one journal: its spec, revisions and route.

    Args:
        client: Client to use.
        name: The journal. A metadata segment is ignored.
        timeout: As of `list_all_journals()`.

    Raises:
        JournalNotFoundError: There is no such journal.
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    selector = pb.LabelSelector(include=pb.label_set("name", encodable(strip_meta(name))))
    listing = await list_all_journals(client, selector, timeout=timeout)
    if not listing.journals:
        error = pb.JournalNotFoundError(
            f"named journal does not exist ({name})",
            journal=name,
            header=listing.header,
            response=listing,
        )
        error.endpoint = client.context.dispatcher.endpoint
        raise error
    return listing.journals[0]


async def apply_journals(
    client: HasContext,
    request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change],
    *,
    batch_size: int = 0,
    timeout: float | None = None,
) -> pb.ApplyResponse:
    """Create, update and delete journals, and return the response to the last batch.

    If the broker becomes unavailable, a transaction is repeated only if it expects no revisions
    (-1). Otherwise it's unknown whether it was applied.

    Args:
        client: Client to use.
        request: The changes.
        batch_size: Changes of each transaction, of which brokers accept about 128; 0, the default,
            makes one transaction. Transactions before a failed one remain: the error has the number
            of their changes as `applied`.
        timeout: Seconds to wait for all transactions, `math.inf` for no limit; None for that of the
            client. When they're over, it's unknown whether the transaction that was under way
            was applied.

    Raises:
        ValidationError: A change or a response is invalid.
        EtcdTransactionFailedError: An expected revision differs.
        BrokerStatusError: The broker refused a transaction.
        TransportError: An RPC failed, or no broker answers.
        OperationTimeoutError: The time is over.

    Cancellation: aborts — transactions that were applied remain.
    """
    deadline = client.context.deadline("apply", timeout, doubt="changes may have been applied")

    async def apply(batch: Sequence[pb.ApplyRequest.Change]) -> pb.ApplyResponse:
        request = pb.ApplyRequest(changes=batch)
        return await retried(client, request, _apply_once, deadline=deadline)

    def check(change: pb.ApplyRequest.Change) -> None:
        pb.validate(change)
        # Existing journals with such names may still be deleted.
        if change.HasField("upsert"):
            within("Upsert.Name", client.context.rpc.check_journal, change.upsert.name)

    return await apply_in_batches(
        list(request.changes if isinstance(request, pb.ApplyRequest) else request),
        batch_size,
        deadline,
        check=check,
        item_of=_journal_of,
        apply=apply,
    )


def _journal_of(change: pb.ApplyRequest.Change) -> str:
    return f"journal {(change.upsert.name if change.HasField('upsert') else change.delete)!r}"


async def _apply_once(client: HasContext, request: pb.ApplyRequest) -> pb.ApplyResponse:
    response = await client.context.rpc.apply(request)
    check_status(client, response)
    return response


async def retried(
    client: HasContext,
    request: Request,
    attempt: Callable[[HasContext, Request], Awaitable[T]],
    policy: RetryPolicy | None = None,
    deadline: Deadline | None = None,
) -> T:
    """Return the result of `attempt(client, request)`, retried according to the policy.

    Raises:
        GazetteError: The error isn't retried.

    Cancellation: that of `attempt`.
    """
    context = client.context
    endpoint = context.dispatcher.endpoint
    attempts = Attempts(Operation.CONTROL, policy or context.retry_policy, request, endpoint)
    return await attempts.until_success(
        lambda: attempt(client, request),
        ready=context.dispatcher.ready,
        note=None if deadline is None else deadline.note,
    )


async def outlasted(client: HasContext, listing: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a listing that its caller can't do without.

    Failures that pass are retried for as long as they last, as those of reads are.

    Args:
        client: Client of the listing.
        listing: Lists, by itself retried as any listing is.

    Raises:
        GazetteError: The failure is permanent, or the policy of the client bounds retries.

    Cancellation: that of `listing`.
    """
    context = client.context

    def decide(failure: Failure) -> bool | None:
        given = context.retry_policy.on_error
        answer = None if given is None else given(failure)
        return True if answer is None and failure.error and failure.error.retryable else answer

    policy = replace(context.retry_policy, on_error=decide)
    request, endpoint = pb.ListRequest(), context.dispatcher.endpoint
    attempts = Attempts(Operation.CONTROL, policy, request, endpoint)
    return await attempts.until_success(listing)


def check_status(
    client: HasContext,
    response: pb.ApplyResponse | pb.FragmentsResponse | pb.FragmentStoreHealthResponse,
    journal: str = "",
) -> None:
    """Raise unless a response is valid, and its status OK.

    Raises:
        ValidationError: The response is invalid.
        BrokerStatusError: The broker refused the request.
    """
    pb.validate(response, strict=client.context.strict)
    if response.status != pb.Status.OK:
        raise status_error(
            response.status,
            journal=journal,
            header=response.header,
            response=response,
            endpoint=client.context.dispatcher.endpoint,
        )
