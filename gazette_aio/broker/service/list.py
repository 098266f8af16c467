"""List: journals of a selector, once or whenever they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.broker.resolver import visibility
from gazette_aio.broker.service.common import is_long, validate
from gazette_aio.protocol.selector import compile_selector, with_name_prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.serving.calls import Send

CHUNK_JOURNALS = 25
"""Greatest number of journals of one message."""

_SLICE_JOURNALS = 8


async def serve_list(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.ListRequest,
    _messages: object,
    send: Send,
) -> None:
    """Send the journals that a request selects, and for a watch again after each change.

    The function returns early if the broker stops.

    Raises:
        RpcError: The request is invalid.

    Cancellation: safe.
    """
    await validate(core, request)
    if is_long(request):
        step = 1
        matches, prefix = await core.bulk.run(_prepare, request.selector)
    else:
        step = _SLICE_JOURNALS
        matches, prefix = _prepare(request.selector)
    visible = visibility(with_name_prefixes(claims.selector))

    def predicate(labels: pb.LabelSet) -> bool:
        return matches(labels) and (visible is None or visible(labels))

    revision = request.watch_resume.etcd.revision + 1 if request.HasField("watch_resume") else 0
    last = (-1, -1)
    until = core.token_end(claims)
    delay = core.options.watch_delay
    while await core.space_store.wait_merged(revision, delay, core.clock, until):
        space = core.space
        revision = space.revision + 1
        header = core.resolver.unrouted()
        items, newest = await _select(space.prefixed(prefix), predicate, step)
        # The number of matches and the newest revision show a change; routes don't count.
        if (len(items), newest) == last:
            continue
        last = (len(items), newest)
        for response in snapshot(core, items, header):
            await send(response)
        if not request.watch:
            return
        await send(pb.ListResponse(header=_empty_header()))
        if until is not None and until.has_passed:
            return


def _prepare(selector: pb.LabelSelector) -> tuple[Callable[[pb.LabelSet], bool], str]:
    """Return the predicate of a selector, and a common prefix of the names that it matches."""
    selector = with_name_prefixes(selector)
    return compile_selector(selector), name_prefix(selector)


async def _select(
    items: list[JournalItem], matches: Callable[[pb.LabelSet], bool], step: int
) -> tuple[list[JournalItem], int]:
    """Return the matching journals, and their newest revision, in slices of the loop's time.

    Args:
        items: The journals.
        matches: Whether labels match.
        step: Number of journals to match at once.
    """
    selected: list[JournalItem] = []
    newest = -1
    turns = Turns()
    for number, item in enumerate(items):
        if number % step == 0:
            await turns.rest()
        if matches(item.labels):
            selected.append(item)
            newest = max(newest, item.mod_revision)
    return selected, newest


def snapshot(
    core: BrokerCore, items: list[JournalItem], header: pb.Header
) -> Iterator[pb.ListResponse]:
    """Iterate the messages of a snapshot; the first one has the header."""
    for start in range(0, max(len(items), 1), CHUNK_JOURNALS):
        response = pb.ListResponse(header=header)
        header = _empty_header()
        for item in items[start : start + CHUNK_JOURNALS]:
            response.journals.add(
                spec=item.spec,
                mod_revision=item.mod_revision,
                create_revision=item.create_revision,
                route=core.resolver.route(item),
            )
        yield response


def name_prefix(selector: pb.LabelSelector) -> str:
    """Return a prefix of the names of all matching journals."""
    names = pb.values_of(selector.include, "name") or []
    return names[0] if len(names) == 1 else ""


def _empty_header() -> pb.Header:
    """Return a header whose parts are present and empty."""
    header = pb.Header()
    header.process_id.SetInParent()
    header.route.SetInParent()
    header.etcd.SetInParent()
    return header
