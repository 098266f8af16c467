"""The client of shards: its options, its environment, and its end."""

from __future__ import annotations

from datetime import timedelta

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import NoopDispatchRouter, RouteCache
from gazette_aio.consumer.api import connect_shards, list_shards
from gazette_aio.protocol import consumer as pc
from tests.consumer.api.members import StubMember, header
from tests.waiting import eventually

HOUR = timedelta(hours=1)


def test_the_environment_has_a_prefix_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BROKER_ADDRESS", "http://broker:1")
    monkeypatch.setenv("BROKER_CACHE_SIZE", "not a number")
    assert connect_shards().endpoint == "http://localhost:8080"
    monkeypatch.setenv("CONSUMER_ADDRESS", "http://consumer:2")
    assert connect_shards().endpoint == "http://consumer:2"
    assert connect_shards("http://given:3").endpoint == "http://given:3"
    assert isinstance(connect_shards().router, RouteCache)
    monkeypatch.setenv("CONSUMER_CACHE_SIZE", "0")
    assert isinstance(connect_shards().router, NoopDispatchRouter)
    monkeypatch.setenv("CONSUMER_CACHE_SIZE", "-1")
    with pytest.raises(pb.ConfigurationError, match=r"invalid CONSUMER_CACHE_SIZE \(-1\)"):
        connect_shards()
    monkeypatch.setenv("CONSUMER_CACHE_SIZE", "5")
    monkeypatch.setenv("CONSUMER_CACHE_TTL", "-1s")
    with pytest.raises(pb.ConfigurationError, match="invalid CONSUMER_CACHE_TTL"):
        connect_shards()
    monkeypatch.setenv("CONSUMER_CACHE_TTL", "1m")
    monkeypatch.setenv("CONSUMER_AUTH_KEYS", "not base64!")
    with pytest.raises(pb.ConfigurationError, match="failed to decode key"):
        connect_shards()
    monkeypatch.delenv("CONSUMER_AUTH_KEYS")
    monkeypatch.setenv("CONSUMER_CERT_FILE", "/a/file")
    with pytest.raises(pb.ConfigurationError, match="given together"):
        connect_shards()


async def test_the_token_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch):
    keys = pb.KeyedAuth("c2VjcmV0")
    monkeypatch.setenv("CONSUMER_AUTH_TOKEN", keys.sign(pb.Claims(pb.Capability.LIST), HOUR, 0.0))
    async with StubMember(keys) as member, connect_shards(member.endpoint) as client:
        member.answer("List", pc.ListResponse(header=header()))
        await list_shards(client)
        (claims,) = member.claims
        assert claims.capability == pb.Capability.LIST


def test_options_are_checked():
    with pytest.raises(TypeError, match=r"connect_shards\(\) has no option file_root"):
        connect_shards(file_root="/")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(pb.ConfigurationError, match="a router has its own cache"):
        connect_shards(router=NoopDispatchRouter(), cache_size=1)
    with pytest.raises(pb.ValidationError, match="write an address such as"):
        connect_shards("nowhere")


async def test_a_member_that_does_not_answer():
    client = connect_shards("http://127.0.0.1:1", connect_timeout=0.05)
    async with client:
        with pytest.raises(
            pb.TransportError, match=r"no consumer answers at http://127\.0\.0\.1:1"
        ):
            await list_shards(client)
        assert repr(client).startswith("<ShardClient of http://127.0.0.1:1, ")
    assert repr(client) == "<ShardClient of http://127.0.0.1:1, closed>"
    with pytest.raises(RuntimeError, match="is closed"):
        await list_shards(client)


async def test_a_client_that_is_never_closed_is_warned_about():
    async with StubMember() as member:
        client = connect_shards(member.endpoint)
        member.answer("List", pc.ListResponse(header=header()))
        await list_shards(client)
        with pytest.warns(ResourceWarning, match="ShardClient of .* was never closed"):
            client.__del__()
        await eventually(lambda: not client.dispatcher.is_dialled)  # It's ended nevertheless.
        await client.aclose()
        await client.aclose()
