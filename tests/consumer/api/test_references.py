"""Check of the journals that shards refer to, against a scripted broker."""

from __future__ import annotations

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.consumer.api import verify_referenced_journals
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing.stub_broker import StubBroker

RECOVERY = "application/x-gazette-recoverylog"

JOURNALS = {
    "a/source": "application/x-ndjson",
    "b/source": "text/csv",
    "logs/a-shard": RECOVERY,
    "wrong/a-shard": "text/csv",
    "bare/a-shard": "",
}
"""Content types by journal."""


def change(*sources: str, log_prefix: str = "") -> pc.ApplyRequest.Change:
    return pc.ApplyRequest.Change(
        upsert=pc.ShardSpec(
            id="a-shard",
            sources=[pc.ShardSpec.Source(journal=source) for source in sources],
            recovery_log_prefix=log_prefix,
        )
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (change("a/source;meta", "b/source", log_prefix="logs"), None),
        (change("a/source"), None),
        (change(), None),
        (pc.ApplyRequest.Change(delete="a-shard"), None),
        (
            change("a/source", "no/source"),
            "Shard[a-shard]: named journal does not exist (no/source)",
        ),
        (
            change("a/source", log_prefix="missing"),
            "Shard[a-shard]: named journal does not exist (missing/a-shard)",
        ),
        (
            change("logs/a-shard"),
            (
                "Shard[a-shard].Sources[logs/a-shard] message framing: "
                f"unrecognized content-type ({RECOVERY})"
            ),
        ),
        (
            change("a/source", log_prefix="wrong"),
            (
                "Shard[a-shard]: expected wrong/a-shard to have content-type "
                f"{RECOVERY} but was 'text/csv'"
            ),
        ),
        (
            change(log_prefix="bare"),
            f"Shard[a-shard]: expected bare/a-shard to have content-type {RECOVERY} but was ''",
        ),
    ],
)
async def test_references(change: pc.ApplyRequest.Change, error: str | None):
    listings: list[str] = []

    async with StubBroker() as broker, connect(broker.endpoint) as client:

        def answer(request: pb.ListRequest) -> pb.ListResponse:
            name = pb.value_of(request.selector.include, "name")
            listings.append(name)
            response = pb.ListResponse(header=broker.header())
            if name in JOURNALS:
                listed = response.journals.add(mod_revision=1, route=broker.header().route)
                listed.spec.name = name
                if JOURNALS[name]:
                    pb.set_value(listed.spec.labels, pb.CONTENT_TYPE, JOURNALS[name])
            return response

        broker.list_handler = answer
        request = pc.ApplyRequest(changes=[change, change])
        if error is None:
            await verify_referenced_journals(client, request)
            # Each journal is listed once.
            assert len(listings) == len(set(listings))
            return
        with pytest.raises(pb.ValidationError) as caught:
            await verify_referenced_journals(client, request)
        assert str(caught.value).startswith(error)
