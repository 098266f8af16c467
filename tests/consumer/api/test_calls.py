"""Calls of the Shard service against a scripted member."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy
from gazette_aio.consumer.api import (
    ShardClient,
    apply_shards,
    connect_shards,
    fetch_hints,
    list_shards,
    pick_first_hints,
    stat_shard,
    unassign_shards,
)
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.api.members import StubMember, header, listed
from tests.loop_steps import SLICE_CALLS, longest_step

SHARD = "a/shard"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXPIRED = grpc.StatusCode.DEADLINE_EXCEEDED
POLICY = RetryPolicy(backoff=lambda _: 0.0)

Call = Callable[[ShardClient], Any]

CALLS: dict[str, tuple[Call, type[Any]]] = {
    "Stat": (lambda client: stat_shard(client, SHARD), pc.StatResponse),
    "List": (list_shards, pc.ListResponse),
    "Apply": (lambda client: apply_shards(client, []), pc.ApplyResponse),
    "GetHints": (lambda client: fetch_hints(client, SHARD), pc.GetHintsResponse),
    "Unassign": (lambda client: unassign_shards(client, [SHARD]), pc.UnassignResponse),
}


def upsert(shard: str, *, revision: int = 0) -> pc.ApplyRequest.Change:
    spec = pc.ShardSpec(id=shard, max_txn_duration=pb.duration_proto(10**9))
    return pc.ApplyRequest.Change(upsert=spec, expect_mod_revision=revision)


def response(kind: type[Any], **fields: Any) -> Any:
    """Return a response with a header, if its type has one."""
    return kind(**fields) if kind is pc.UnassignResponse else kind(header=header(), **fields)


@pytest.mark.parametrize("call", [stat_shard, fetch_hints, unassign_shards])
async def test_a_name_with_a_lone_surrogate_is_refused(call: Any):
    name: Any = ["a\ud800b"] if call is unassign_shards else "a\ud800b"
    async with StubMember() as member, connect_shards(member.endpoint) as client:
        with pytest.raises(pb.ValidationError, match=r"^Shard: not a valid token .*\\ud800"):
            await call(client, name)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("method", CALLS)
async def test_statuses_are_raised(method: str, *, strict: bool):
    call, kind = CALLS[method]
    async with StubMember() as member, connect_shards(member.endpoint, strict=strict) as client:
        for status in pc.Status.values()[1:]:
            refusal = response(kind, status=status)
            member.answer(method, refusal)
            with pytest.raises(pb.ShardStatusError) as caught:
                await call(client)
            assert caught.value.status == status
            assert type(caught.value) is not pb.UnknownShardStatusError
            assert caught.value.response == refusal
            assert caught.value.endpoint == member.endpoint
        if not strict:
            member.answer(method, response(kind, status=99))
            with pytest.raises(pb.UnknownShardStatusError):
                await call(client)
        member.answer(method, response(kind))
        assert await call(client) == response(kind)


@pytest.mark.parametrize("method", ["Stat", "List", "Apply"])
async def test_invalid_responses_are_raised(method: str):
    call, kind = CALLS[method]
    async with StubMember() as member, connect_shards(member.endpoint, strict=True) as client:
        member.answer(method, kind(header=pb.Header(route=pb.Route(primary=-1))))
        with pytest.raises(pb.ValidationError, match=r"^Header\.Etcd: invalid ClusterId"):
            await call(client)


async def test_invalid_requests_are_not_sent():
    async with StubMember() as member, connect_shards(member.endpoint) as client:
        for call in (stat_shard, fetch_hints):
            with pytest.raises(pb.ValidationError, match=r"^Shard: not a valid token"):
                await call(client, "a shard")
        with pytest.raises(pb.ValidationError, match=r"^Shards\[1\]: invalid length"):
            await unassign_shards(client, [SHARD, ""])
        with pytest.raises(pb.ValidationError, match=r"^Selector"):
            await list_shards(client, pb.LabelSelector(include={"labels": [{"name": "a b"}]}))
        with pytest.raises(pb.ValidationError, match=r"^Changes\[1\]\.Upsert\.Id.*'x y z'"):
            await apply_shards(client, [upsert(SHARD), upsert("x y z")])
        with pytest.raises(pb.ConfigurationError, match="batch_size"):
            await apply_shards(client, [], batch_size=-1)
        with pytest.raises(pb.ConfigurationError, match="timeout"):
            await stat_shard(client, SHARD, timeout=0)
        assert member.requests == []


async def test_requests_of_arguments():
    async with StubMember() as member, connect_shards(member.endpoint) as client:
        for method, (_, kind) in CALLS.items():
            member.answer(method, response(kind))
        await list_shards(client, "id=x")
        await unassign_shards(client, iter([SHARD]), only_failed=True, dry_run=True)
        request = pc.StatRequest(shard=SHARD, read_through={"a/journal": 5}, extension=b"x")
        await stat_shard(client, request)
        await fetch_hints(client, SHARD)
        assert member.requests == [
            pc.ListRequest(selector=pb.parse_label_selector("id=x")),
            pc.UnassignRequest(shards=[SHARD], only_failed=True, dry_run=True),
            request,
            pc.GetHintsRequest(shard=SHARD),
        ]


async def test_batches():
    changes = [upsert(f"shard-{index}") for index in range(5)]
    async with StubMember() as member, connect_shards(member.endpoint) as client:
        member.answer(
            "Apply",
            response(pc.ApplyResponse, extension=b"one"),
            *3 * [response(pc.ApplyResponse, extension=b"last")],
        )
        applied = await apply_shards(client, changes, batch_size=2)
        assert applied.extension == b"last"
        assert [list(request.changes) for request in member.requests] == [
            changes[:2],
            changes[2:4],
            changes[4:],
        ]
        member.requests.clear()
        await apply_shards(client, pc.ApplyRequest(changes=changes, extension=b"mine"))
        await apply_shards(client, [])
        assert member.requests == [
            pc.ApplyRequest(changes=changes, extension=b"mine"),
            pc.ApplyRequest(),
        ]


async def test_a_failed_batch_tells_how_many_changes_were_applied():
    changes = [upsert(f"shard-{index}") for index in range(5)]
    async with StubMember() as member, connect_shards(member.endpoint) as client:
        failed = response(pc.ApplyResponse, status=pc.Status.ETCD_TRANSACTION_FAILED)
        member.answer("Apply", response(pc.ApplyResponse), failed)
        with pytest.raises(pb.ShardEtcdTransactionFailedError) as caught:
            await apply_shards(client, changes, batch_size=2)
        assert caught.value.applied == 2
        assert len(member.requests) == 2


@pytest.mark.parametrize(
    ("method", "call", "is_retried"),
    [
        ("Stat", CALLS["Stat"][0], True),
        ("List", CALLS["List"][0], True),
        ("GetHints", CALLS["GetHints"][0], True),
        ("Apply", lambda client: apply_shards(client, [upsert(SHARD)]), False),
        ("Apply", lambda client: apply_shards(client, [upsert(SHARD, revision=-1)]), True),
        ("Unassign", CALLS["Unassign"][0], False),
        ("Unassign", lambda client: unassign_shards(client, [SHARD], dry_run=True), True),
    ],
)
async def test_only_calls_that_may_be_repeated_are_retried(
    method: str, call: Call, *, is_retried: bool
):
    async with StubMember() as member, connect_shards(member.endpoint, retry=POLICY) as client:
        member.answer(method, UNAVAILABLE, response(CALLS[method][1]))
        if is_retried:
            await call(client)
            assert len(member.requests) == 2
            return
        with pytest.raises(pb.TransportError, match=f"consumer {member.endpoint}: scripted"):
            await call(client)
        assert len(member.requests) == 1


async def test_a_stat_that_waits_outlives_tokens():
    request = pc.StatRequest(shard=SHARD, read_through={"a/journal": 5})
    async with StubMember() as member, connect_shards(member.endpoint, retry=POLICY) as client:
        done = response(pc.StatResponse, read_through={"a/journal": 7})
        member.answer("Stat", EXPIRED, EXPIRED, EXPIRED, done)
        assert await stat_shard(client, request) == done
        assert member.requests == [request] * 4
        # A Stat that doesn't wait has no reason to take as long as its token lives.
        member.answer("Stat", EXPIRED)
        with pytest.raises(pb.TransportError, match="DEADLINE_EXCEEDED"):
            await stat_shard(client, SHARD)


async def test_the_callers_deadline_ends_a_stat_that_waits():
    request = pc.StatRequest(shard=SHARD, read_through={"a/journal": 5})
    cancelled = asyncio.Event()

    async def wait(_: Any, __: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with StubMember() as member, connect_shards(member.endpoint, timeout=60) as client:
        member.answers["Stat"] = wait
        while not member.requests:  # A busy machine may not even have connected by then.
            with pytest.raises(
                pb.OperationTimeoutError, match=r"^stat timed out .*\(consumer http"
            ):
                await stat_shard(client, request, timeout=0.05)
        await cancelled.wait()
        member.answer("Stat", response(pc.StatResponse))
        await stat_shard(client, request, timeout=math.inf)


async def test_a_time_out_of_a_change_says_that_it_may_have_been_made():
    async def wait(_: Any, __: Any) -> Any:
        await asyncio.Event().wait()

    async with StubMember() as member, connect_shards(member.endpoint, timeout=0.05) as client:
        member.answers["Apply"] = member.answers["Unassign"] = wait
        with pytest.raises(pb.OperationTimeoutError, match="changes may have been") as applying:
            await apply_shards(client, [upsert(SHARD)])
        with pytest.raises(pb.OperationTimeoutError, match="assignments may") as unassigning:
            await unassign_shards(client, [SHARD])
        assert applying.value.outcome_unknown
        assert unassigning.value.outcome_unknown


async def test_long_listings_are_checked_in_turns():
    shards = [listed(f"shard-{number:04}", header().route) for number in range(2000)]
    async with StubMember() as member, connect_shards(member.endpoint, strict=True) as client:
        member.answer("List", response(pc.ListResponse, shards=shards))
        with longest_step() as longest:
            found = await list_shards(client)
        assert len(found.shards) == 2000
        shards[1234].mod_revision = 0
        member.answer("List", response(pc.ListResponse, shards=shards))
        with pytest.raises(pb.ValidationError, match=r"^Shards\[1234\]: invalid ModRevision"):
            await list_shards(client)
    assert longest.calls < SLICE_CALLS, longest.step


async def test_stats_go_to_members_of_the_shard():
    async with (
        StubMember() as default,
        StubMember() as other,
        connect_shards(default.endpoint) as client,
    ):
        at_other = pc.StatResponse(header=other.header())
        for member in (default, other):
            member.answer("Stat", at_other)
        default.answer(
            "List", response(pc.ListResponse, shards=[listed(SHARD, other.header().route)])
        )
        await list_shards(client)
        assert client.router.route(SHARD) == other.header().route
        # The default member proxies until the connection stands.
        while not other.requests:
            await stat_shard(client, SHARD)
        assert client.router.route("other/shard").members == []
        # A shard that is gone has no route any more.
        other.answer("Stat", response(pc.StatResponse, status=pc.Status.SHARD_NOT_FOUND))
        with pytest.raises(pb.ShardNotFoundError) as caught:
            await stat_shard(client, SHARD)
        assert caught.value.shard == SHARD
        assert not client.router.route(SHARD).members


async def test_claims():
    auth = pb.KeyedAuth("c2VjcmV0", clock=lambda: 0.0)
    async with StubMember(auth) as member, connect_shards(member.endpoint, auth=auth) as client:
        for method, (_, kind) in CALLS.items():
            member.answer(method, response(kind))
        for call, _ in CALLS.values():
            await call(client)
        capabilities = [claims.capability for claims in member.claims]
        assert capabilities == [
            pb.Capability.READ,
            pb.Capability.LIST,
            pb.Capability.APPLY,
            pb.Capability.READ,
            pb.Capability.APPLY,
        ]
        selectors = [pb.format_label_selector(claims.selector) for claims in member.claims]
        assert selectors == [f"id={SHARD}", "", "", f"id={SHARD}", f"id={SHARD}"]
        assert {claims.expires_at for claims in member.claims} == {60}
        with pb.with_claims(pb.Claims(pb.Capability.ALL)):
            await stat_shard(client, SHARD)
        assert member.claims[-1].capability == pb.Capability.ALL


def test_the_first_hints_that_are_set():
    hints = pc.GetHintsResponse.ResponseHints
    unset, one, two = hints(), hints(hints=FSMHints(log="one")), hints(hints=FSMHints(log="two"))
    for primary, backups, log in (
        (one, [two], "one"),
        (unset, [unset, two, one], "two"),
        (unset, [unset], "a/log"),
    ):
        answer = pc.GetHintsResponse(primary_hints=primary, backup_hints=backups)
        assert pick_first_hints(answer, "a/log") == FSMHints(log=log)
