"""What servers, specs and hooks say reaches terminals and logs without its control characters."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import yaml

import gazette_aio.protocol as pb
from benchmarks.attacks.terminals import hidden_in
from gazette_aio.cli.shell.output import print_line, print_table
from gazette_aio.logs import LogFormatter
from gazette_aio.message import new_producer_id
from gazette_aio.message.uuid import OUTSIDE_TXN, build_uuid
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import create_journals, journal_spec
from gazette_aio.testing.stub_broker import StubBroker, StubError

HOSTILE = (
    "a\x1b[2J\x9b31m\x85\x7f\r\n2026-01-01T00:00:00.000+00:00 error forged: line\u2028\u202eb\u2066"
)
ESCAPED = r"a\x1b[2J\x9b31m\x85\x7f\r\n2026-01-01T00:00:00.000+00:00 error forged: line\u2028\u202eb\u2066"


@pytest.fixture
async def broker() -> AsyncIterator[StubBroker]:
    async with StubBroker(suffix=f"m{HOSTILE}") as broker:
        journal = journal_spec("a/journal")
        journal.labels.labels.add(name="text", value=HOSTILE)
        broker.list_handler = lambda _request: pb.ListResponse(
            header=broker.header(),
            journals=[
                pb.ListResponse.Journal(spec=journal, mod_revision=5, route=broker.header().route)
            ],
        )
        yield broker


@contextlib.asynccontextmanager
async def member(answer: Any) -> AsyncIterator[dict[str, str]]:
    """Run a member of a consumer that answers List, and return the variables of a command."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("consumer.Shard", {"List": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield {"CONSUMER_ADDRESS": f"http://127.0.0.1:{port}"}
    finally:
        await server.stop(None)


FORMS = ("table", "yaml", "json", "proto")


@pytest.mark.parametrize("form", FORMS)
async def test_labels_and_members(cli: Any, broker: StubBroker, form: str) -> None:
    columns = ("-L", "text", "-p") if form == "table" else ()
    env = {"BROKER_ADDRESS": broker.endpoint}

    done = await cli("journals", "list", "-o", form, *columns, env=env)

    assert (done.code, done.err) == (0, "")
    assert hidden_in(done.text) == set()
    if form == "json":
        assert done.json["journals"][0]["spec"]["labels"]["labels"][0]["value"] == HOSTILE
    elif form == "yaml":
        assert {"name": "text", "value": HOSTILE} in yaml.safe_load(done.text)["labels"]
    elif form == "table":
        assert len(done.text.splitlines()) == 2
        assert done.text.count(ESCAPED) == 2


@pytest.mark.parametrize("form", FORMS)
async def test_shards(cli: Any, form: str) -> None:
    async def answer(_request: bytes, _context: Any) -> bytes:
        header = pb.Header(
            process_id=pb.ProcessSpec.ID(zone="a", suffix="member"),
            route=pb.Route(primary=-1),
            etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=9, raft_term=1),
        )
        shard = pc.ListResponse.Shard(
            spec=pc.ShardSpec(id=HOSTILE, sources=[pc.ShardSpec.Source(journal="a/journal")]),
            mod_revision=5,
            route=pb.Route(primary=-1),
        )
        return pc.ListResponse(header=header, shards=[shard]).SerializeToString()

    async with member(answer) as env:
        done = await cli("shards", "list", "-p", "-o", form, env=env)

    assert (done.code, done.err) == (0, "")
    assert "forged" in done.text
    assert hidden_in(done.text) == set()


async def test_details_of_errors(cli: Any, broker: StubBroker) -> None:
    def refuse(_request: Any) -> Any:
        raise StubError(grpc.StatusCode.PERMISSION_DENIED, HOSTILE)

    broker.list_handler = refuse
    broker.fragments_handler = refuse
    env = {"BROKER_ADDRESS": broker.endpoint}
    commands = (
        ("journals", "list"),
        ("journals", "list", "--log.level=debug", "--log.format=text"),
        ("doctor",),
        ("doctor", "--json"),
    )
    for command in commands:
        done = await cli(*command, env=env)
        assert done.code == 1
        assert "forged" in done.text + done.err
        assert hidden_in(done.text + done.err) == set()
        assert not any(line.startswith("2026-01-01") for line in done.err.splitlines())


async def test_details_of_errors_of_members(cli: Any) -> None:
    async def refuse(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, HOSTILE)
        raise AssertionError

    async with member(refuse) as env:
        done = await cli("shards", "list", env=env)

    assert done.code == 1
    assert "forged" in done.err
    assert len(done.err.splitlines()) == 1
    assert hidden_in(done.err) == set()


async def test_committed_messages_that_are_indented(broker_cli: Any, gazette_client: Any) -> None:
    journal, labels = "test/lines", {"content-type": "application/x-ndjson"}
    await create_journals(gazette_client, journal_spec(journal, labels=labels))
    uuid = str(build_uuid(new_producer_id(), 1 << 4, OUTSIDE_TXN))
    message = {"_meta": {"uuid": uuid}, "text": HOSTILE}
    line = json.dumps(message, ensure_ascii=False) + "\n"
    await gazette_client.append(journal, line.encode())

    pretty = await broker_cli("journals", "read", journal, "--committed", "--pretty")
    placed = await broker_cli("journals", "read", journal, "--committed", "--json")

    for done in (pretty, placed):
        assert "forged" in done.text
        assert hidden_in(done.text + done.err) == set()
    assert placed.json["message"] == message
    assert pretty.json == message


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(HOSTILE)
    print_table((HOSTILE,), [(HOSTILE,)])

    assert capsys.readouterr().out == f"{ESCAPED}\n" * 3


def record_of(message: str, error: Exception | None = None) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise error
        except Exception as raised:  # noqa: BLE001
            info = (type(raised), raised, raised.__traceback__)
    return logging.LogRecord("one", logging.ERROR, "", 0, message, None, info)


@pytest.mark.parametrize("form", ["text", "color"])
def test_no_message_forges_a_line_of_the_log(form: Any) -> None:
    record = record_of(f"shard failed: {HOSTILE}", ValueError(HOSTILE))
    record.shard = HOSTILE

    first, *rest = LogFormatter(form).format(record).split("\n")

    assert first.endswith(f" one: shard failed: {ESCAPED} shard={ESCAPED}")
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in rest)
    assert hidden_in("".join([first[25:].replace("\x1b[31merror\x1b[0m", ""), *rest])) == set()


def test_objects_of_the_log_are_ascii() -> None:
    line = LogFormatter("json").format(record_of(HOSTILE))

    assert json.loads(line)["msg"] == HOSTILE
    assert hidden_in(line) == set()
