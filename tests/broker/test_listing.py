"""Listings of journals: selectors, snapshots, watches, and what is on the wire."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.protocol.auth.authorizers import DEFAULT_LIFETIME
from tests.broker.caller import Caller, calling, journal_spec

A = journal_spec("journal/1/A", labels=pb.label_set("foo", "bar"))
B = journal_spec("journal/2/B", labels=pb.label_set("bar", "baz"))
C = journal_spec("journal/1/C")


@pytest.fixture
async def listed(caller: Caller) -> Caller:
    """Calls of a broker with three journals."""
    await caller.create(A, B, C)
    return caller


def _selector(text: str) -> pb.LabelSelector:
    return pb.parse_label_selector(text)


_LEGACY_PREFIX = pb.LabelSelector(include=pb.label_set("prefix", "journal/1/"))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (_selector(""), ["journal/1/A", "journal/1/C", "journal/2/B"]),
        (_selector("missing=label"), []),
        (_selector("!foo"), ["journal/1/C", "journal/2/B"]),
        (_selector("name=journal/2/B"), ["journal/2/B"]),
        (_selector("name=journal/2"), []),
        (_selector("name:prefix=journal/1"), ["journal/1/A", "journal/1/C"]),
        (_LEGACY_PREFIX, ["journal/1/A", "journal/1/C"]),
        (_selector("name in (journal/1/A,journal/2/B)"), ["journal/1/A", "journal/2/B"]),
    ],
)
async def test_selectors(listed: Caller, selector: pb.LabelSelector, names: list[str]) -> None:
    found = [
        journal.spec.name
        async for response in listed.list_call(pb.ListRequest(selector=selector))
        for journal in response.journals
    ]
    assert found == names


async def test_a_legacy_prefix_ends_in_a_slash(listed: Caller) -> None:
    selector = pb.LabelSelector(include=pb.label_set("prefix", "journal"))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await listed.list_call(pb.ListRequest(selector=selector)).read()
    assert raised.value.details() == (
        "Selector.Include.Labels[\"prefix\"]: expected trailing '/' (journal)"
    )


async def _snapshot(call: Any) -> list[str]:
    names: list[str] = []
    while (response := await call.read()).journals:
        names += [journal.spec.name for journal in response.journals]
    if not names:
        assert response.header.etcd.revision, "an empty snapshot has a header of its own"
        response = await call.read()
    assert response == _EMPTY
    return names


_EMPTY = pb.ListResponse.FromString(bytes.fromhex("12060a0012001a00"))


async def test_a_watch_follows_its_selection(listed: Caller) -> None:
    request = pb.ListRequest(selector=_selector("name:prefix=journal/1"), watch=True)
    watch = listed.list_call(request)
    assert await _snapshot(watch) == ["journal/1/A", "journal/1/C"]
    await listed.delete("journal/2/B")
    await listed.delete("journal/1/A")
    assert await _snapshot(watch) == ["journal/1/C"]
    await listed.delete("journal/1/C")
    assert await _snapshot(watch) == []
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch.read()


async def test_changes_which_follow_closely_are_one_snapshot(tmp_path: Path) -> None:
    clock, delay = ManualClock(follow=time.time), 1000.0
    async with (
        EmbeddedBroker(tmp_path, fsync="off", clock=clock, watch_delay=delay) as broker,
        calling(broker.endpoint) as caller,
    ):
        watch = caller.list_call(pb.ListRequest(watch=True))
        assert await _snapshot(watch) == []
        await caller.create(A)
        await caller.create(B)
        following = asyncio.ensure_future(_snapshot(watch))
        clock.advance(delay / 2)
        await caller.create(C)
        assert not following.done()
        clock.advance(delay / 2)
        names = ["journal/1/A", "journal/1/C", "journal/2/B"]
        assert await following == names
        # Who resumes behind a change is told of it at once.
        behind = pb.ListRequest(watch=True, watch_resume=broker.core.resolver.unrouted())
        behind.watch_resume.etcd.revision -= 1
        resumed = caller.list_call(behind)
        assert await _snapshot(resumed) == names
        # The time begins with the first change, however many follow.
        await caller.delete("journal/1/A")
        for name in ("B", "C"):
            clock.advance(delay * 0.4)
            await caller.delete(f"journal/{'2' if name == 'B' else '1'}/{name}")
        clock.advance(delay * 0.3)
        assert await _snapshot(watch) == []
        watch.cancel()
        resumed.cancel()


async def test_a_stop_does_not_wait_for_further_changes(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", watch_delay=1000.0) as broker:
        async with calling(broker.endpoint) as caller:
            watch = caller.list_call(pb.ListRequest(watch=True))
            assert await _snapshot(watch) == []
            await caller.create(A)
            async with asyncio.timeout(30):
                await broker.stop()
            assert await watch.read() is grpc.aio.EOF


async def test_the_first_invalid_change_is_told(caller: Caller) -> None:
    long = journal_spec("test/long", labels=pb.label_set(*["name", "x" * 900] * 20))
    for specs in ([A, journal_spec("x")], [A, B, long]):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await caller.create(*specs)
        with pytest.raises(pb.ValidationError) as expected:
            pb.validate(
                pb.ApplyRequest(
                    changes=[
                        pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)
                        for spec in specs
                    ]
                )
            )
        assert raised.value.details() == str(expected.value)
        assert f"Changes[{len(specs) - 1}]" in str(expected.value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "n={{ .Name }}/{{ printf `%x` .Spool.Begin }}",
            "unsupported '{{ printf `%x` .Spool.Begin }}'",
        ),
        ("{{ if .Name }}x{{ end }}", "unsupported '{{ if .Name }}'"),
        ("{{ .Nope }}", "unsupported '{{ .Nope }}'"),
        ("{{ .Name }}{{ .Name", "unclosed '{{ .Name'"),
    ],
)
async def test_templates_that_the_broker_cannot_evaluate(
    caller: Caller, template: str, reason: str
) -> None:
    refused = journal_spec("test/postfix", path_postfix_template=template)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await caller.create(A, refused)
    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    place = "Changes[1].Upsert.Fragment.PathPostfixTemplate: "
    assert (raised.value.details() or "").startswith(place + reason)
    assert await caller.journals() == []


async def test_watches_of_many_journals_are_chunked(caller: Caller) -> None:
    await caller.create(*(journal_spec(f"test/part-{number:03}") for number in range(60)))
    call = caller.list_call(pb.ListRequest(watch=True))
    sizes = [len((await call.read()).journals) for _ in range(4)]
    assert sizes == [25, 25, 10, 0]
    call.cancel()


async def test_the_empty_message_is_on_the_wire(broker: EmbeddedBroker) -> None:
    target = broker.endpoint.removeprefix("http://")
    plain: Any = grpc.aio.insecure_channel(target)
    async with plain as channel:
        call = channel.unary_stream("/protocol.Journal/List")(
            pb.ListRequest(watch=True).SerializeToString()
        )
        await call.read()
        assert (await call.read()).hex() == "12060a0012001a00"
        call.cancel()


async def test_a_token_sees_what_its_selector_matches(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", auth_keys="c2VjcmV0") as broker:
        auth = pb.KeyedAuth("c2VjcmV0")

        async def metadata(selector: str) -> pb.Metadata:
            claims = pb.Claims(pb.Capability.ALL, selector=_selector(selector))
            return await auth.authorize(claims, DEFAULT_LIFETIME)

        async with calling(broker.endpoint) as caller:
            changes = [pb.ApplyRequest.Change(upsert=spec) for spec in (A, B, C)]
            request = pb.ApplyRequest(changes=changes)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await caller.apply_call(request, metadata=await metadata("foo=bar"))
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert raised.value.details() == "not authorized to journal/2/B"
            await caller.apply_call(request, metadata=await metadata(""))

            call = caller.list_call(pb.ListRequest(), metadata=await metadata("foo=bar"))
            assert [j.spec.name for j in (await call.read()).journals] == ["journal/1/A"]
            read = caller.read_call(
                pb.ReadRequest(journal="journal/2/B"), metadata=await metadata("foo=bar")
            )
            assert (await read.read()).status == pb.Status.JOURNAL_NOT_FOUND
            delete = pb.ApplyRequest.Change(delete="journal/1/A", expect_mod_revision=-1)
            request = pb.ApplyRequest(changes=[delete])
            with pytest.raises(grpc.aio.AioRpcError, match="not authorized to journal/1/A"):
                await caller.apply_call(request, metadata=await metadata("foo!=bar"))
            token = await metadata("foo=bar")
            assert (await caller.apply_call(request, metadata=token)).status == pb.Status.OK
