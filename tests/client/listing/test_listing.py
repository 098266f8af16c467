from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    Failure,
    JournalClient,
    Operation,
    RetryPolicy,
    apply_journals,
    connect,
    get_journal,
    iter_fragments,
    iter_journals,
    list_all_fragments,
    list_all_journals,
    list_snapshots,
)
from gazette_aio.client.listing.compat import UnmarkedListingError
from gazette_aio.client.retry import TRANSIENT_CODES
from gazette_aio.testing.stub_broker import Age, StubBroker, StubError
from tests.client.support import JOURNAL, fragment, header, listing, spec
from tests.waiting import eventually

AN_ERROR = StubError(grpc.StatusCode.UNKNOWN, "an error")


def names(response: pb.ListResponse) -> list[str]:
    return [journal.spec.name for journal in response.journals]


async def test_listings_are_merged(instant: object) -> None:
    requests: list[pb.ListRequest] = []

    def handle(request: pb.ListRequest) -> pb.ListResponse:
        requests.append(request)
        return listing("part-one", "part-two", "part-three")

    async with StubBroker(list_chunk=2) as broker, connect(broker.endpoint, strict=True) as client:
        broker.list_handler = handle
        response = await client.list("name:prefix=part-")
        assert names(response) == ["part-one", "part-two", "part-three"]
        assert response.header == header()
        assert response.status == pb.Status.OK
        selector = pb.parse_label_selector("foo=bar")
        await client.list(selector)
        await list_all_journals(client, pb.ListRequest(selector=selector))
        await client.list()
    prefix = requests[0].selector.include.labels[0]
    assert (prefix.name, prefix.value, prefix.prefix) == ("name", "part-", True)
    assert requests[1] == requests[2]
    assert not requests[3].selector.include.labels


@pytest.mark.parametrize("code", sorted(TRANSIENT_CODES))
async def test_a_listing_outlasts_what_passes(instant: object, code: str) -> None:
    failures = [StubError(grpc.StatusCode[code], "for a moment")] * 3

    def handle(request: pb.ListRequest) -> pb.ListResponse:
        if failures:
            raise failures.pop()
        return listing("a/one")

    async with StubBroker() as broker, connect(broker.endpoint) as client:
        broker.list_handler = handle
        assert names(await client.list()) == ["a/one"]
        assert not failures
        failures.append(StubError(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max"))
        with pytest.raises(pb.TransportError, match="larger than max"):
            await client.list()


async def test_listings_tell_routes(broker: StubBroker) -> None:
    listed = listing("a/one", "a/two", "a/three")
    listed.journals[1].route.Clear()
    listed.journals[1].route.primary = -1
    broker.list_handler = lambda request: listed
    async with connect(broker.endpoint) as client:
        client.router.update_route("a/two", header().route)
        await client.list()
        assert client.router.route("a/one;meta") == listed.journals[0].route
        assert not client.router.route("a/two").members
        assert client.router.route("a/three") == listed.journals[2].route
        client.router.update_route("a/one", None)
        assert [journal.spec.name async for journal in iter_journals(client)] == names(listed)
        assert client.router.route("a/one") == listed.journals[0].route


async def test_refused_listings(broker: StubBroker, client: JournalClient) -> None:
    broker.list_handler = lambda request: listing("invalid name")
    with pytest.raises(pb.ValidationError) as invalid:
        await client.list()
    assert str(invalid.value) == "Journals[0].Spec.Name: not a valid token (invalid name)"

    broker.list_handler = lambda request: pb.ListResponse(
        status=pb.Status.WRONG_ROUTE, header=header()
    )
    with pytest.raises(pb.WrongRouteError, match=r"^WRONG_ROUTE$"):
        await client.list()

    def fail(request: pb.ListRequest) -> pb.ListResponse:
        raise AN_ERROR

    broker.list_handler = fail
    with pytest.raises(pb.TransportError, match=r"^UNKNOWN: an error$"):
        await client.list()
    with pytest.raises(pb.ValidationError, match="could not match"):
        await client.list("not a selector!")
    with pytest.raises(pb.ValidationError, match="Watch"):
        await client.list(pb.ListRequest(watch=True))


async def test_other_releases_may_know_other_names(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing("invalid name", "fine/name")
    async with connect(broker.endpoint) as client:
        assert names(await client.list()) == ["invalid name", "fine/name"]


async def test_get_journal(broker: StubBroker, client: JournalClient) -> None:
    asked: list[str] = []

    def handle(request: pb.ListRequest) -> pb.ListResponse:
        asked.append(pb.format_label_selector(request.selector))
        return listing(*(["foo/bar"] if asked[-1] == "name=foo/bar" else []))

    broker.list_handler = handle
    journal = await get_journal(client, "foo/bar;with/meta")
    assert (journal.spec, journal.mod_revision, journal.create_revision) == (
        spec("foo/bar"),
        12,
        3,
    )
    assert asked == ["name=foo/bar"]
    with pytest.raises(pb.JournalNotFoundError) as raised:
        await get_journal(client, "does/not/exist")
    assert str(raised.value).startswith("named journal does not exist (does/not/exist)")
    assert raised.value.journal == "does/not/exist"


# Iterating.


@pytest.mark.parametrize("age", ["newest", "v0.100", "v0.89"])
async def test_all_ages_list_and_iterate_alike(age: Age) -> None:
    every = [f"a/journal/{number:04}" for number in range(1030)]
    requests: list[pb.ListRequest] = []

    def handle(request: pb.ListRequest) -> pb.ListResponse:
        requests.append(request)
        return listing(*every)

    async with StubBroker(age=age) as broker, connect(broker.endpoint, strict=True) as client:
        broker.list_handler = handle
        journals = [journal async for journal in iter_journals(client, "foo=bar")]
        assert [journal.spec.name for journal in journals] == every
        assert journals[-1].route == header().route
        assert requests == [pb.ListRequest(selector=pb.parse_label_selector("foo=bar"))]
        assert names(await client.list()) == every
        every.clear()
        assert names(await client.list()) == []
        assert [journal async for journal in iter_journals(client)] == []
        with pytest.raises(pb.ValidationError, match="Watch"):
            await anext(iter_journals(client, pb.ListRequest(watch=True)))


async def test_iterating_is_left_early(broker: StubBroker, client: JournalClient) -> None:
    broker.list_handler = lambda request: listing(*(f"a/journal/{n:04}" for n in range(100)))
    async with contextlib.aclosing(iter_journals(client)) as journals:
        assert (await anext(journals)).spec.name == "a/journal/0000"
        assert len(client.status().streams) == 1
    assert client.status().streams == ()


async def test_iterating_is_retried_until_it_begins(
    broker: StubBroker, client: JournalClient
) -> None:
    listed = broker.list_handler = Failing(listing("a/one", "a/two"), 2)
    assert [journal.spec.name async for journal in iter_journals(client)] == ["a/one", "a/two"]
    assert listed.calls == 3


class Breaking:
    """A stream which breaks off."""

    def __init__(self) -> None:
        self.is_closed = False
        self._messages = iter([listing("a/one")])

    async def receive(self) -> pb.ListResponse:
        for message in self._messages:
            return message
        raise pb.TransportError("UNAVAILABLE", "gone", retryable=True)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_iterating_is_not_retried_later_on(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[Breaking] = []

    async def begin(request: pb.ListRequest) -> Breaking:
        streams.append(Breaking())
        return streams[-1]

    monkeypatch.setattr(client.context.rpc, "list", begin)
    journals = iter_journals(client)
    assert (await anext(journals)).spec.name == "a/one"
    with pytest.raises(pb.TransportError, match="gone"):
        await anext(journals)
    assert [stream.is_closed for stream in streams] == [True]


# Folding.


class Messages:
    """A List stream of given messages."""

    def __init__(self, *messages: pb.ListResponse) -> None:
        self.messages = list(messages)

    async def receive(self) -> pb.ListResponse | None:
        return self.messages.pop(0) if self.messages else None


def further(name: str) -> pb.ListResponse:
    return pb.ListResponse(journals=listing(name).journals)


async def test_snapshots_of_a_watch() -> None:
    stream = Messages(
        listing("a/one", revision=10),
        further("a/two"),
        pb.ListResponse(),
        # An empty snapshot takes two messages.
        listing(revision=11),
        pb.ListResponse(header=pb.Header()),
    )
    watch = pb.ListRequest(watch=True)
    first, empty = [snapshot async for snapshot in list_snapshots(stream, watch)]
    assert names(first) == ["a/one", "a/two"]
    assert names(empty) == []
    assert empty.header.etcd.revision == 11

    cut = list_snapshots(Messages(listing("a"), pb.ListResponse(), listing(revision=57)), watch)
    assert names(await anext(cut)) == ["a"]
    with pytest.raises(pb.UnexpectedEOFError):
        await anext(cut)


async def test_a_resumed_watch_goes_on() -> None:
    request = pb.ListRequest(watch=True, watch_resume=header(20))
    for revision in (19, 20):
        with pytest.raises(pb.ValidationError) as raised:
            await anext(list_snapshots(Messages(listing(revision=revision)), request))
        assert str(raised.value) == (
            f"server sent unexpected ListResponse revision ({revision}; expected > 20)"
        )
    stream = Messages(listing(revision=21), pb.ListResponse())
    assert names(await anext(list_snapshots(stream, request))) == []


async def test_a_unary_listing_has_no_markers() -> None:
    with pytest.raises(pb.UnexpectedEOFError):
        await anext(list_snapshots(Messages(), pb.ListRequest()))
    with pytest.raises(pb.ValidationError) as raised:
        await anext(list_snapshots(Messages(listing("a"), pb.ListResponse()), pb.ListRequest()))
    assert str(raised.value) == "unexpected empty ListResponse.Journals in unary listing"


async def test_only_the_first_message_may_be_all_there_is() -> None:
    watch = pb.ListRequest(watch=True)
    with pytest.raises(UnmarkedListingError) as raised:
        await anext(list_snapshots(Messages(listing("a/one")), watch))
    assert names(raised.value.listing) == ["a/one"]
    for messages in (
        [listing("a/one"), further("a/two")],
        [listing("a/one"), pb.ListResponse(), listing("a/one", revision=57)],
    ):
        with pytest.raises(pb.UnexpectedEOFError) as cut:
            async for _ in list_snapshots(Messages(*messages), watch):
                pass
        assert not isinstance(cut.value, UnmarkedListingError)


async def test_invalid_journals_are_told_by_their_place() -> None:
    message = listing(*(f"a/journal/{n:03}" for n in range(100)))
    message.journals[70].mod_revision = 0
    with pytest.raises(pb.ValidationError, match=r"^Journals\[70\]: invalid ModRevision"):
        await anext(list_snapshots(Messages(message), pb.ListRequest()))


async def test_further_messages_may_refuse() -> None:
    stream = Messages(listing("a/one"), pb.ListResponse(status=pb.Status.WRONG_ROUTE))
    with pytest.raises(pb.WrongRouteError):
        await anext(list_snapshots(stream, pb.ListRequest()))


# Applying.


class Applied:
    def __init__(self, broker: StubBroker) -> None:
        self.batches: list[list[str]] = []
        self.fail_at = -1
        self.failure: pb.ApplyResponse | StubError = AN_ERROR
        broker.apply_handler = self.apply

    def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        if len(self.batches) == self.fail_at:
            if isinstance(self.failure, StubError):
                raise self.failure
            return self.failure
        self.batches.append([change.delete or change.upsert.name for change in request.changes])
        return pb.ApplyResponse(header=header(100 + len(self.batches)))


CHANGES = [
    pb.ApplyRequest.Change(upsert=spec("a/one")),
    pb.ApplyRequest.Change(delete="a/two", expect_mod_revision=5),
    pb.ApplyRequest.Change(upsert=spec("a/three"), expect_mod_revision=-1),
]


@pytest.mark.parametrize(
    ("size", "batches"),
    [
        (0, [["a/one", "a/two", "a/three"]]),
        (3, [["a/one", "a/two", "a/three"]]),
        (1000, [["a/one", "a/two", "a/three"]]),
        (2, [["a/one", "a/two"], ["a/three"]]),
        (1, [["a/one"], ["a/two"], ["a/three"]]),
    ],
)
async def test_batches(
    broker: StubBroker, client: JournalClient, size: int, batches: list[list[str]]
) -> None:
    applied = Applied(broker)
    response = await client.apply(pb.ApplyRequest(changes=CHANGES), batch_size=size)
    assert applied.batches == batches
    assert response.header.etcd.revision == 100 + len(batches)
    await client.apply(iter(CHANGES), batch_size=size)
    assert applied.batches == batches * 2


async def test_no_changes_are_one_request(broker: StubBroker, client: JournalClient) -> None:
    applied = Applied(broker)
    await apply_journals(client, [])
    assert applied.batches == [[]]


async def test_failing_batches(broker: StubBroker, client: JournalClient) -> None:
    applied = Applied(broker)
    applied.fail_at = 2
    with pytest.raises(pb.TransportError, match="an error") as transport:
        await apply_journals(client, CHANGES, batch_size=1)
    assert transport.value.applied == 2
    assert pickle.loads(pickle.dumps(transport.value)).applied == 2
    assert applied.batches == [["a/one"], ["a/two"]]

    applied.fail_at = len(applied.batches)
    applied.failure = pb.ApplyResponse(status=pb.Status.ETCD_TRANSACTION_FAILED, header=header())
    with pytest.raises(pb.EtcdTransactionFailedError, match=r"^ETCD_TRANSACTION_FAILED \(http"):
        await apply_journals(client, CHANGES)

    applied.failure = pb.ApplyResponse(header=header())
    applied.failure.header.route.ClearField("members")
    applied.failure.header.route.ClearField("endpoints")
    with pytest.raises(pb.ValidationError) as invalid:
        await apply_journals(client, CHANGES)
    assert str(invalid.value) == "Header.Route: invalid Primary (0; expected -1 <= Primary < 0)"


async def test_changes_are_checked_before_any_is_applied(
    broker: StubBroker, client: JournalClient
) -> None:
    applied = Applied(broker)
    with pytest.raises(pb.ValidationError, match=r"^Changes\[1\]"):
        await apply_journals(client, [CHANGES[0], pb.ApplyRequest.Change()], batch_size=1)
    with pytest.raises(pb.ConfigurationError):
        await apply_journals(client, CHANGES, batch_size=-1)
    assert applied.batches == []


# Fragments.


def page(begin: int, count: int, token: int) -> pb.FragmentsResponse:
    return pb.FragmentsResponse(
        header=header(),
        fragments=[
            # Not private: the protocol calls its message so.
            pb.FragmentsResponse._Fragment(spec=fragment(10 * n, 10 * n + 10))
            for n in range(begin, begin + count)
        ],
        next_page_token=token,
    )


async def test_pages_of_fragments(broker: StubBroker, client: JournalClient) -> None:
    requests: list[pb.FragmentsRequest] = []
    pages = {0: page(0, 3, 30), 30: page(3, 2, 50), 50: page(5, 1, 0)}

    def handle(request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        requests.append(request)
        return pages[request.next_page_token]

    broker.fragments_handler = handle
    request = pb.FragmentsRequest(journal=JOURNAL, page_limit=3)
    merged = await list_all_fragments(client, request)
    assert [f.spec.begin for f in merged.fragments] == [0, 10, 20, 30, 40, 50]
    assert merged.next_page_token == 0
    assert merged.header == header()
    assert client.router.route(JOURNAL) == header().route
    assert [r.next_page_token for r in requests] == [0, 30, 50]
    assert all(r.page_limit == 3 for r in requests)
    assert request.next_page_token == 0
    assert [f.spec.begin async for f in iter_fragments(client, JOURNAL)] == [0, 10, 20, 30, 40, 50]
    assert len((await client.list_fragments(JOURNAL)).fragments) == 6


async def test_refused_fragments(broker: StubBroker, client: JournalClient) -> None:
    broker.fragments_handler = lambda request: pb.FragmentsResponse(
        status=pb.Status.JOURNAL_NOT_FOUND, header=header()
    )
    with pytest.raises(pb.JournalNotFoundError) as raised:
        await client.list_fragments(JOURNAL)
    assert raised.value.journal == JOURNAL
    broker.fragments_handler = lambda request: pb.FragmentsResponse(
        status=pb.Status.SUSPENDED, header=header()
    )
    with pytest.raises(pb.SuspendedError):
        await client.list_fragments(JOURNAL)

    def fail(request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        raise AN_ERROR

    broker.fragments_handler = fail
    with pytest.raises(pb.TransportError, match="an error"):
        await client.list_fragments(JOURNAL)
    broker.fragments_handler = lambda request: pb.FragmentsResponse(
        status=1000,  # type: ignore[arg-type]
        header=header(),
    )
    with pytest.raises(pb.ValidationError, match=r"^Status: invalid status \(1000\)$"):
        await client.list_fragments(JOURNAL)
    with pytest.raises(pb.ValidationError, match="PageLimit"):
        await client.list_fragments(pb.FragmentsRequest(journal=JOURNAL, page_limit=-1))


async def test_refusals_lead_to_who_lists_the_fragments(broker: StubBroker) -> None:
    refusing = [True, True]

    def handle(request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        assert not request.HasField("header")
        if refusing.pop():
            return pb.FragmentsResponse(status=pb.Status.NOT_JOURNAL_BROKER, header=broker.header())
        return page(0, 3, 0)

    broker.fragments_handler = handle
    policy = RetryPolicy(max_attempts=1)
    async with connect(broker.endpoint, retry=policy) as client:
        request = pb.FragmentsRequest(journal=JOURNAL, do_not_proxy=True)
        refusing[:] = [False, True]
        assert len((await client.list_fragments(request)).fragments) == 3
        assert refusing == []
        refusing[:] = [True] * 9
        with pytest.raises(pb.NotJournalBrokerError):
            await client.list_fragments(request)
        assert len(refusing) == 9 - 4
        assert request == pb.FragmentsRequest(journal=JOURNAL, do_not_proxy=True)


async def test_a_page_token_which_does_not_move_on(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.fragments_handler = lambda request: page(0, 1, 10)
    with pytest.raises(pb.ValidationError, match="NextPageToken"):
        await client.list_fragments(JOURNAL)


# Health.


async def test_store_health(broker: StubBroker, client: JournalClient) -> None:
    requests: list[pb.FragmentStoreHealthRequest] = []
    response = pb.FragmentStoreHealthResponse(header=header())

    def handle(request: pb.FragmentStoreHealthRequest) -> pb.FragmentStoreHealthResponse:
        requests.append(request)
        return response

    broker.health_handler = handle
    store = "file:///store/"
    assert (await client.fragment_store_health(store)).status == pb.Status.OK
    response.status = pb.Status.FRAGMENT_STORE_UNHEALTHY
    response.store_health_error = "permission denied"
    unhealthy = await client.fragment_store_health(store, check_delete_prefix="recovery/")
    assert unhealthy.store_health_error == "permission denied"
    await client.fragment_store_health(store, check_delete_prefix="")
    assert [(r.check_delete, r.check_delete_prefix) for r in requests] == [
        (False, ""),
        (True, "recovery/"),
        (True, ""),
    ]
    response.status = pb.Status.JOURNAL_NOT_FOUND
    with pytest.raises(pb.JournalNotFoundError):
        await client.fragment_store_health(store)
    with pytest.raises(pb.ValidationError, match="CheckDeletePrefix"):
        await client.fragment_store_health(store, check_delete_prefix="no-slash")
    with pytest.raises(pb.ValidationError, match="FragmentStore"):
        await client.fragment_store_health("nowhere")


@pytest.mark.parametrize("age", ["v0.100", "v0.89"])
async def test_older_brokers_check_no_stores(age: Age) -> None:
    async with StubBroker(age=age) as broker, connect(broker.endpoint) as client:
        with pytest.raises(pb.TransportError) as raised:
            await client.fragment_store_health("file:///store/")
    assert raised.value.code == "UNIMPLEMENTED"


async def test_time_outs_are_those_of_asyncio(broker: StubBroker, client: JournalClient) -> None:
    async def hang(request: pb.ListRequest) -> pb.ListResponse:
        await asyncio.Event().wait()
        raise AssertionError

    broker.list_handler = hang
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await client.list()
    assert client.status().streams == ()
    await eventually(lambda: broker.open_rpcs == 0)


# Retries.


class Failing:
    """Fails some calls before it answers."""

    def __init__(self, answer: Any, failures: int) -> None:
        self.answer = answer
        self.failures = failures
        self.calls = 0

    def __call__(self, request: object) -> Any:
        self.calls += 1
        if self.calls <= self.failures:
            raise StubError(grpc.StatusCode.UNAVAILABLE, "gone")
        return self.answer


async def test_what_may_be_repeated_is(broker: StubBroker, client: JournalClient) -> None:
    broker.list_handler = Failing(listing("a/one"), 6)
    assert names(await client.list()) == ["a/one"]
    broker.fragments_handler = Failing(page(0, 3, 0), 2)
    assert len((await client.list_fragments(JOURNAL)).fragments) == 3
    broker.health_handler = Failing(pb.FragmentStoreHealthResponse(header=header()), 1)
    await client.fragment_store_health("file:///store/")
    applying = broker.apply_handler = Failing(pb.ApplyResponse(header=header(101)), 1)
    upsert = pb.ApplyRequest.Change(upsert=spec("a/one"), expect_mod_revision=-1)
    assert (await client.apply([upsert])).header.etcd.revision == 101
    assert applying.calls == 2


async def test_what_may_not_be_repeated_is_not(broker: StubBroker, client: JournalClient) -> None:
    applying = broker.apply_handler = Failing(pb.ApplyResponse(header=header(101)), 1)
    with pytest.raises(pb.TransportError, match="gone"):
        await client.apply([pb.ApplyRequest.Change(upsert=spec("a/one"))])
    assert applying.calls == 1


async def test_repeating_has_bounds(broker: StubBroker, client: JournalClient) -> None:
    listed = broker.list_handler = Failing(listing(), 1000)
    with pytest.raises(pb.TransportError, match="gone") as raised:
        await client.list()
    assert (listed.calls, raised.value.attempt) == (7, 6)

    listed.calls = 0
    async with connect(broker.endpoint, retry=RetryPolicy(max_attempts=1)) as impatient:
        with pytest.raises(pb.TransportError, match="gone"):
            await impatient.list()
    assert listed.calls == 1


async def test_policies_are_shown_refusals(broker: StubBroker) -> None:
    refused: dict[str, Any] = {"status": pb.Status.NOT_JOURNAL_BROKER, "header": header()}
    broker.list_handler = lambda request: pb.ListResponse(**refused)
    broker.apply_handler = lambda request: pb.ApplyResponse(**refused)
    broker.fragments_handler = lambda request: pb.FragmentsResponse(**refused)
    broker.health_handler = lambda request: pb.FragmentStoreHealthResponse(**refused)
    seen: list[Failure] = []

    def insist(failure: Failure) -> bool:
        seen.append(failure)
        return True

    policy = RetryPolicy(on_error=insist, max_attempts=2, backoff=lambda attempt: 0.0)
    async with connect(broker.endpoint, retry=policy) as client:

        async def iterate() -> None:
            async for _ in iter_journals(client):
                raise AssertionError

        operations: list[Callable[[], Awaitable[object]]] = [
            client.list,
            iterate,
            lambda: client.apply([]),
            lambda: client.list_fragments(JOURNAL),
            lambda: client.fragment_store_health("file:///store/"),
        ]
        for operation in operations:
            seen.clear()
            with pytest.raises(pb.NotJournalBrokerError) as raised:
                await operation()
            assert raised.value.attempt == 1
            assert [(failure.attempt, failure.operation) for failure in seen] == [
                (0, Operation.CONTROL),
                (1, Operation.CONTROL),
            ]


async def test_errors_have_the_fragments_before_them(
    broker: StubBroker, client: JournalClient
) -> None:
    pages: list[Any] = [page(0, 3, 30), page(3, 2, 50), AN_ERROR]

    def handle(request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        answer = pages.pop(0)
        if isinstance(answer, StubError):
            raise answer
        response: pb.FragmentsResponse = answer
        return response

    broker.fragments_handler = handle
    with pytest.raises(pb.TransportError, match="an error") as raised:
        await client.list_fragments(JOURNAL)
    partial = pickle.loads(pickle.dumps(raised.value)).partial
    assert partial == raised.value.partial
    assert len(partial.fragments) == 5
    pages[:] = [AN_ERROR]
    with pytest.raises(pb.TransportError, match="an error") as raised:
        await client.list_fragments(JOURNAL)
    assert raised.value.partial is None


async def test_names_outside_of_the_root_are_refused(
    broker: StubBroker, client: JournalClient
) -> None:
    applied = Applied(broker)
    upsert = pb.ApplyRequest.Change(upsert=spec("../journal"))
    with pytest.raises(pb.ValidationError, match=r"^Changes\[0\]\.Upsert\.Name: cannot begin"):
        await client.apply([upsert])
    assert applied.batches == []
    await client.apply([pb.ApplyRequest.Change(delete="../journal", expect_mod_revision=-1)])
    async with connect(broker.endpoint, allow_parent=True) as permissive:
        await permissive.apply([upsert])
    assert applied.batches == [["../journal"]] * 2
