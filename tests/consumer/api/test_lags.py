"""Lags of shards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.client import connect
from gazette_aio.consumer.api import connect_shards, lags
from gazette_aio.protocol import consumer as pc
from tests.consumer.api.members import StubMember


async def test_a_late_shard_does_not_delay_the_heads_of_others(monkeypatch: pytest.MonkeyPatch):
    looked = asyncio.Event()

    async def head_of(_client: Any, _journal: str) -> int:
        looked.set()
        return 10

    monkeypatch.setattr(lags, "head_of", head_of)

    async def stat(request: pc.StatRequest, _context: Any) -> pc.StatResponse:
        if request.shard == "late":
            await looked.wait()
        return pc.StatResponse(header=member.header(), read_through={"a/journal;suffix": 4})

    async with (
        StubMember() as member,
        connect_shards(member.endpoint) as shards,
        connect(member.endpoint) as brokers,
    ):
        member.answers["Stat"] = stat
        found = await lags.lags_of(shards, brokers, ["late", "prompt"])
    assert found == [{"a/journal;suffix": 6}] * 2
