from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import Failure, JournalClient, PolledList, RetryPolicy, WatchedList, connect
from gazette_aio.client.listing import upkeep
from gazette_aio.client.listing.watch_plan import MAX_DOUBTS
from gazette_aio.message import random_mapping
from gazette_aio.protocol.selector import compile_selector
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import End, StubBroker, StubError
from tests.cancellation import cancel_at_every_await
from tests.client.support import header, listing, spec
from tests.waiting import eventually

AN_ERROR = StubError(grpc.StatusCode.UNKNOWN, "an error")
UNAUTHENTICATED = StubError(grpc.StatusCode.UNAUTHENTICATED, "no token")


def names(response: pb.ListResponse | None) -> list[str]:
    assert response is not None
    return [journal.spec.name for journal in response.journals]


class Watches:
    """Answers watches of a stub by scripts, and listings by the header of the newest snapshot."""

    def __init__(self, broker: StubBroker) -> None:
        self.scripts: dict[int, asyncio.Queue[pb.ListResponse | End]] = defaultdict(asyncio.Queue)
        self.scripted = 0
        self.requests: list[pb.ListRequest] = []
        self.listed: list[pb.ListRequest] = []
        self.newest = listing(revision=1)
        broker.list_handler = self._answer

    def send(self, *steps: pb.ListResponse | StubError | None) -> None:
        """Go on with the script: snapshots, and None or errors, which are the end of a watch."""
        for step in steps:
            script = self.scripts[self.scripted]
            if isinstance(step, pb.ListResponse):
                self.newest = step
                script.put_nowait(step)
            else:
                script.put_nowait(End(step))
                self.scripted += 1

    @property
    def resumed(self) -> list[int]:
        return [request.watch_resume.etcd.revision for request in self.requests]

    def _answer(self, request: pb.ListRequest) -> Any:
        if request.watch:
            self.requests.append(request)
            return self._snapshots(self.scripts[len(self.requests) - 1])
        self.listed.append(request)
        return pb.ListResponse(header=self.newest.header)

    async def _snapshots(
        self, script: asyncio.Queue[pb.ListResponse | End]
    ) -> AsyncIterator[pb.ListResponse]:
        while not isinstance(step := await script.get(), End):
            yield step
        if step.error is not None:
            raise step.error


@pytest.fixture
def watches(broker: StubBroker) -> Watches:
    return Watches(broker)


# Snapshots.


async def test_snapshots_replace_one_another(client: JournalClient, watches: Watches) -> None:
    errors: list[pb.GazetteError] = []
    async with client.watch("foo=bar", on_error=errors.append) as watched:
        assert watched.list() is None
        watches.send(listing("a/one", revision=10), AN_ERROR)
        assert names(await watched.ready()) == ["a/one"]
        await eventually(lambda: errors)
        assert str(errors[0]) == "UNKNOWN: an error"
        # What was listed remains until there is something newer.
        assert names(watched.list()) == ["a/one"]

        updates = watched.updates()
        assert await anext(updates) is watched.list()
        watches.send(listing("a/one", "a/two", revision=12))
        assert names(await anext(updates)) == ["a/one", "a/two"]
        assert watched.last_error is None
    request = watches.requests[0]
    assert pb.format_label_selector(request.selector) == "foo=bar"
    assert request.watch
    # It went on behind what it had.
    assert watches.resumed == [0, 10]
    assert watches.requests[1].watch_resume == header(10)


@pytest.mark.parametrize("selector", ["foo=bar", pb.parse_label_selector("foo=bar")])
async def test_selectors(client: JournalClient, watches: Watches, selector: Any) -> None:
    if not isinstance(selector, str):
        # Nothing but the selector of a request is used.
        selector = pb.ListRequest(selector=selector, watch=True, watch_resume=header(99))
    watches.send(listing(revision=10))
    async with WatchedList(client, selector) as watched:
        assert names(await watched.ready()) == []
    expected = pb.ListRequest(selector=pb.parse_label_selector("foo=bar"), watch=True)
    assert watches.requests == [expected]
    with pytest.raises(pb.ValidationError):
        client.watch("not a selector!")
    for interval in (0, math.nan):
        with pytest.raises(pb.ConfigurationError, match="poll_interval"):
            client.watch(poll_interval=interval)


async def test_the_end_of_a_stream_is_no_error(
    client: JournalClient, watches: Watches, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[pb.GazetteError] = []
    # Not even one attempt may fail, and the time-out of the second would be noticed.
    policy = RetryPolicy(max_attempts=1, backoff=lambda attempt: 60.0)
    async with client.watch(on_error=errors.append, retry_policy=policy) as watched:
        updates = watched.updates()
        for revision in range(10, 15):
            watches.send(listing(f"a/journal-{revision}", revision=revision), None)
            assert names(await anext(updates)) == [f"a/journal-{revision}"]
        await eventually(lambda: len(watches.requests) == 6)
        assert watched.last_error is None
    assert errors == []
    assert watches.resumed == [0, 10, 11, 12, 13, 14]
    assert not caplog.records


async def test_streams_which_end_at_once_are_throttled(
    broker: StubBroker, watches: Watches
) -> None:
    attempts: list[int] = []

    def note(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    watches.send(*[None] * 4, listing(revision=10))
    policy = RetryPolicy(backoff=note)
    async with connect(broker.endpoint, retry=policy) as client, client.watch() as watched:
        await watched.ready()
    assert attempts == [-1, 0, 1, 2]


async def test_streams_which_bring_nothing_new_are_throttled(
    broker: StubBroker, watches: Watches
) -> None:
    attempts: list[int] = []

    def note(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    for revision in range(10, 14):
        watches.send(listing("a/one", revision=revision), None)
    watches.send(listing("a/two", revision=14), None, listing("a/three", revision=15))
    policy = RetryPolicy(backoff=note)
    async with connect(broker.endpoint, retry=policy) as client, client.watch() as watched:
        await eventually(lambda: watched.list() and names(watched.list()) == ["a/three"])
    assert attempts == [-1, 0, 1]


async def test_what_is_listed_stays_the_same_object_while_nothing_changes(
    client: JournalClient, watches: Watches
) -> None:
    changed = asyncio.Event()
    async with client.watch(changed=changed) as watched:
        watches.send(listing("a/one", revision=10))
        first = await watched.ready()
        assert changed.is_set()
        changed.clear()
        watches.send(listing("a/one", revision=11), listing("a/one", revision=12), None)
        await eventually(lambda: len(watches.requests) == 2)
        # It has seen the newer revision all the same.
        assert watches.resumed == [0, 12]
        assert watched.list() is first
        assert not changed.is_set()

        moved = listing("a/one", revision=13)
        moved.journals[0].mod_revision = 13
        watches.send(moved)
        await changed.wait()
        assert watched.list() is not first


# Consumers.


async def test_each_consumer_gets_the_newest(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        eager, lazy = watched.updates(), watched.updates()
        for revision in range(10, 20):
            watches.send(listing(f"a/journal-{revision}", revision=revision))
            assert names(await anext(eager)) == [f"a/journal-{revision}"]
        # Nine are left out, but not the last.
        assert names(await anext(lazy)) == ["a/journal-19"]
        # Those who are waiting wake up all.
        waiting = [asyncio.ensure_future(anext(updates)) for updates in (eager, lazy)]
        late = asyncio.ensure_future(anext(watched.updates()))
        assert names(await late) == ["a/journal-19"]
        await asyncio.sleep(0)
        watches.send(listing("a/last", revision=20))
        assert [names(await update) for update in waiting] == [["a/last"], ["a/last"]]

        # One who comes behind the end still gets the last.
        behind = watched.updates()
        waiting = [asyncio.ensure_future(anext(eager))]
        await asyncio.sleep(0)
    assert isinstance(
        (await asyncio.gather(*waiting, return_exceptions=True))[0], StopAsyncIteration
    )
    assert [names(update) async for update in behind] == [["a/last"]]
    assert [names(update) async for update in lazy] == []


async def test_a_cancelled_consumer_goes_on(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        updates, changes = watched.updates(), watched.changes()
        for iterator in (updates, changes):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await anext(iterator)
        watches.send(listing("a/one", revision=10))
        assert names(await anext(updates)) == ["a/one"]
        assert len((await anext(changes)).added) == 1


async def test_one_event_for_several_lists(broker: StubBroker, client: JournalClient) -> None:
    sent = {name: asyncio.Queue[pb.ListResponse]() for name in ("a", "b")}

    async def snapshots(name: str) -> AsyncIterator[pb.ListResponse]:
        while True:
            yield await sent[name].get()

    broker.list_handler = lambda request: snapshots(request.selector.include.labels[0].value)
    changed = asyncio.Event()
    async with (
        client.watch("topic=a", changed=changed) as one,
        client.watch("topic=b", changed=changed) as two,
    ):
        for watched, name in ((one, "a"), (two, "b")):
            sent[name].put_nowait(listing(f"{name}/journal", revision=10))
            await changed.wait()
            changed.clear()
            assert names(watched.list()) == [f"{name}/journal"]


async def test_changes(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        changes = watched.changes()
        watches.send(listing(revision=10))
        nothing = await anext(changes)
        assert not nothing
        assert nothing.listing is watched.list()

        updates = watched.updates()
        await anext(updates)
        # These two are told as one.
        for revision, names_now in ((11, ["a/one"]), (12, ["a/one", "a/two"])):
            watches.send(listing(*names_now, revision=revision))
            await anext(updates)
        added = await anext(changes)
        assert [journal.spec.name for journal in added.added] == ["a/one", "a/two"]

        # Routes don't count.
        moved = listing("a/one", "a/two", revision=13)
        moved.journals[0].route.Clear()
        moved.journals[0].route.primary = -1
        watches.send(moved)
        await anext(updates)
        watches.send(listing("a/two", revision=14))
        removed = await anext(changes)
        assert [journal.spec.name for journal in removed.removed] == ["a/one"]
        assert not removed.added
        assert not removed.changed


async def test_changes_which_are_kept_do_not_keep_whole_listings(
    client: JournalClient, watches: Watches
) -> None:
    async with client.watch() as watched:
        changes = watched.changes()
        watches.send(listing("a/one", "a/two", revision=10))
        before = (await anext(changes)).listing
        after = listing("a/three", "a/two", revision=11)
        after.journals[1].mod_revision = 11
        watches.send(after)
        kept = await anext(changes)
        # Were they parts of the listings, they'd follow these.
        for journal in (*before.journals, *kept.listing.journals):
            journal.Clear()
        ((older, newer),) = kept.changed
        names_kept = [j.spec.name for j in (*kept.added, *kept.removed, older, newer)]
        assert names_kept == ["a/three", "a/one", "a/two", "a/two"]


def test_a_mapping_of_what_is_watched(client: JournalClient) -> None:
    mapping = random_mapping(client.watch().list)
    with pytest.raises(pb.EmptyListResponseError):
        mapping(b"a message")


async def test_mappings_follow(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        mapping = random_mapping(watched.list)
        for revision in (10, 11):
            watches.send(listing(f"a/journal-{revision}", revision=revision))
            async for _ in watched.updates():
                if watched.list() and names(watched.list()) == [f"a/journal-{revision}"]:
                    break
            assert mapping(b"a message") == (f"a/journal-{revision}", "")


# Failures.


async def test_a_refusal_at_first_is_raised(
    client: JournalClient, watches: Watches, caplog: pytest.LogCaptureFixture
) -> None:
    changed = asyncio.Event()
    # Tokens may expire on their way, but not one after another.
    watches.send(*[UNAUTHENTICATED] * 3)
    async with client.watch("foo=bar", changed=changed) as watched:
        for _ in range(2):
            with pytest.raises(pb.TransportError, match="UNAUTHENTICATED"):
                await watched.ready()
        with pytest.raises(pb.TransportError, match="UNAUTHENTICATED"):
            await anext(watched.updates())
        with pytest.raises(pb.TransportError, match="UNAUTHENTICATED"):
            await anext(watched.changes())
        assert isinstance(watched.last_error, pb.TransportError)
        assert changed.is_set()
        assert "failed, no listing yet" in repr(watched)
    record = caplog.records[-1]
    assert record.levelno == logging.WARNING
    assert record.selector == "foo=bar"  # type: ignore[attr-defined]


async def test_other_failures_at_first_are_retried(client: JournalClient, watches: Watches) -> None:
    errors: list[pb.GazetteError] = []
    invalid = listing("a/one", revision=10)
    invalid.journals[0].mod_revision = 0
    refused = pb.ListResponse(status=pb.Status.WRONG_ROUTE, header=header())
    watches.send(AN_ERROR, invalid, None, refused, None, listing("a/one", revision=11))
    async with client.watch(on_error=errors.append) as watched:
        assert names(await watched.ready()) == ["a/one"]
        assert watched.last_error is None
    assert [type(error) for error in errors] == [
        pb.TransportError,
        pb.ValidationError,
        pb.WrongRouteError,
    ]


async def test_a_refusal_later_on_is_retried(client: JournalClient, watches: Watches) -> None:
    errors: list[pb.GazetteError] = []
    watches.send(listing("a/one", revision=10), UNAUTHENTICATED, listing("a/two", revision=11))
    async with client.watch(on_error=errors.append) as watched:
        updates = watched.updates()
        await eventually(lambda: names(watched.list()) == ["a/two"] if watched.list() else False)
        assert names(await anext(updates)) == ["a/two"]
    assert [str(error) for error in errors] == [
        f"UNAUTHENTICATED: broker {client.endpoint}: no token"
    ]


async def test_policies_bound_retries(client: JournalClient, watches: Watches) -> None:
    seen: list[Failure] = []

    def note(failure: Failure) -> None:
        seen.append(failure)

    policy = RetryPolicy(max_attempts=3, backoff=lambda attempt: 0.0, on_error=note)
    watches.send(listing("a/one", revision=10), AN_ERROR, AN_ERROR, AN_ERROR)
    async with client.watch(retry_policy=policy) as watched:
        updates = watched.updates()
        assert names(await anext(updates)) == ["a/one"]
        with pytest.raises(pb.TransportError, match="an error") as raised:
            await anext(updates)
        assert raised.value.attempt == 2
        # What was listed remains of use.
        assert names(await watched.ready()) == ["a/one"]
    assert [(failure.attempt, failure.established) for failure in seen] == [
        (0, True),
        (1, True),
        (2, True),
    ]


async def test_streams_which_stood_a_while_are_no_failed_attempts(
    client: JournalClient, watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LONGEST_DELAY", 0.0)
    errors: list[pb.GazetteError] = []
    policy = RetryPolicy(max_attempts=2, backoff=lambda attempt: 0.0)
    watches.send(listing("a/one", revision=10), *[None] * 4, *[AN_ERROR] * 3)
    watches.send(listing("a/two", revision=11))
    async with client.watch(on_error=errors.append, retry_policy=policy) as watched:
        await eventually(lambda: watched.list() and names(watched.list()) == ["a/two"])
    assert len(errors) == 3


async def test_streams_which_never_answer_are_failed_attempts(
    client: JournalClient, watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LONGEST_DELAY", 0.0)
    policy = RetryPolicy(max_attempts=3, backoff=lambda attempt: 0.0)
    watches.send(*[AN_ERROR] * 4)
    async with client.watch(retry_policy=policy) as watched:
        with pytest.raises(pb.TransportError, match="an error") as raised:
            await watched.ready()
    assert raised.value.attempt == 2


async def test_a_failing_callback_ends_the_list(client: JournalClient, watches: Watches) -> None:
    def fail(error: pb.GazetteError) -> None:
        raise ZeroDivisionError

    watches.send(AN_ERROR)
    async with client.watch(on_error=fail) as watched:
        with pytest.raises(ZeroDivisionError):
            await watched.ready()


async def test_a_closed_client_ends_the_list(broker: StubBroker, watches: Watches) -> None:
    watches.send(listing(revision=10))
    async with connect(broker.endpoint) as client:
        watched = client.watch()
        async with watched:
            updates = watched.updates()
            await anext(updates)
            await client.aclose()
            with pytest.raises(RuntimeError, match="is closed"):
                await anext(updates)


async def test_the_end_of_the_task_wakes_all(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        waiting = asyncio.ensure_future(anext(watched.updates()))
        await eventually(lambda: watches.requests)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("gazette watch"):
                task.cancel()
        with pytest.raises(StopAsyncIteration):
            # A StopAsyncIteration can't be raised by a task, but is by its future.
            raise (await asyncio.gather(waiting, return_exceptions=True))[0]  # type: ignore[misc]


# Resuming.


async def test_a_probe_precedes_a_resumed_watch(client: JournalClient, watches: Watches) -> None:
    watches.send(listing(revision=10), None, listing("a/one", revision=11))
    async with client.watch("foo=bar") as watched:
        await eventually(lambda: watched.list() and names(watched.list()))
    (probe,) = watches.listed
    matches = compile_selector(probe.selector)
    assert not matches(pb.label_set("name", "watch/resume"))
    assert not matches(pb.label_set("name", "a/journal", "foo", "bar"))


async def test_another_cluster_is_listed_anew(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        updates = watched.updates()
        watches.send(listing("a/one", "a/two", revision=1000))
        await anext(updates)
        other = listing("a/one", revision=7)
        other.header.etcd.cluster_id += 1
        watches.send(None, other)
        assert names(await anext(updates)) == ["a/one"]
    assert watches.resumed == [0, 0]


async def test_a_broker_which_stays_behind_is_listed_anew(
    client: JournalClient, watches: Watches
) -> None:
    errors: list[pb.GazetteError] = []
    async with client.watch(on_error=errors.append) as watched:
        updates = watched.updates()
        watches.send(listing("a/one", "a/two", revision=1000))
        await anext(updates)
        watches.send(None, listing("a/one", revision=7))
        assert names(await anext(updates)) == ["a/one"]
    assert watches.resumed == [0, 0]
    assert len(watches.listed) == MAX_DOUBTS
    assert [str(error) for error in errors] == [
        "server sent unexpected ListResponse revision (7; expected >= 1000)"
    ] * MAX_DOUBTS


async def test_a_broker_which_refuses_to_resume_is_listed_anew(
    client: JournalClient, watches: Watches
) -> None:
    async with client.watch() as watched:
        updates = watched.updates()
        watches.send(listing("a/one", revision=1000))
        await anext(updates)
        watches.send(None, *[AN_ERROR] * MAX_DOUBTS, listing("a/two", revision=1000))
        assert names(await anext(updates)) == ["a/two"]
    assert watches.resumed == [0, *[1000] * MAX_DOUBTS, 0]


async def test_a_broker_which_catches_up_is_resumed(
    broker: StubBroker, client: JournalClient
) -> None:
    watches = Watches(broker)
    answer = broker.list_handler
    assert answer is not None

    def lag(request: pb.ListRequest) -> Any:
        if not request.watch and not watches.listed:
            watches.listed.append(request)
            return listing(revision=999)
        return answer(request)

    broker.list_handler = lag
    async with client.watch() as watched:
        updates = watched.updates()
        watches.send(listing("a/one", revision=1000))
        await anext(updates)
        watches.send(None, listing("a/two", revision=1001))
        assert names(await anext(updates)) == ["a/two"]
    assert watches.resumed == [0, 1000]
    assert len(watches.listed) == 2


async def test_a_watch_which_goes_back_is_listed_anew(
    client: JournalClient, watches: Watches
) -> None:
    errors: list[pb.GazetteError] = []
    async with client.watch(on_error=errors.append) as watched:
        updates = watched.updates()
        watches.send(listing("a/one", revision=1000))
        await anext(updates)
        watches.send(*[listing("a/two", revision=1000), None] * (MAX_DOUBTS + 1))
        assert names(await anext(updates)) == ["a/two"]
    # The first of them was on the first stream.
    assert watches.resumed == [0, *[1000] * (MAX_DOUBTS - 1), 0]
    assert {str(error) for error in errors} == {
        "server sent unexpected ListResponse revision (1000; expected > 1000)"
    }


# Brokers which can't watch.


async def test_older_brokers_are_polled() -> None:
    journals = ["a/one"]
    requests: list[pb.ListRequest] = []

    def answer(request: pb.ListRequest) -> pb.ListResponse:
        requests.append(request)
        return listing(*journals, revision=10)

    errors: list[pb.GazetteError] = []
    async with StubBroker(age="v0.89") as broker, connect(broker.endpoint) as client:
        broker.list_handler = answer
        async with client.watch(poll_interval=0.001, on_error=errors.append) as watched:
            updates = watched.updates()
            first = await anext(updates)
            assert names(first) == ["a/one"]
            await eventually(lambda: len(requests) > 3)
            assert watched.list() is first
            assert "polling" in repr(watched)
            journals.append("a/two")
            assert names(await anext(updates)) == ["a/one", "a/two"]

            # One which is replaced by a newer release is watched from then on.
            broker.age = "v0.100"
            watches = Watches(broker)
            watches.send(listing("a/three", revision=11))
            assert names(await anext(updates)) == ["a/three"]
            assert "watching" in repr(watched)
    assert errors == []
    assert not any(request.HasField("watch_resume") for request in requests)


async def test_a_stream_which_ends_within_a_snapshot() -> None:
    errors: list[pb.GazetteError] = []
    async with (
        StubBroker(age="v0.89", list_chunk=1) as broker,
        connect(broker.endpoint, retry=RetryPolicy(backoff=lambda attempt: 0.0)) as client,
    ):
        broker.list_handler = lambda request: listing("a/one", "a/two", revision=10)
        async with client.watch(on_error=errors.append, poll_interval=60) as watched:
            await eventually(lambda: len(errors) > 1)
            assert watched.list() is None
    assert all(isinstance(error, pb.UnexpectedEOFError) for error in errors)


async def test_a_resumed_watch_is_not_taken_for_a_listing(
    broker: StubBroker, client: JournalClient, watches: Watches
) -> None:
    errors: list[pb.GazetteError] = []
    async with client.watch(on_error=errors.append) as watched:
        updates = watched.updates()
        watches.send(listing("a/one", revision=10))
        await anext(updates)
        broker.age = "v0.89"
        broker.list_handler = lambda request: listing(revision=11)
        watches.send(None)
        # It's cut off for a while, and then all there is.
        assert names(await anext(updates)) == []
    assert len(errors) == MAX_DOUBTS
    assert all(isinstance(error, pb.UnexpectedEOFError) for error in errors)


# Polled lists.


async def test_polled_lists(broker: StubBroker, instant: RetryPolicy) -> None:
    journals = ["a/one"]
    failing: list[StubError] = []

    def answer(request: pb.ListRequest) -> pb.ListResponse:
        assert not request.watch
        if failing:
            raise failing.pop()
        return listing(*journals, revision=10)

    broker.list_handler = answer
    errors: list[pb.GazetteError] = []
    changed = asyncio.Event()
    async with (
        connect(broker.endpoint, retry=instant, cache_size=10) as client,
        PolledList(
            client, "foo=bar", poll_interval=0.001, changed=changed, on_error=errors.append
        ) as polled,
    ):
        first = await polled.ready()
        # Each listing is an update, though it's the same object while nothing changes.
        updates = polled.updates()
        for _ in range(3):
            changed.clear()
            assert await anext(updates) is first
            await changed.wait()
        failing[:] = [AN_ERROR] * 2
        await eventually(lambda: len(errors) == 2)
        assert polled.list() is first
        assert client.router.route("a/one") == header().route
        journals.append("a/two")
        await eventually(lambda: len(names(polled.list())) == 2)
        assert polled.list() is not first
        changes = polled.changes()
        assert len((await anext(changes)).added) == 2
        assert repr(polled).startswith("<PolledList of 'foo=bar', polling, 2 journals as of")


async def test_the_first_listing_of_a_polled_list_fails_at_once(
    broker: StubBroker, client: JournalClient
) -> None:
    def fail(request: pb.ListRequest) -> pb.ListResponse:
        raise AN_ERROR

    broker.list_handler = fail
    async with PolledList(client) as polled:
        with pytest.raises(pb.TransportError, match="an error"):
            await polled.ready()
    assert len(broker.metadata) == 1


@pytest.mark.parametrize(("established", "calls"), [(False, 2), (True, 3)])
async def test_the_policy_of_a_polled_list_holds(
    broker: StubBroker, client: JournalClient, established: bool, calls: int
) -> None:
    listings = [listing("a/one", revision=10)] * established
    asked = 0

    def answer(request: pb.ListRequest) -> pb.ListResponse:
        nonlocal asked
        asked += 1
        if listings:
            return listings.pop()
        raise StubError(grpc.StatusCode.UNAVAILABLE, "gone")

    broker.list_handler = answer
    policy = RetryPolicy(max_attempts=2, backoff=lambda attempt: 0.0)
    async with PolledList(client, poll_interval=0.001, retry_policy=policy) as polled:
        updates = polled.updates()
        for _ in range(established):
            assert names(await anext(updates)) == ["a/one"]
        with pytest.raises(pb.TransportError, match="gone"):
            await anext(updates)
    assert asked == calls


# Life.


async def test_misuse(client: JournalClient, watches: Watches) -> None:
    watched = client.watch()
    assert repr(watched) == "<WatchedList of '', not entered, no listing yet>"
    for wait in (watched.ready(), anext(watched.updates()), anext(watched.changes())):
        with pytest.raises(RuntimeError, match="isn't entered"):
            await wait
    async with watched:
        with pytest.raises(RuntimeError, match="twice"):
            await watched.__aenter__()
        await eventually(lambda: watches.requests)
        assert repr(watched) == "<WatchedList of '', connecting, no listing yet>"
        watches.send(listing("a/one", revision=10))
        await watched.ready()
        assert repr(watched) == ("<WatchedList of '', watching, 1 journals as of revision 10>")
        await watched.aclose()
        await watched.aclose()
        assert "closed" in repr(watched)
    with pytest.raises(RuntimeError, match="twice"):
        await watched.__aenter__()
    # What was listed remains.
    assert names(await watched.ready()) == ["a/one"]


async def test_closed_before_there_was_a_listing(client: JournalClient, watches: Watches) -> None:
    async with client.watch() as watched:
        pass
    with pytest.raises(RuntimeError, match="is closed"):
        await watched.ready()
    assert [update async for update in watched.updates()] == []
    assert [change async for change in watched.changes()] == []
    never = client.watch()
    await never.aclose()


async def test_a_forgotten_list_tells(client: JournalClient, watches: Watches) -> None:
    watches.send(listing(revision=10))
    watched = client.watch("foo=bar")
    await watched.__aenter__()
    await watched.ready()
    # One which is iterated isn't forgotten.
    iterated = [watched.updates()]
    del watched
    gc.collect(0)
    await anext(iterated[0])
    with pytest.warns(ResourceWarning, match=r"<WatchedList of 'foo=bar', .* was never closed"):
        iterated.clear()
    await eventually(lambda: client.status().streams == ())


async def test_cancellation(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gazette_aio.aio.turns.SLICE_SECONDS", 0)  # Comparing gives all turns.

    async def forever(request: pb.ListRequest) -> AsyncIterator[pb.ListResponse]:
        yield listing("a/one", revision=10)
        await asyncio.Event().wait()

    broker.list_handler = forever

    async def operation() -> None:
        async with client.watch() as watched:
            await watched.ready()
            async for _ in watched.changes():
                break

    async def check() -> None:
        await eventually(lambda: broker.open_rpcs == 0 and client.status().streams == ())
        await eventually(
            lambda: not any(t.get_name().startswith("gazette watch") for t in asyncio.all_tasks())
        )

    assert await cancel_at_every_await(operation, check) > 2


# A broker.


async def test_a_watch_of_a_broker(tmp_path: Path) -> None:
    upsert = pb.ApplyRequest.Change(upsert=spec("watched/one"))
    port = free_port()
    async with EmbeddedBroker(tmp_path / "one", watch_delay=0, http_port=None, port=port) as broker:
        async with connect(broker.endpoint) as client, client.watch("prefix=watched/") as watched:
            updates, changes = watched.updates(), watched.changes()
            assert names(await anext(updates)) == []
            await anext(changes)
            await client.apply([upsert, pb.ApplyRequest.Change(upsert=spec("other/journal"))])
            assert names(await anext(updates)) == ["watched/one"]
            (one,) = (await anext(changes)).added
            changed = pb.ApplyRequest.Change(
                upsert=spec("watched/one", labels=pb.label_set("foo", "bar")),
                expect_mod_revision=one.mod_revision,
            )
            await client.apply([changed])
            (change,) = (await anext(changes)).changed
            assert pb.value_of(change.after.spec.labels, "foo") == "bar"

            # It returns, and is resumed.
            await broker.stop(0)
            async with EmbeddedBroker(
                tmp_path / "one", watch_delay=0, http_port=None, port=port
            ) as again:
                await client.apply([pb.ApplyRequest.Change(upsert=spec("watched/two"))])
                await eventually(lambda: names(watched.list()) == ["watched/one", "watched/two"])
                assert len((await anext(changes)).added) == 1
                await again.stop(0)

            # Another one comes in its place, whose revisions begin anew.
            async with EmbeddedBroker(tmp_path / "two", watch_delay=0, http_port=None, port=port):
                assert len((await anext(changes)).removed) == 2
                await client.apply([upsert])
                assert len((await anext(changes)).added) == 1
                assert names(watched.list()) == ["watched/one"]
