"""Changes of shards that don't exist."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.protocol import consumer as pc
from tests.consumer.handlers.served import ServedGroup, claims
from tests.consumer.shards.group import A


@pytest.mark.parametrize("selector", ["", f"id={A}"])
async def test_a_deletion_of_nothing_waits_for_no_change_of_the_group(
    member: ServedGroup, selector: str
) -> None:
    change = pc.ApplyRequest.Change(delete=A, expect_mod_revision=-1)
    # The store is at a revision that no change of the group has.
    await member.store.transact([], [Put("/elsewhere", b"")])
    with pb.with_claims(claims(pb.Capability.APPLY, selector)):
        applying = member.client.rpc.apply(pc.ApplyRequest(changes=[change]))
        response = await asyncio.wait_for(applying, 30)
    assert response.status == pc.Status.OK
