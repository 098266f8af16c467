"""Commands at servers that are newer than this library: enum values without a name here."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.console.shard_views import shard_row
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import journal_spec
from gazette_aio.testing.stub_broker import StubBroker


@pytest.fixture
async def broker() -> Any:
    async with StubBroker() as broker:
        broker.list_handler = lambda _request: pb.ListResponse(
            header=broker.header(),
            journals=[
                pb.ListResponse.Journal(
                    spec=journal_spec("a/journal", codec=77),
                    mod_revision=5,
                    route=broker.header().route,
                )
            ],
        )
        yield broker


def listed_shard() -> pc.ListResponse.Shard:
    member = pb.ProcessSpec.ID(zone="a", suffix="member")
    return pc.ListResponse.Shard(
        spec=pc.ShardSpec(id="shard-one", sources=[pc.ShardSpec.Source(journal="a/journal")]),
        mod_revision=5,
        route=pb.Route(members=[member], endpoints=["http://localhost:1"], primary=0),
        status=[pc.ReplicaStatus(code=555)],  # type: ignore[arg-type]
    )


async def test_codecs(cli: Any, broker: Any) -> None:
    fragment = pb.Fragment(journal="a/journal", end=10, compression_codec=77)  # type: ignore[arg-type]
    broker.fragments_handler = lambda _request: pb.FragmentsResponse(
        header=broker.header(), fragments=[pb.FragmentsResponse._Fragment(spec=fragment)]
    )
    env = {"BROKER_ADDRESS": broker.endpoint}
    done = await cli("journals", "fragments", "-l", "", env=env)
    assert (done.code, done.err) == (0, "")
    assert done.text.split()[-1] == "UNKNOWN(77)"
    for form in ("yaml", "json", "proto"):
        listed = await cli("journals", "list", "-o", form, env=env)
        assert (listed.code, listed.err) == (0, "")
        assert "77" in listed.text


async def test_statuses(cli: Any, broker: Any) -> None:
    async def refuse(_requests: Any) -> pb.AppendResponse:
        return pb.AppendResponse(status=88, header=broker.header())  # type: ignore[arg-type]

    broker.append_handler = refuse
    env = {"BROKER_ADDRESS": broker.endpoint}
    done = await cli("journals", "suspend", "-l", "", env=env)
    assert done.code == 1
    assert done.text == "a/journal: unknown status 88\n"
    assert done.err.endswith("the broker refused: a/journal (unknown status 88)\n")


async def test_statuses_of_shards(cli: Any) -> None:
    async def answer(_request: bytes, context: Any) -> bytes:
        header = pb.Header(
            process_id=pb.ProcessSpec.ID(zone="a", suffix="member"),
            route=pb.Route(primary=-1),
            etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=9, raft_term=1),
        )
        return pc.ListResponse(header=header, shards=[listed_shard()]).SerializeToString()

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("consumer.Shard", {"List": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        env = {"CONSUMER_ADDRESS": f"http://127.0.0.1:{port}"}
        done = await cli("shards", "list", "-p", env=env)
        as_json = await cli("shards", "list", "--json", env=env)
    finally:
        await server.stop(None)

    assert (done.code, done.err) == (0, "")
    header, row = (line.split() for line in done.text.splitlines())
    assert header == ["ID", "STATUS", "PRIMARY"]
    assert row == ["shard-one", "UNKNOWN(555)", "member:UNKNOWN(555)"]
    assert as_json.json["shards"][0]["status"][0]["code"] == 555


def test_statuses_in_the_console() -> None:
    row = shard_row(listed_shard())

    assert row["status"] == "UNKNOWN(555)"
    assert row["members"] == ["a/member UNKNOWN(555)"]
