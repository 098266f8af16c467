"""Schemas which are inferred from the newest messages of journals."""

from __future__ import annotations

import json

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, ProducerID, build_uuid
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning import sampling
from gazette_aio.spark.planning.sampling import sample_schema
from gazette_aio.testing import create_journals, journal_spec

NDJSON, CSV = "application/x-ndjson", "text/csv"
PRODUCER = ProducerID(b"\x05\0\0\0\0\1")
CLOCK = 0x1E51B8D5B8F00000


def uuid(number, flags=CONTINUE_TXN):
    return str(build_uuid(PRODUCER, CLOCK + (number << 4), flags))


def line(number, flags=CONTINUE_TXN, **document):
    return (json.dumps({"_meta": {"uuid": uuid(number, flags)}, **document}) + "\n").encode()


@pytest.fixture
async def infer(gazette_broker, gazette_client, tmp_path):
    """Returns the types of columns which are inferred by options."""

    async def sample(**given):
        options = SourceOptions.parse(
            {
                "brokers": gazette_broker.endpoint,
                "prefix": "s/",
                "fileRoot": str(tmp_path / "fragments"),
                "inferSchema": "true",
                **given,
            },
            streaming=False,
        )
        schema = await sample_schema(gazette_client, options)
        return {field.name: str(field.type) for field in schema}

    yield sample
    await bridge.close_clients()


async def create(client, *names, content_type=NDJSON):
    specs = [
        journal_spec(f"s/{name}", labels={"content-type": content_type}, stores=["file:///"])
        for name in names
    ]
    await create_journals(client, *specs)


async def test_messages_of_all_journals_count_committed_or_not(gazette_client, infer):
    await create(gazette_client, "one", "two", "empty")
    await gazette_client.append("s/one", line(1, a=1) + b"bad\n" + line(2, ACK_TXN, acked=True))
    await gazette_client.append("s/two", line(3, a=0.5, b="x"))
    assert await infer() == {"a": "double", "b": "string"}
    # They tell of columns, whenever they were published.
    assert await infer(startingTimestamp="9999999999999") == {"a": "double", "b": "string"}
    assert await infer(partitionColumns="region") == {
        "a": "double",
        "b": "string",
        "region": "string",
    }


async def test_the_newest_content_counts(gazette_broker, gazette_client, infer, monkeypatch):
    await create(gazette_client, "one")
    await gazette_client.append("s/one", b"".join(line(at, old=at) for at in range(100)))
    await gazette_client.append("s/one", b"".join(line(at, new=at) for at in range(100, 120)))
    assert await infer() == {"new": "int64", "old": "int64"}
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 1000)
    assert await infer() == {"new": "int64"}
    # Of several journals, those which were written last; local fragments come first.
    await gazette_broker.flush("s/one")
    await gazette_broker.refresh("s/one")
    await create(gazette_client, "two")
    await gazette_client.append("s/two", line(1, newest=1))
    monkeypatch.setattr(sampling, "SAMPLE_JOURNALS", 1)
    assert await infer() == {"newest": "int64"}


async def test_other_framings_are_sampled_by_fragments(
    gazette_broker, gazette_client, infer, monkeypatch
):
    await create(gazette_client, "csv", content_type=CSV)
    await gazette_client.append("s/csv", f"{uuid(1)},1,2,3\n".encode())
    await gazette_broker.flush("s/csv")
    await gazette_broker.refresh("s/csv")
    for number in range(2, 50):
        row = f"{uuid(number)},{number}.5,text\n" if number == 2 else f"{uuid(number)},x,text\n"
        await gazette_client.append("s/csv", row.encode())
    assert await infer() == {"_c0": "string", "_c1": "string"}
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 10)
    assert await infer(batchRows="1") == {"_c0": "double", "_c1": "string"}


async def test_what_tells_of_no_columns_is_refused(gazette_client, infer):
    await create(gazette_client, "empty")
    with pytest.raises(pb.ConfigurationError, match="no message has columns"):
        await infer()
    await create(gazette_client, "csv", content_type=CSV)
    with pytest.raises(pb.ConfigurationError, match=f"content types '{NDJSON}', '{CSV}': select"):
        await infer()
    with pytest.raises(pb.ConfigurationError, match="prefix 'none' matches no journal"):
        await infer(prefix="none")
