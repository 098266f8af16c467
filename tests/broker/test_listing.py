"""Listings of journals: watches, and what's refused. Recorded scenarios have the rest."""

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
from tests.broker.caller import Caller, calling, journal_spec

A = journal_spec("journal/1/A", labels=pb.label_set("foo", "bar"))
B = journal_spec("journal/2/B", labels=pb.label_set("bar", "baz"))
C = journal_spec("journal/1/C")


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
