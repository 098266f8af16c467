"""Texts of errors, which name what they're about."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy, connect, get_journal
from gazette_aio.message import Publisher, ReadUncommittedIter, json_adapter
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import StubBroker
from tests.broker.journal.faulty_files import FaultyFiles
from tests.client.support import JOURNAL, header, refusal, spec


async def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        expected = (
            f"JOURNAL_NOT_FOUND (journal no/such at {broker.endpoint}): "
            "no such journal, or the token doesn't cover it"
        )
        for call in (
            client.append("no/such", b"data"),
            client.list_fragments("no/such"),
            client.read("no/such").read(),
        ):
            with pytest.raises(pb.JournalNotFoundError) as raised:
                await call
            assert str(raised.value) == expected
            assert raised.value.endpoint == broker.endpoint
            assert str(pickle.loads(pickle.dumps(raised.value))) == expected
        with pytest.raises(pb.JournalNotFoundError) as raised:
            await get_journal(client, "no/such")
        assert str(raised.value).endswith(expected)


async def test_an_invalid_name_is_quoted(client: JournalClient) -> None:
    with pytest.raises(pb.ValidationError) as raised:
        await client.apply([pb.ApplyRequest.Change(upsert=spec("abc"))])
    text = "Changes[0].Upsert.Name: invalid length (3; expected 4 <= length <= 512)"
    assert str(raised.value) == f"{text} (of journal 'abc')"
    with pytest.raises(pb.ValidationError, match=r"Changes\[0\]\.Upsert\.Name: .*'\.\./other'"):
        await client.apply([pb.ApplyRequest.Change(upsert=spec("../other"))])


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("broker", "http://broker"),
        ("10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("ftp://broker:21", "http://localhost:8080"),
    ],
)
def test_an_address_without_a_scheme(address: str, written: str) -> None:
    with pytest.raises(pb.ValidationError, match=f"write an address such as {written}, https"):
        connect(address)


async def test_a_name_with_a_lone_surrogate_is_refused(client: JournalClient) -> None:
    name = "a/\ud800b"
    publisher = Publisher(client.appends, json_adapter())
    calls: list[Callable[[], Any]] = [
        lambda: client.append(name, b"data"),
        lambda: client.read(name),
        lambda: client.appends.start_append(name),
        lambda: client.list_fragments(name),
        lambda: get_journal(client, name),
        lambda: ReadUncommittedIter(name, json_adapter(), client=client),
        lambda: publisher.publish_committed(lambda _: (name, "application/x-ndjson"), {}),
        lambda: publisher.publish_committed_batch((name, "application/x-ndjson"), [{}]),
    ]
    for call in calls:
        with pytest.raises(pb.ValidationError, match=r"a/\\ud800b"):
            await call()


async def test_a_used_port_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pb.ConfigurationError) as raised:
            await EmbeddedBroker(tmp_path, fsync="off", port=port).start()
    text = str(raised.value)
    assert text.startswith(f"unable to listen on 127.0.0.1:{port}: address already in use")
    assert "choose another port" in text


async def test_a_used_http_port_frees_the_grpc_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http_port, port = taken.getsockname()[1], free_port()
        broker = EmbeddedBroker(tmp_path, fsync="off", port=port, http_port=http_port)
        with pytest.raises(pb.ConfigurationError, match="address already in use"):
            await broker.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
    async with broker, connect(broker.endpoint) as client:
        assert not (await client.list()).journals


async def test_a_full_disk_of_the_broker(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with (
        EmbeddedBroker(tmp_path, fsync="off", files=files) as broker,
        connect(broker.endpoint) as client,
    ):
        await client.apply([pb.ApplyRequest.Change(upsert=spec(JOURNAL))])
        await client.append(JOURNAL, b"kept")
        files.fail("pwrite", ".spool")
        with pytest.raises(pb.TransportError) as raised:
            await client.append(JOURNAL, b"lost")
        text = "the broker's disk is full (no space left on device)"
        assert raised.value.details == f"append stream: {text}"
        assert str(tmp_path) not in repr(raised.value)
        assert str(raised.value) == f"UNKNOWN: append stream: {text}"
        files.fail("pwrite", "/meta/")
        with pytest.raises(pb.TransportError, match="no space left on device") as raised:
            await client.apply([pb.ApplyRequest.Change(upsert=spec("another/journal"))])
        assert "the broker's disk is full" in str(raised.value)
        assert str(tmp_path) not in str(raised.value)
        files.heal()
        assert (await client.append(JOURNAL, b"more")).commit.begin == 4


async def test_a_full_disk_is_told_while_the_client_still_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    once = RetryPolicy(max_attempts=1)
    async with (
        EmbeddedBroker(tmp_path, fsync="off", files=files) as broker,
        connect(broker.endpoint, retry=once) as client,
    ):
        await client.apply([pb.ApplyRequest.Change(upsert=spec(JOURNAL))])
        files.fail("pwrite", ".spool")
        for _ in range(20):
            with pytest.raises(pb.TransportError) as raised:
                await client.append(JOURNAL, bytes(4 << 20))
            assert "the broker's disk is full" in str(raised.value)
            await client.append(JOURNAL, b"")  # It writes nothing, and tells nothing of the disk.
        files.heal()
        await client.append(JOURNAL, b"more")
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"appends fail, as to journal {JOURNAL}: "
            "the broker's disk is full (no space left on device)"
        ),
        f"appends succeed again, as to journal {JOURNAL}",
    ]


async def test_refusals_of_appends_and_reads_name_the_endpoint(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.append_responses.put_nowait(
        pb.AppendResponse(status=pb.Status.NOT_ALLOWED, header=header(), registers=pb.LabelSet())
    )
    with pytest.raises(pb.NotAllowedError) as raised:
        await client.append(JOURNAL, b"data")
    assert str(raised.value) == (
        f"NOT_ALLOWED (journal {JOURNAL} at {broker.endpoint}): "
        "the journal's flags, such as O_RDONLY, or its suspension don't allow this"
    )
    while broker.append_requests.qsize():
        broker.append_requests.get_nowait()
    broker.read_responses.put_nowait(refusal(pb.Status.NOT_ALLOWED))
    broker.finish()
    with pytest.raises(pb.NotAllowedError) as raised:
        await client.read(JOURNAL).read()
    assert str(raised.value) == (
        f"NOT_ALLOWED (journal {JOURNAL} at {broker.endpoint}): "
        "the journal's flags, such as O_RDONLY, or its suspension don't allow this"
    )
    await broker.read_requests.get()
