"""The Shard service, called through its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient
from gazette_aio.consumer.api import (
    apply_shards,
    fetch_hints,
    list_shards,
    stat_shard,
    unassign_shards,
)
from gazette_aio.consumer.handlers import (
    ShardAPI,
    shard_apply,
    shard_get_hints,
    shard_list,
    shard_service,
    shard_unassign,
)
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.protocol.service import SHARD_STAT
from gazette_aio.protocol.status_errors import (
    ShardEtcdTransactionFailedError,
    ShardNotFoundError,
)
from gazette_aio.serving.calls import CallCounts
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.rpc_error import RpcError
from gazette_aio.serving.server import GrpcServer
from tests.consumer.handlers.served import KEYED, ServedGroup, claims
from tests.consumer.shards.group import KEYS, REMOTE, A, shard_spec
from tests.loop_steps import SLICE_CALLS, longest_step


@pytest.fixture
async def member(client: JournalClient) -> AsyncIterator[ServedGroup]:
    """A member whose transactions are idle."""
    async with ServedGroup(client) as member:
        yield member


READ, LIST, APPLY = pb.Capability.READ, pb.Capability.LIST, pb.Capability.APPLY
FAILED = pc.ReplicaStatus(code=pc.ReplicaStatus.FAILED, errors=["an error"]).SerializeToString()
PRIMARY = pc.ReplicaStatus(code=pc.ReplicaStatus.PRIMARY).SerializeToString()
STANDBY = pc.ReplicaStatus(code=pc.ReplicaStatus.STANDBY).SerializeToString()


def upsert(spec, revision=0, **fields):
    return pc.ApplyRequest.Change(upsert=spec, expect_mod_revision=revision, **fields)


def delete(shard, revision):
    return pc.ApplyRequest.Change(delete=shard, expect_mod_revision=revision)


def hints(number, shard=A, log=None):
    segment = {
        "author": number,
        "first_seq_no": 1,
        "first_offset": 0,
        "first_checksum": 9,
        "last_seq_no": 1,
        "last_offset": 40,
    }
    return FSMHints(
        log=log or f"recovery/logs/{shard}", live_nodes=[{"fnode": 1, "segments": [segment]}]
    )


def logged(shard=A, backups=2):
    return shard_spec(
        shard, recovery_log_prefix="recovery/logs", hint_prefix="/hints", hint_backups=backups
    )


async def test_stat_of_a_local_shard(member):
    await member.create(shard_spec())
    await member.assign()
    await member.status("PRIMARY")
    replica = member.shards.replicas[A]
    request = pc.StatRequest(shard=A, read_through={"source/A": 0, "source/B": 12})
    waiting = asyncio.ensure_future(stat_shard(member.client, request))
    replica.progress_cell.update({"source/B": 12}, {"echo/out": 34})
    response = await waiting
    assert response.status == pc.Status.OK
    assert dict(response.read_through) == {"source/A": 0, "source/B": 12}
    assert dict(response.publish_at) == {"echo/out": 34}
    assert response.header.process_id == pb.ProcessSpec.ID(zone="local", suffix="consumer")
    assert list(response.header.route.endpoints) == [member.endpoint]


async def test_shards_that_the_caller_does_not_see(member):
    with pytest.raises(ShardNotFoundError):
        await stat_shard(member.client, "missing/shard")
    await member.create(shard_spec())
    await member.assign()
    with pb.with_claims(claims(READ, "id=shard-B")):
        response = await member.client.rpc.stat(pc.StatRequest(shard=A))
        hints_response = await member.client.rpc.get_hints(pc.GetHintsRequest(shard=A))
    assert response.status == hints_response.status == pc.Status.SHARD_NOT_FOUND
    assert not response.header.route.endpoints
    with pb.with_claims(claims(LIST, "id=shard-B")):
        assert not (await list_shards(member.client)).shards


BAD_LABELS = pb.LabelSelector(include={"labels": [{"name": "a bad label"}]})


@pytest.mark.parametrize(
    ("method", "request_", "text"),
    [
        ("stat", pc.StatRequest(shard="a bad id"), "Shard: not a valid token (a bad id)"),
        ("list", pc.ListRequest(selector=BAD_LABELS), "not a valid token (a bad label)"),
        ("get_hints", pc.GetHintsRequest(shard="a#bad#id"), "not a valid token (a#bad#id)"),
        ("apply", pc.ApplyRequest(changes=[delete(A, 0)]), "Changes[0]: invalid ExpectModRevision"),
        ("unassign", pc.UnassignRequest(shards=[A, ""]), "Shards[1]: invalid length (0; expected"),
    ],
)
async def test_a_request_is_verified_before_it_is_validated(member, method, request_, text):
    """An invalid one fails by code UNKNOWN, as other implementations do."""
    call = getattr(member.client.dispatcher.default().methods, method)
    for now, code in ((2e9, "UNAUTHENTICATED"), (time.time(), "UNKNOWN")):
        token = KEYED.sign(pb.Claims(pb.Capability.ALL), timedelta(minutes=1), now)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request_, metadata=[("authorization", f"Bearer {token}")])
        assert caught.value.code().name == code
    assert text in caught.value.details()


async def test_a_large_group_is_listed_at_once(member):
    """By more than the 4 MiB that gRPC takes by default."""
    texts = (f"label-{number:03}" for number in range(100))
    labels = pb.label_set(*(part for text in texts for part in (text, text * 100)))
    specs = [shard_spec(f"shard-{number:02}", labels=labels) for number in range(60)]
    for begin in range(0, len(specs), 10):
        await member.create(*specs[begin : begin + 10])
    listing = await list_shards(member.client)
    assert listing.ByteSize() > 5 << 20
    assert [each.spec for each in listing.shards] == specs


async def test_a_stat_is_forwarded_with_the_claims_of_its_caller(client):
    async with ServedGroup(client) as primary:
        async with ServedGroup(client, store=primary.store, local=REMOTE, remote=None) as other:
            await primary.create(shard_spec())
            await other.key_space.wait_for_revision(await primary.assign())
            await primary.status("PRIMARY")
            seen = []
            answer = primary.api.stat

            async def stat(caller, service, request):
                seen.append((caller, request))
                return await answer(caller, service, request)

            primary.api.stat = stat
            response = await stat_shard(other.client, A)
            assert response.status == pc.Status.OK
            assert response.header.process_id.zone == "local"
            caller, request = seen[0]
            assert request.header.process_id.zone == "local"
            assert pb.format_label_selector(caller.selector) == "id=shard-A"
            # It's proxied once: a member that isn't the primary says so.
            header = other.resolver.unrouted_header()
            response = await other.client.rpc.stat(pc.StatRequest(shard=A, header=header))
            assert response.status == pc.Status.NOT_SHARD_PRIMARY
            # The failure of the other member is that of the RPC.
            header.etcd.cluster_id = 1337
            with pytest.raises(pb.TransportError, match="ClusterId doesn't match") as caught:
                await other.client.rpc.stat(pc.StatRequest(shard=A, header=header))
            assert caught.value.code == "UNKNOWN"
            primary.shards.stop()
            with pytest.raises(pb.TransportError) as caught:
                await other.client.rpc.stat(pc.StatRequest(shard=A))
            assert caught.value.code == "UNKNOWN"
            assert caught.value.details == "resolver has stopped serving local shards"


async def test_a_stat_ends_with_its_token(client):
    now = [0.0]
    auth = pb.KeyedAuth("c2VjcmV0", clock=lambda: now[0])
    counts = CallCounts()
    drain = Drain()

    async def stat(caller, service, request):
        await asyncio.Event().wait()

    member: Any = SimpleNamespace(shard_api=ShardAPI(stat=stat))
    service = shard_service(member, verifier=auth, counts=counts, clock=lambda: 59.99)
    server = GrpcServer([service.handlers(drain)], drain)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        token = auth.sign(pb.Claims(READ), timedelta(minutes=1), 0.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(SHARD_STAT)(
                pc.StatRequest(shard=A).SerializeToString(),
                metadata=[("authorization", f"Bearer {token}")],
            )
    await server.stop(0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_time_out_of_a_users_function_is_not_that_of_the_token(member):
    async def stat(caller, service, request):
        raise TimeoutError("the database is slow")

    member.api.stat = stat
    with pytest.raises(pb.TransportError, match="TimeoutError") as caught:
        await member.client.rpc.stat(pc.StatRequest(shard=A))
    assert caught.value.code == "UNKNOWN"


async def test_a_deletion_of_nothing_waits_for_no_change_of_the_group(member):
    await member.store.transact([], [Put("/elsewhere", b"")])
    for selector in ("", f"id={A}"):
        with pb.with_claims(claims(APPLY, selector)):
            request = pc.ApplyRequest(changes=[delete(A, -1)])
            assert (await member.client.rpc.apply(request)).status == pc.Status.OK
    await apply_shards(member.client, [])


async def test_a_change_is_seen_by_who_made_it(member):
    spec = logged()
    response = await apply_shards(member.client, [upsert(spec, primary_hints=hints(111))])
    assert response.header.etcd.revision == member.key_space.header.revision
    assert (await fetch_hints(member.client, A)).primary_hints.hints == hints(111)
    with pytest.raises(ShardEtcdTransactionFailedError) as caught:
        await apply_shards(member.client, [upsert(spec)])
    assert caught.value.header.etcd.revision == response.header.etcd.revision
    with pytest.raises(pb.TransportError, match="duplicate key given in txn request"):
        await apply_shards(member.client, [upsert(shard_spec("shard-B"))] * 2)


async def test_changes_need_authorization(member):
    staging = shard_spec(A, labels=pb.label_set("env", "staging"))
    production = shard_spec(A, labels=pb.label_set("env", "production"))

    async def apply(change, selector):
        with pb.with_claims(claims(APPLY, selector)):
            return await member.client.rpc.apply(pc.ApplyRequest(changes=[change]))

    for change, selector in (
        (upsert(staging), "id=shard-B"),
        (upsert(production), "id=shard-A,env=staging"),
        (delete(A, -1), "id=shard-B"),
    ):
        with pytest.raises(pb.TransportError, match="not authorized to shard-A") as caught:
            await apply(change, selector)
        assert caught.value.code == "UNAUTHENTICATED"
    assert (await apply(upsert(staging), "id=shard-A,env=staging")).status == pc.Status.OK
    assert (await apply(delete(A, -1), "id=shard-A")).status == pc.Status.OK
    with pb.with_claims(claims(APPLY, "id=shard-B")):
        with pytest.raises(pb.TransportError, match="not authorized to shard-A"):
            await member.client.rpc.unassign(pc.UnassignRequest(shards=[A]))


@pytest.mark.parametrize("selector", ["env=staging", "env!=production"])
async def test_a_token_changes_no_shard_which_it_does_not_match(member, selector):
    staging, production = pb.label_set("env", "staging"), pb.label_set("env", "production")
    theirs, ours = shard_spec(A, labels=production), shard_spec("shard-B", labels=staging)
    created = await apply_shards(member.client, [upsert(theirs), upsert(ours)])
    revision = created.header.etcd.revision
    await member.assign()
    await member.assign("shard-B")

    async def apply(*changes):
        with pb.with_claims(claims(APPLY, selector)):
            return await member.client.rpc.apply(pc.ApplyRequest(changes=changes))

    async def unassign(*shards):
        with pb.with_claims(claims(APPLY, selector)):
            return await member.client.rpc.unassign(pc.UnassignRequest(shards=shards))

    relabelled = shard_spec(A, labels=staging)
    for changes in (
        [upsert(relabelled, -1)],
        [upsert(relabelled, revision)],
        [delete(A, -1)],
        [delete(A, revision)],
        [delete("shard-B", -1), delete(A, -1)],
    ):
        with pytest.raises(pb.TransportError, match="not authorized to shard-A") as caught:
            await apply(*changes)
        assert caught.value.code == "UNAUTHENTICATED"
    assert sorted(member.group.items) == ["shard-A", "shard-B"]
    assert member.group.items[A].raw.mod_revision == revision

    assert (await unassign("shard-B")).shards == ["shard-B"]
    assert len(member.group.assignments(A)) == 1
    assert (await apply(upsert(ours, 1))).status == pc.Status.ETCD_TRANSACTION_FAILED
    assert (await apply(upsert(ours, revision))).status == pc.Status.OK
    assert (await apply(delete("shard-B", -1))).status == pc.Status.OK
    assert sorted(member.group.items) == ["shard-A"]


@pytest.mark.parametrize("selector", ["env=staging", "env!=production", "id=shard-B"])
async def test_an_unassign_does_not_tell_a_hidden_shard_from_a_missing_one(member, selector):
    hidden, missing = A, "shard-M"
    staging, production = pb.label_set("env", "staging"), pb.label_set("env", "production")
    await member.create(shard_spec("shard-B", labels=staging))
    await member.create(shard_spec(hidden, labels=production))
    await member.assign(hidden)

    async def unassign(shard):
        await member.assign("shard-B")
        await member.status("PRIMARY", "shard-B")  # Later, its writer changes nothing.
        with pb.with_claims(claims(APPLY, selector)):
            try:
                request = pc.UnassignRequest(shards=["shard-B", shard])
                response = await member.client.rpc.unassign(request)
            except pb.TransportError as error:
                return error.code, error.details.replace(shard, "…")
            return response.status, list(response.shards)

    assert await unassign(hidden) == await unassign(missing)
    assert len(member.group.assignments(hidden)) == 1


async def test_labels_that_this_member_has_not_seen_confine(client):
    async with ServedGroup(client) as member:
        staging, production = pb.label_set("env", "staging"), pb.label_set("env", "production")
        await member.create(shard_spec(A, labels=staging))
        key = KEYS.item(A)
        transact = member.store.transact

        async def relabel(value):
            member.store.transact = transact
            await member.write(Put(key, value), wait=False)

        async def overtaken(compares, operations, otherwise=()):
            result = await transact(compares, operations, otherwise)
            await relabel(shard_spec(A, labels=production).SerializeToString())
            return result

        change = upsert(shard_spec(A, labels=staging, disable=True), -1)

        async def apply():
            with pb.with_claims(claims(APPLY, "env=staging")):
                return await member.client.rpc.apply(pc.ApplyRequest(changes=[change]))

        # Another member re-labels the shard between check and change.
        member.store.transact = overtaken
        assert (await apply()).status == pc.Status.ETCD_TRANSACTION_FAILED
        with pytest.raises(pb.TransportError, match="not authorized to shard-A"):
            await apply()
        await relabel(b"\xff")
        with pytest.raises(pb.TransportError, match="not authorized to shard-A"):
            await apply()


async def test_an_unassign_is_confined_by_labels_that_this_member_has_not_seen(member, monkeypatch):
    await member.create(shard_spec(A, labels=pb.label_set("env", "staging")))
    await member.assign(member=REMOTE, value=PRIMARY)
    transact = member.store.transact
    relabelled = shard_spec(A, labels=pb.label_set("env", "production"))

    async def overtaken(compares, operations, otherwise=()):
        monkeypatch.undo()
        await transact([], [Put(KEYS.item(A), relabelled.SerializeToString())])
        return await transact(compares, operations, otherwise)

    async def unassign():
        with pb.with_claims(claims(APPLY, "env=staging")):
            return await member.client.rpc.unassign(pc.UnassignRequest(shards=[A]))

    monkeypatch.setattr(member.store, "transact", overtaken)
    assert (await unassign()).status == pc.Status.ETCD_TRANSACTION_FAILED
    assert len(member.group.assignments(A)) == 1


async def test_long_requests_keep_the_event_loop_from_nobody(member):
    await member.create(shard_spec(A))
    everything = pb.Claims(capability=pb.Capability.ALL)
    labels = pb.LabelSet(labels=[pb.Label(name=f"name/{n:06}", value="x") for n in range(15_000)])
    names = [f"shard/{number:06}" for number in range(15_000)]
    prefixes = {"recovery_log_prefix": "recovery/logs", "hint_prefix": f"{KEYS.root}/items"}
    spec = shard_spec("shard-B", labels=labels, **prefixes)
    with longest_step() as longest:
        await asyncio.sleep(0)
        listing = pc.ListRequest(selector=pb.LabelSelector(exclude=labels))
        assert len((await shard_list(everything, member.service, listing)).shards) == 1
        unassign = pc.UnassignRequest(shards=names)
        assert not (await shard_unassign(everything, member.service, unassign)).shards
        with pytest.raises(RpcError, match="HintPrefix"):
            await shard_apply(everything, member.service, pc.ApplyRequest(changes=[upsert(spec)]))
        await asyncio.sleep(0)
    assert longest.calls < 2 * SLICE_CALLS, longest.step


async def test_hints_are_no_keys_of_the_group(member):
    prefixes = {"recovery_log_prefix": "recovery/logs", "hint_prefix": f"{KEYS.root}/items"}
    spec = shard_spec("shard-B", hint_backups=1, **prefixes)
    with pytest.raises(pb.TransportError, match="HintPrefix of shard-B is among keys") as caught:
        await apply_shards(member.client, [upsert(spec, primary_hints=hints(1, "shard-B"))])
    assert caught.value.code == "INVALID_ARGUMENT"
    assert not member.group.items


async def test_hints_of_a_spec_by_others(member):
    spec = logged()
    spec.hint_backups = 2**31 - 1
    await member.create(spec)
    assert len((await fetch_hints(member.client, A)).backup_hints) == 127
    with pytest.raises(pb.ValidationError, match="invalid HintBackups"):
        await apply_shards(member.client, [upsert(spec)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"garbage", r"hints\.Unmarshal: "),
        (b'{"log":5}', r"json\.Unmarshal\(hints\): "),
        (
            b'{"log":"recovery/logs/shard-A","live_nodes":[{"fnode":1,"segments":[]}]}',
            "validating FSMHints: expected Fnode to match Segment FirstSeqNo: ",
        ),
        (encode_hints(hints(5, log="other/log")), "hints.Log other/log != ShardSpec.RecoveryLog"),
    ],
)
async def test_hints_that_cannot_be_used_cost_no_others(member, value, text):
    await member.create(logged())
    await member.write(Put("/hints/shard-A.primary", value), wait=False)
    with pytest.raises(pb.TransportError, match=f"^UNKNOWN: {text}") as caught:
        await fetch_hints(member.client, A)
    assert caught.value.code == "UNKNOWN"
    await member.write(Put("/hints/shard-A.backup.1", encode_hints(hints(5))), wait=False)
    response = await fetch_hints(member.client, A)
    assert not response.primary_hints.HasField("hints")
    assert response.backup_hints[1].hints == hints(5)


async def test_unassigning_many_takes_several_transactions(member):
    shards = [f"shard-{number:03}" for number in range(150)]
    await member.write(
        *(Put(KEYS.item(each), shard_spec(each).SerializeToString()) for each in shards[:75])
    )
    await member.write(
        *(Put(KEYS.item(each), shard_spec(each).SerializeToString()) for each in shards[75:])
    )
    for first in (0, 75):
        await member.write(
            *(
                Put(KEYS.assignment(each, *REMOTE, 0), PRIMARY)
                for each in shards[first : first + 75]
            )
        )
    dry_run = await unassign_shards(member.client, shards, dry_run=True)
    assert list(dry_run.shards) == shards
    with pb.with_claims(claims(APPLY, "env!=production")):
        response = await member.client.rpc.unassign(pc.UnassignRequest(shards=shards))
    assert list(response.shards) == shards
    assert not any(member.group.assignments(each) for each in shards)


async def test_assignments_that_changed_meanwhile(member, monkeypatch):
    await member.create(shard_spec())
    await member.assign(member=REMOTE, value=PRIMARY)
    transact = member.store.transact

    async def racing(compares, operations, otherwise=()):
        monkeypatch.undo()
        await transact([], [Put(KEYS.assignment(A, *REMOTE, 0), STANDBY)])
        return await transact(compares, operations, otherwise)

    monkeypatch.setattr(member.store, "transact", racing)
    with pytest.raises(ShardEtcdTransactionFailedError) as caught:
        await unassign_shards(member.client, [A])
    assert list(caught.value.response.shards) == [A]


async def test_users_wrap_handlers(member):
    async def get_hints(caller, service, request):
        response = await shard_get_hints(caller, service, request)
        response.extension = b"of a user"
        return response

    member.api.get_hints = get_hints
    await member.create(logged())
    assert (await fetch_hints(member.client, A)).extension == b"of a user"
