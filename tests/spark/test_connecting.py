"""The clients of connections."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.spark import bridge, connecting
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.options import BrokerAccess
from gazette_aio.testing import create_journals, journal_spec, no_leaks
from tests.waiting import eventually

NOBODY = "http://localhost:1"


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield
        await bridge.close_clients()


async def test_one_client_of_a_connection(gazette_broker: EmbeddedBroker) -> None:
    connection = BrokerAccess(brokers=(gazette_broker.endpoint,))
    client = await spark_client(connection)
    assert await spark_client(BrokerAccess(brokers=(gazette_broker.endpoint,))) is client
    assert client.endpoint == gazette_broker.endpoint
    await client.list()


async def test_a_single_broker_is_not_waited_for() -> None:
    client = await spark_client(BrokerAccess(brokers=(NOBODY,)))
    assert client.status().connection == "idle"


async def test_a_file_root_which_is_not_mounted_is_done_without(
    gazette_broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    brokers, root = (gazette_broker.endpoint,), tmp_path / "mount"
    with_root = BrokerAccess(brokers=brokers, file_root=str(root))
    without = await spark_client(BrokerAccess(brokers=brokers))
    for _ in range(2):
        assert await spark_client(with_root) is without
    assert [str(root) in record.message for record in caplog.records] == [True]
    root.mkdir()
    assert await spark_client(with_root) is not without


async def test_the_first_broker_which_answers(
    gazette_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes over once it's gone."""
    monkeypatch.setattr(connecting, "HEAD_START", 0.01)
    async with EmbeddedBroker(fsync="off", http_port=None) as second:
        brokers = (NOBODY, second.endpoint, gazette_broker.endpoint)
        connection = BrokerAccess(brokers=brokers)
        client = await spark_client(connection)
        assert client.endpoint in brokers[1:]
        await client.list()
        # Whose client is connected is taken at once.
        assert (await spark_client(connection)).status().connection == "ready"
        await (await spark_client(BrokerAccess(brokers=(second.endpoint,)))).list()
        ordered = BrokerAccess(brokers=(second.endpoint, gazette_broker.endpoint))
        client = await spark_client(ordered)
        assert client.endpoint == second.endpoint
    await eventually(lambda: client.status().connection != "ready")
    assert (await spark_client(ordered)).endpoint == gazette_broker.endpoint


async def test_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "HEAD_START", 0.0)
    real = connecting.connect

    def quick(address: str, **given: Any) -> JournalClient:
        return real(address, connect_timeout=0.01, **given)

    monkeypatch.setattr(connecting, "connect", quick)
    connection = BrokerAccess(brokers=(NOBODY, "http://localhost:2"))
    with pytest.raises(pb.TransportError, match=r"no broker answers: .*:[12] .*; .*:[12] ") as info:
        await spark_client(connection)
    assert info.value.retryable


KEY = "c2VjcmV0"
MODULE = "token_provider_of_a_test"
locked = pytest.mark.gazette_broker(auth_keys=KEY)


@pytest.fixture
async def token() -> str:
    """A token which lets journals be listed."""
    claims = pb.Claims(capability=pb.Capability.LIST)
    metadata = await pb.KeyedAuth(KEY).authorize(claims, timedelta(minutes=1))
    ((_, value),) = metadata
    return value.removeprefix("Bearer ")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, token: str) -> ModuleType:
    """A module whose functions return tokens, and the threads which called them."""
    module = ModuleType(MODULE)
    threads: list[int] = []

    def plain() -> str:
        threads.append(threading.get_ident())
        return token

    async def asynchronous() -> str:
        threads.append(threading.get_ident())
        return token

    vars(module).update(
        plain=plain, asynchronous=asynchronous, number=lambda: 5, text="text", threads=threads
    )
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@locked
@pytest.mark.parametrize("name", ["plain", "asynchronous"])
async def test_tokens_of_a_provider(
    provider: ModuleType, gazette_broker: EmbeddedBroker, name: str
) -> None:
    """A plain function may wait for a server, and so isn't called in the loop's thread."""
    connection = BrokerAccess(brokers=(gazette_broker.endpoint,), token_provider=f"{MODULE}:{name}")
    for _ in range(2):
        await (await spark_client(connection)).list()
    here = threading.get_ident()
    assert [thread == here for thread in provider.threads] == [name == "asynchronous"] * 2


@locked
async def test_a_token(gazette_broker: EmbeddedBroker, token: str) -> None:
    connection = BrokerAccess(brokers=(gazette_broker.endpoint,), token=token)
    client = await spark_client(connection)
    await client.list()
    assert token not in repr(client) + repr(connection)


@locked
@pytest.mark.usefixtures("provider")
async def test_providers_which_provide_nothing(gazette_broker: EmbeddedBroker) -> None:
    def connection_of(name: str) -> BrokerAccess:
        return BrokerAccess(brokers=(gazette_broker.endpoint,), token_provider=f"{MODULE}:{name}")

    for name, text in (
        ("missing", f"can't import '{MODULE}:missing': AttributeError"),
        ("text", "expected a callable, and not a str"),
    ):
        with pytest.raises(pb.ConfigurationError, match=f"option 'tokenProvider': {text}"):
            await spark_client(connection_of(name))
    client = await spark_client(connection_of("number"))
    with pytest.raises(pb.ConfigurationError, match="a token must be a str, and not a int"):
        await client.list()


async def test_files_of_certificates(tmp_path: Path) -> None:
    connection = BrokerAccess(brokers=("https://localhost:1",), ca_file=str(tmp_path / "missing"))
    client = await spark_client(connection)
    with pytest.raises(pb.ConfigurationError, match="reading TLS options"):
        await client.list()


async def test_clients_which_nobody_uses_are_closed_beyond_a_bound(
    gazette_broker: EmbeddedBroker, gazette_client: JournalClient
) -> None:
    """As of tokens which are renewed, in a process which lives as long as its driver."""

    def of(number: int) -> BrokerAccess:
        return BrokerAccess(brokers=(gazette_broker.endpoint,), token=f"token-{number}")

    await create_journals(gazette_client, journal_spec("a/journal"))
    await gazette_client.append("a/journal", b"content")
    busy, idle = await spark_client(of(0)), await spark_client(of(1))
    async with busy.read("a/journal", block=True) as reader:
        assert await reader.read() == b"content"
        for number in range(2, 300):
            recent = await spark_client(of(2))
            await spark_client(of(number))
        assert await spark_client(of(2)) is recent
        assert await spark_client(of(0)) is busy
        assert await spark_client(of(1)) is not idle
        with pytest.raises(pb.UsageError, match="closed"):
            await idle.list()
        await gazette_client.append("a/journal", b"more")
        assert await reader.read() == b"more"
