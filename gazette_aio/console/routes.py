"""HTTP routes of the console: files of the page, and the JSON that the page requests."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from aiohttp import web

import gazette_aio.protocol as pb
import gazette_aio.protocol.consumer as pc
from gazette_aio.aio.batches import in_batches
from gazette_aio.aio.threads import in_thread
from gazette_aio.aio.turns import Turns, in_turns
from gazette_aio.client import apply_journals, get_journal, iter_fragments
from gazette_aio.client.reads.head import head_of
from gazette_aio.console.guards import HEADERS, bearer_token, refusal
from gazette_aio.console.listings import CALL_SECONDS
from gazette_aio.console.seek import offset_at
from gazette_aio.console.shard_views import shard_lag, shard_page
from gazette_aio.console.specs import SpecEdit, edit_request, review, spec_text
from gazette_aio.console.tail_forms import MessageForm, TextForm
from gazette_aio.console.tails import Span
from gazette_aio.console.views import (
    FragmentSums,
    ListWanted,
    is_folder,
    journal_detail,
    journal_page,
    summary,
    summed_journals,
)
from gazette_aio.consumer.api import list_shards, unassign_shards
from gazette_aio.consumer.api.lags import lags_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.console.assets import Asset
    from gazette_aio.console.listings import Listings, OpenClient
    from gazette_aio.console.tails import Tails
    from gazette_aio.consumer.api import ShardClient

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

    OpenShards = Callable[[pb.Authorizer], AbstractAsyncContextManager[ShardClient]]
    """Opens a client of the members of a consumer, as OpenClient does of brokers."""

T = TypeVar("T")

BODY_SECONDS = 10.0
"""Seconds within which the body of a request must arrive."""

_MAX_ROWS: Final = 200
"""Most rows of an answer, and items of a request."""
_MAX_BODY_BYTES: Final = 256 << 10
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_TIME: Final = 253402300799
"""Unix seconds of the end of the year 9999."""
_MAX_SUMMED: Final = 1000
"""Most journals of folders whose write heads are asked for at a time."""
_TOO_MANY: Final = f"more than {_MAX_SUMMED} journals"
_HEAD_SECONDS: Final = 5.0
"""Seconds within which a broker must answer with a write head."""
_JSON: Final = "application/json; charset=utf-8"
_STATUSES: Final = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "INVALID_ARGUMENT": 400}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """What the routes share.

    Each request has its own client, with the token of the browser or without a token. A browser
    never uses credentials of the console.

    Args:
        open_client: Opens a client of the brokers.
        open_shards: Opens a client of a consumer; None if there is no consumer.
        assets: Files of the page, by path.
        hosts: Host names by which browsers call the console.
        tails: Live tails.
        listings: Listings of journals.
        read_only: Whether edits are refused.
    """

    open_client: OpenClient
    open_shards: OpenShards | None
    assets: Mapping[str, Asset]
    hosts: Collection[str]
    tails: Tails
    listings: Listings
    read_only: bool


def application(site: Site) -> web.Application:
    """Return the application with all routes."""
    guard = web.middleware(functools.partial(_guard, site))
    routed = web.Application(middlewares=[guard], client_max_size=_MAX_BODY_BYTES)
    for path, handler in {
        **dict.fromkeys(site.assets, _asset),
        "/api/journals": _journals,
        "/api/journal": _journal,
        "/api/summary": _summary,
        "/api/tail": _tail,
        "/api/spec": _spec,
        "/api/shards": _shards,
    }.items():
        routed.router.add_get(path, functools.partial(handler, site))
    for path, handler in {
        "/api/heads": _heads,
        "/api/review": _review,
        "/api/apply": _apply,
        "/api/lags": _lags,
        "/api/unassign": _unassign,
    }.items():
        routed.router.add_post(path, functools.partial(handler, site))
    routed.on_response_prepare.append(_complete)
    return routed


async def _guard(site: Site, request: web.Request, handler: Handler) -> web.StreamResponse:
    is_page = request.path in site.assets
    reason = refusal(request.method, request.headers, site.hosts, is_page=is_page)
    if reason is not None:
        return _failure(403, reason)
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _failure(error.status, error.reason)
    except _InvalidRequestError as error:
        return _failure(400, str(error))
    except pb.TransportError as error:
        return _failure(_STATUSES.get(error.code, 502), str(error))
    except pb.BrokerStatusError as error:
        is_missing = error.status == pb.Status.JOURNAL_NOT_FOUND
        return _failure(404 if is_missing else 502, str(error))
    except pb.AuthorizationError as error:
        return _failure(401, str(error))
    except TimeoutError as error:
        return _failure(504, str(error) or "no answer in time")
    except pb.GazetteError as error:
        return _failure(502, str(error))


async def _complete(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.pop("Server", None)


class _InvalidRequestError(Exception):
    """The browser sent something that isn't valid."""


@contextmanager
def _of_browser() -> Generator[None]:
    """Ascribe errors to the request. Outside, the same errors are those of brokers, or of ours."""
    try:
        yield
    except (ValueError, pb.ConfigurationError) as error:
        raise _InvalidRequestError(str(error)) from error


def _token(request: web.Request) -> str | None:
    with _of_browser():
        return bearer_token(request.headers.get("Authorization"))


def _auth(request: web.Request) -> pb.Authorizer:
    token = _token(request)
    return pb.NoopAuth() if token is None else pb.BearerAuth(token)


def _journal_name(request: web.Request) -> str:
    return _checked_name(request.query.get("name", ""))


def _checked_name(name: str) -> str:
    with _of_browser():
        pb.validate_journal(name, allow_parent=False)
    return name


def _folder(request: web.Request) -> str:
    folder = request.query.get("folder", "")
    if not is_folder(folder):
        raise _InvalidRequestError("expected a folder that ends in a slash")
    return folder


def _selector(request: web.Request) -> str:
    return _checked_selector(request.query.get("selector", ""))


def _checked_selector(selector: str) -> str:
    with _of_browser():
        pb.parse_label_selector(selector)
    return selector


def _part(request: web.Request) -> tuple[int, int]:
    """Return the first row and the number of rows of the requested part of a list."""
    return _number(request, "offset", 0), min(_number(request, "limit", 100), _MAX_ROWS)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= _MAX_OFFSET):
        raise _InvalidRequestError(f"expected a number that isn't negative: {name}")
    return int(text)


async def _body(request: web.Request, form: type[T]) -> T:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    with _of_browser():
        return msgspec.json.decode(content, type=form)


def _answer(view: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(view), headers={"Content-Type": _JSON})


def _failure(status: int, problem: str) -> web.Response:
    encoded = msgspec.json.encode({"problem": problem})
    return web.Response(status=status, body=encoded, headers={"Content-Type": _JSON})


async def _asset(site: Site, request: web.Request) -> web.StreamResponse:
    asset = site.assets[request.path]
    return web.Response(body=asset.content, headers={"Content-Type": asset.content_type})


async def _journals(site: Site, request: web.Request) -> web.StreamResponse:
    query = request.query
    offset, limit = _part(request)
    wanted = ListWanted(
        offset=offset,
        limit=limit,
        folder=_folder(request),
        text=query.get("text", ""),
        in_folders="folder" in query,
    )
    selector = _selector(request)
    journals = await site.listings.get(_auth(request), _token(request), selector)
    return _answer(await in_turns(journal_page(journals, wanted)))


def _require_suspended(error: pb.BrokerStatusError) -> None:
    """Raise an error again, unless no broker answers because a journal is suspended wholly."""
    if error.status != pb.Status.SUSPENDED:
        raise error


async def _head(client: JournalClient, name: str, seconds: float = _HEAD_SECONDS) -> int:
    """Return the write head of a journal. That of a suspended one is in its spec."""
    try:
        return await head_of(client, name, seconds)
    except pb.BrokerStatusError as error:
        _require_suspended(error)
    return (await get_journal(client, name, timeout=_HEAD_SECONDS)).spec.suspend.offset


async def _journal(site: Site, request: web.Request) -> web.StreamResponse:
    name = _journal_name(request)
    async with site.open_client(_auth(request)) as client:
        journal = await get_journal(client, name, timeout=CALL_SECONDS)
        sums, turns = FragmentSums(), Turns()
        try:
            async with (
                asyncio.timeout(CALL_SECONDS),
                aclosing(iter_fragments(client, name)) as fragments,
            ):
                async for fragment in fragments:
                    sums.add(fragment.spec)
                    await turns.rest()
        except pb.BrokerStatusError as error:
            _require_suspended(error)
        head = await _head(client, name)
    return _answer(journal_detail(journal, sums, head))


async def _summary(site: Site, request: web.Request) -> web.StreamResponse:
    selector = _selector(request)
    journals = await site.listings.get(_auth(request), _token(request), selector)
    return _answer(await in_turns(summary(journals, _folder(request))))


async def _tail(site: Site, request: web.Request) -> web.StreamResponse:
    """Send content: from `begin`, from the first message of `time`, or the most recent.

    The tail follows the journal unless it has a number of `bytes`. Messages from `from` up to `to`
    are sent, and of others the states: so a page gets more messages, and the states that they give
    to those which it has.
    """
    name, query = _journal_name(request), request.query
    with site.tails.place():
        async with site.open_client(_auth(request)) as client:
            new_form: Callable[[], MessageForm] | None = None
            if query.get("form") == "messages":
                journal = await get_journal(client, name, timeout=_HEAD_SECONDS)
                fresh = range(_number(request, "from", 0), _number(request, "to", _MAX_OFFSET))
                new_form = functools.partial(
                    MessageForm, journal.spec, query.get("uuid", ""), fresh=fresh
                )
            with _of_browser():
                form = TextForm() if new_form is None else new_form()
            head = await _head(client, name)
            begin = min(_number(request, "begin", 0), head) if "begin" in query else None
            if "time" in query:
                seconds = min(_number(request, "time", 0), _MAX_TIME)
                time = datetime.fromtimestamp(seconds, UTC)
                async with asyncio.timeout(CALL_SECONDS):
                    begin = await offset_at(client, name, time, head, new_form)
            end = None
            if "bytes" in query:
                end = head if begin is None else min(begin + _number(request, "bytes", 0), head)
            if begin and new_form is not None:
                begin -= 1  # The end of a message tells that the next one begins here.
            wanted = Span(name, head, begin, end)
            return await site.tails.answer(request, client, form, wanted)


class _NamesWanted(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    selector: str = ""


def _few(names: list[str]) -> list[str]:
    if len(names) > _MAX_ROWS:
        raise _InvalidRequestError(f"more than {_MAX_ROWS} names")
    return names


async def _heads(site: Site, request: web.Request) -> web.StreamResponse:
    """Answer with write heads of journals, and of folders with the sums of their journals."""
    body = await _body(request, _NamesWanted)
    names = [name if is_folder(name) else _checked_name(name) for name in _few(body.names)]
    listed: Sequence[pb.ListResponse.Journal] = ()
    if any(map(is_folder, names)):
        _checked_selector(body.selector)
        listed = await site.listings.get(_auth(request), _token(request), body.selector)
    summed = summed_journals(listed, names, _MAX_SUMMED)
    wanted = list(dict.fromkeys(itertools.chain.from_iterable(summed.values())))
    until = asyncio.get_running_loop().time() + CALL_SECONDS
    async with site.open_client(_auth(request)) as client:

        async def head(name: str) -> int | str:
            left = until - asyncio.get_running_loop().time()
            try:
                return await _head(client, name, max(min(_HEAD_SECONDS, left), 0.0))
            except (pb.GazetteError, TimeoutError) as error:
                return str(error) or "no answer in time"

        found = [each async for each in in_batches(head, wanted)]
    heads = dict(zip(wanted, found, strict=True))

    def sum_of(name: str) -> dict[str, str]:
        known = [heads[each] for each in summed[name]] if name in summed else [_TOO_MANY]
        problem = next((each for each in known if isinstance(each, str)), "")
        total = sum(each for each in known if isinstance(each, int))
        return {"name": name, "head": "" if problem else str(total), "problem": problem}

    return _answer([sum_of(name) for name in names])


async def _spec(site: Site, request: web.Request) -> web.StreamResponse:
    name = _journal_name(request)
    async with site.open_client(_auth(request)) as client:
        journal = await get_journal(client, name, timeout=CALL_SECONDS)
    return _answer(await in_thread(spec_text, journal))


async def _edit(request: web.Request) -> pb.ApplyRequest:
    edit = await _body(request, SpecEdit)
    with _of_browser():
        return await in_thread(edit_request, edit)


async def _review(site: Site, request: web.Request) -> web.StreamResponse:
    change = await _edit(request)
    name = change.changes[0].upsert.name
    async with site.open_client(_auth(request)) as client:
        try:
            present = {name: await get_journal(client, name, timeout=CALL_SECONDS)}
        except pb.JournalNotFoundError:
            present = {}
    return _answer(await in_thread(review, change, present))


def _require_edits(site: Site) -> None:
    if site.read_only:
        raise web.HTTPForbidden(reason="the console is read-only")


async def _apply(site: Site, request: web.Request) -> web.StreamResponse:
    """Apply an edit that expects the revision of the edited spec. The brokers check it."""
    _require_edits(site)
    change = await _edit(request)
    async with site.open_client(_auth(request)) as client:
        try:
            applied = await apply_journals(client, change, timeout=CALL_SECONDS)
        except pb.EtcdTransactionFailedError:
            return _failure(409, "nothing was applied: the journal has changed since it was opened")
    site.listings.forget()
    revision = str(applied.header.etcd.revision)
    return _answer({"name": change.changes[0].upsert.name, "revision": revision})


def _consumer(site: Site) -> OpenShards:
    if site.open_shards is None:
        reason = "the console has no consumer: start it with --consumer.address"
        raise web.HTTPNotFound(reason=reason)
    return site.open_shards


async def _shards(site: Site, request: web.Request) -> web.StreamResponse:
    open_shards = _consumer(site)
    offset, limit = _part(request)
    selector = _selector(request)
    async with open_shards(_auth(request)) as client:
        listed = await list_shards(client, selector, timeout=CALL_SECONDS)
    page = shard_page(listed.shards, request.query.get("text", ""), offset, limit)
    return _answer(await in_turns(page))


async def _lags(site: Site, request: web.Request) -> web.StreamResponse:
    open_shards = _consumer(site)
    names, auth = _few((await _body(request, _NamesWanted)).names), _auth(request)
    with _of_browser():
        for name in names:
            pb.validate(pc.StatRequest(shard=name))
    async with (
        asyncio.timeout(CALL_SECONDS),
        open_shards(auth) as consumer,
        site.open_client(auth) as brokers,
    ):
        lags = await lags_of(consumer, brokers, names)
    return _answer([shard_lag(*each) for each in zip(names, lags, strict=True)])


class _UnassignWanted(msgspec.Struct, forbid_unknown_fields=True):
    shard: str
    failed: bool
    """Whether only failed replicas are unassigned, whose errors are reset by that."""


async def _unassign(site: Site, request: web.Request) -> web.StreamResponse:
    open_shards = _consumer(site)
    _require_edits(site)
    body = await _body(request, _UnassignWanted)
    async with open_shards(_auth(request)) as client:
        with _of_browser():
            wanted = pc.UnassignRequest(shards=[body.shard], only_failed=body.failed)
            pb.validate(wanted)
        try:
            unassigned = await unassign_shards(client, wanted, timeout=CALL_SECONDS)
        except pb.ShardEtcdTransactionFailedError:
            return _failure(409, "nothing was unassigned: assignments changed meanwhile")
    return _answer({"shards": list(unassigned.shards)})
