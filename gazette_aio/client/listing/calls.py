"""Calls that list and apply journals."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.client.attempts import until_success
from gazette_aio.client.listing.batches import apply_in_batches
from gazette_aio.client.listing.compat import ignores_prefixes, select_listed, without_prefixes
from gazette_aio.client.listing.snapshots import list_messages, snapshots_of
from gazette_aio.client.retry import Operation
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.journal import encodable, strip_meta
from gazette_aio.protocol.status_errors import not_listed, status_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.context import ClientContext
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.retry import Failure, RetryPolicy

    Request = TypeVar("Request", bound=Message)

T = TypeVar("T")


def list_request(request: pb.ListRequest | pb.LabelSelector | str) -> pb.ListRequest:
    """Return the request of a selector or of its text; a request is returned as it is.

    Raises:
        ValidationError: The selector is invalid, or the request is that of a watch.
    """
    if isinstance(request, str):
        request = pb.parse_label_selector(request)
    if isinstance(request, pb.LabelSelector):
        request = pb.ListRequest(selector=request)
    given: Any = request
    if not isinstance(given, pb.ListRequest):
        kind = type(given).__name__
        raise TypeError(f"expected a selector, its text, or a ListRequest, not {kind}")
    if request.watch:
        raise pb.ValidationError("expected ListRequest.Watch to be false")
    pb.validate(request)
    return request


async def list_all_journals(
    client: JournalClient,
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
    return await deadline.run(retried(client.context, request, list_once, deadline=deadline))


async def list_once(context: ClientContext, request: pb.ListRequest) -> pb.ListResponse:
    """Return the listing of a request without `watch`, without retries, and note its routes.

    Raises:
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    async with aclosing(snapshots_of(_messages(context, request))) as snapshots:
        return await anext(snapshots)


async def _messages(
    context: ClientContext, request: pb.ListRequest
) -> AsyncGenerator[pb.ListResponse | None]:
    """Yield the messages of a listing and then None, with any broker, and note their routes."""
    selector = request.selector
    stream = await context.rpc.list(request)
    is_first = True
    try:
        async with aclosing(list_messages(stream, request, strict=context.strict)) as messages:
            async for message in messages:
                if message is not None:
                    if is_first and await ignores_prefixes(context, selector, message):
                        break
                    is_first = False
                    await _update_routes(context, message)
                yield message
            else:
                return
    finally:
        await stream.aclose()
    wider = pb.ListRequest(selector=without_prefixes(selector))
    async with aclosing(_messages(context, wider)) as messages:
        async for message in messages:
            yield None if message is None else await select_listed(message, selector)


async def _update_routes(context: ClientContext, listing: pb.ListResponse) -> None:
    turns = Turns()
    for journal in listing.journals:
        context.router.update_route(journal.spec.name, journal.route)
        await turns.rest()


async def iter_journals(
    client: JournalClient,
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
    begun = retried(client.context, request, _begin_messages, deadline=deadline)
    message, messages = await deadline.run(begun)
    async with aclosing(messages):
        while message is not None:
            for journal in message.journals:
                yield journal
            message = await anext(messages)


async def _begin_messages(
    context: ClientContext, request: pb.ListRequest
) -> tuple[pb.ListResponse | None, AsyncGenerator[pb.ListResponse | None]]:
    messages = _messages(context, request)
    return await anext(messages), messages


async def get_journal(
    client: JournalClient, name: str, *, timeout: float | None = None
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
        raise not_listed(name, listing, client.context.dispatcher.endpoint)
    return listing.journals[0]


async def apply_journals(
    client: JournalClient,
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
        return await retried(client.context, request, _apply_once, deadline=deadline)

    def check(change: Any) -> None:
        if not isinstance(change, pb.ApplyRequest.Change):
            raise _no_change(change)
        pb.validate(change)
        # Existing journals with such names may still be deleted.
        if change.HasField("upsert"):
            allow_parent = client.context.rpc.allow_parent
            name = change.upsert.name
            within("Upsert.Name", pb.validate_journal, name, allow_parent=allow_parent)

    changes = request.changes if isinstance(request, pb.ApplyRequest) else request
    if isinstance(changes, Message):
        raise _no_change(changes)
    return await apply_in_batches(
        list(changes),
        batch_size,
        deadline,
        check=check,
        item_of=_journal_of,
        apply=apply,
    )


def _no_change(given: object) -> TypeError:
    expected = "changes, such as [ApplyRequest.Change(upsert=spec)]"
    return TypeError(f"expected {expected}, not {type(given).__name__}")


def _journal_of(change: pb.ApplyRequest.Change) -> str:
    return f"journal {(change.upsert.name if change.HasField('upsert') else change.delete)!r}"


async def _apply_once(context: ClientContext, request: pb.ApplyRequest) -> pb.ApplyResponse:
    response = await context.rpc.apply(request)
    check_status(context, response)
    return response


async def retried(
    context: ClientContext,
    request: Request,
    attempt: Callable[[ClientContext, Request], Awaitable[T]],
    policy: RetryPolicy | None = None,
    deadline: Deadline | None = None,
) -> T:
    """Return the result of `attempt(context, request)`, retried according to the policy.

    Raises:
        GazetteError: The error isn't retried.

    Cancellation: that of `attempt`.
    """
    return await until_success(
        lambda: attempt(context, request),
        Operation.CONTROL,
        policy or context.retry_policy,
        request,
        endpoint=context.dispatcher.endpoint,
        ready=context.dispatcher.ready,
        deadline=deadline,
    )


async def outlasted(client: JournalClient, listing: Callable[[], Awaitable[T]]) -> T:
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
    endpoint = context.dispatcher.endpoint
    return await until_success(
        listing, Operation.CONTROL, policy, pb.ListRequest(), endpoint=endpoint
    )


def check_status(
    context: ClientContext,
    response: pb.ApplyResponse | pb.FragmentsResponse | pb.FragmentStoreHealthResponse,
    journal: str = "",
) -> None:
    """Raise unless a response is valid, and its status OK.

    Raises:
        ValidationError: The response is invalid.
        BrokerStatusError: The broker refused the request.
    """
    pb.validate(response, strict=context.strict)
    if response.status != pb.Status.OK:
        raise status_error(
            response.status,
            journal=journal,
            header=response.header,
            response=response,
            endpoint=context.dispatcher.endpoint,
        )
