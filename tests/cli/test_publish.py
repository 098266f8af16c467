"""`gazette-aio journals publish`, and reads of a number of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import modulo_mapping, rendezvous_mapping
from gazette_aio.testing import create_journals, journal_spec

LINES = {"content-type": "application/x-ndjson"}
PARTS = [f"shop/orders/part-{index}" for index in range(3)]
ALL = ("-l", "name:prefix=shop/orders/")


@pytest.fixture
async def parts(gazette_client: Any) -> pb.ListResponse:
    await create_journals(gazette_client, *(journal_spec(name, labels=LINES) for name in PARTS))
    listing: pb.ListResponse = await gazette_client.list()
    return listing


def orders(*items: str) -> bytes:
    return b"".join(json.dumps({"item": {"id": item}}).encode() + b"\n" for item in items)


async def committed(cli: Any, *args: str) -> list[Mapping[str, Any]]:
    done = await cli("journals", "read", "--committed", "--json", *args)
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.text.splitlines()]


async def test_lines_are_published_once(broker_cli: Any, parts: pb.ListResponse) -> None:
    # A blank line is no message, and the last line needs no end.
    text = b'{"n": 1.0, "m": [1]}\n\n {"n": 2}\r\n{"n": 3}'
    done = await broker_cli("journals", "publish", PARTS[0], stdin=text)
    found = await committed(broker_cli, PARTS[0])
    raw = await broker_cli("journals", "read", PARTS[0])

    assert (done.code, done.text) == (0, "published 3 messages to 1 journal\n"), done.err
    assert [each["message"]["n"] for each in found] == [1, 2, 3]
    assert raw.text.splitlines()[0].endswith('"},"n": 1.0, "m": [1]}'), "kept as it was given"
    uuids = [each["message"]["_meta"]["uuid"] for each in found]
    assert len(set(uuids)) == 3
    assert len({each[-12:] for each in uuids}) == 1, "one producer"


async def test_messages_of_the_command_line(broker_cli: Any, parts: pb.ListResponse) -> None:
    messages = ("-m", '{"text": "a\\nb"}', "--message", '{\n  "text": "é"\n}')
    done = await broker_cli(
        "journals", "publish", PARTS[0], *messages, "--uuid-path", "id", "--json"
    )
    raw = await broker_cli("journals", "read", PARTS[0])

    assert done.json == {"messages": 2, "journals": 1}, done.err
    assert [json.loads(line)["text"] for line in raw.text.splitlines()] == ["a\nb", "é"]
    assert all(len(json.loads(line)["id"]) == 36 for line in raw.text.splitlines())


@pytest.mark.parametrize(
    ("options", "mapping"), [((), modulo_mapping), (("--mapping=rendezvous",), rendezvous_mapping)]
)
async def test_keys_choose_journals_as_mappings_do(
    broker_cli: Any, parts: pb.ListResponse, tmp_path: Path, options: Any, mapping: Any
) -> None:
    items = [f"item-{index}" for index in range(20)]
    expected = mapping(lambda item: item.encode(), lambda: parts)
    path = tmp_path / "orders"
    path.write_bytes(orders(*items))
    done = await broker_cli("journals", "publish", *ALL, str(path), "-k", "item.id", *options)
    found = await committed(broker_cli, *ALL)

    assert (done.code, done.err) == (0, "")
    journals = {each["message"]["item"]["id"]: each["journal"] for each in found}
    assert journals == {item: expected(item)[0] for item in items}


async def test_values_of_keys(broker_cli: Any, parts: pb.ListResponse) -> None:
    expected = modulo_mapping(lambda key: key, lambda: parts)
    message = '{"a": true, "b": 1.5, "c": "text"}'
    await broker_cli("journals", "publish", *ALL, "-m", message, "-k", "a", "-k", "b", "-k", "c")
    [found] = await committed(broker_cli, *ALL)

    assert found["journal"] == expected([b"true", b"1.5", b"text"])[0]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((), "give JOURNAL or --selector"),
        (("test/a", "file", "-m", "{}"), "give FILE or --message"),
        (("test/a", "-k", "item"), "--key needs --selector"),
        (("test/a", "-m", "{}", "-m", "[1]"), "message 2: Expected `object`, got `array`"),
        (("test/a", "-m", "{}", "-m", '{"_meta": 1}'), "message 2: message has no JSON object"),
        (("test/a", "-m", "\udcff"), "message 1: "),
        (
            ("-l", "kind=b", "-k", "b.c", "-m", '{"b": {"c": null}}'),
            "message 1: --key b.c: no text",
        ),
        (("test/a", "-m", "{}", "--uuid-path", "a..b"), "path"),
        (("a b",), "journal 'a b'"),
    ],
)
def test_what_is_refused_before_anything_is_sent(inline: Any, args: Any, reason: str) -> None:
    done = inline("journals", "publish", *args, "--broker.address=http://127.0.0.1:1")

    assert (done.code, done.out) == (2, b"")
    assert reason in done.err


@pytest.mark.parametrize(
    "line", [b"[]", b"not JSON", b'{"n": "\xff"}', b'{"_meta": 1}', b'{"n": 1}']
)
async def test_a_line_that_is_no_message(
    broker_cli: Any, parts: pb.ListResponse, line: bytes
) -> None:
    key = ("-k", "item.id")
    first = await broker_cli("journals", "publish", *ALL, *key, stdin=line + b"\n" + orders("a"))
    second = await broker_cli("journals", "publish", *ALL, *key, stdin=orders("a", "b") + line)

    assert (first.code, second.code) == (2, 1)
    assert first.err.startswith("gazette-aio: message 1: ")
    assert second.err.startswith("gazette-aio: message 3: ")
    assert second.err.endswith("; published before: 2 messages\n")
    assert len(await committed(broker_cli, *ALL)) == 2


async def test_a_broker_that_fails_after_some_messages(
    broker_cli: Any, gazette_broker: Any, parts: pb.ListResponse
) -> None:
    with gazette_broker.control.keep("append", fail="PERMISSION_DENIED"):
        done = await broker_cli("journals", "publish", PARTS[0], stdin=orders("a", "b"))

    assert done.code == 1
    assert "; published before: at most " in done.err
    assert await committed(broker_cli, PARTS[0]) == []


async def test_a_record_without_a_journal(broker_cli: Any, parts: pb.ListResponse) -> None:
    args = ("--framing", "lines", "--mapping", "direct")
    text = f"{PARTS[0]}\n1\nno/such\n2\n".encode()
    done = await broker_cli("journals", "append", *ALL, *args, stdin=text)

    assert done.code == 1
    assert done.err.endswith("'no/such' isn't one of the selector; appended before: 1 record\n")


async def test_journals_that_take_no_messages(broker_cli: Any, gazette_client: Any) -> None:
    text = journal_spec("a/text", labels={"content-type": "text/plain"})
    await create_journals(gazette_client, text, journal_spec("a/none"))
    of_text, of_none, missing, nothing = [
        await broker_cli("journals", "publish", *args, "-m", "{}")
        for args in (["a/text"], ["a/none"], ["no/such"], ["-l", "name=no/such"])
    ]

    assert [each.code for each in (of_text, of_none, missing, nothing)] == [1, 1, 1, 1]
    assert "a/text has content type text/plain" in of_text.err
    assert "a/none has content type none" in of_none.err
    assert missing.err == "gazette-aio: no journal 'no/such'\n"
    assert "no journal matches" in nothing.err


@pytest.mark.parametrize("source", [(PARTS[0],), ALL])
async def test_read_a_number_of_messages(
    broker_cli: Any, parts: pb.ListResponse, tmp_path: Path, source: tuple[str, ...]
) -> None:
    items = [f"item-{index}" for index in range(7)]
    await broker_cli("journals", "publish", PARTS[0], stdin=orders(*items))
    path = tmp_path / "offsets"
    path.write_text("{}")
    offsets = ("--offsets", str(path), "--offsets-out", str(path))
    # Each read resumes after the last message that was printed, and waits for no more.
    reads = [await committed(broker_cli, *source, "-n", "3", "-b", *offsets) for _ in range(2)]
    rest = await committed(broker_cli, *source, "--count=3", *offsets)

    found = [[each["message"]["item"]["id"] for each in read] for read in (*reads, rest)]
    assert found == [items[:3], items[3:6], items[6:]]


async def test_read_a_number_of_lines(
    broker_cli: Any, gazette_client: Any, parts: pb.ListResponse, tmp_path: Path
) -> None:
    await gazette_client.append(PARTS[0], b"1\n2\n3\n4")
    await gazette_client.append(PARTS[0], b"5\n6\n")
    path = tmp_path / "offsets"
    path.write_text("{}")
    offsets = ("--offsets", str(path), "--offsets-out", str(path))
    one = await broker_cli("journals", "read", PARTS[0], "-n", "2")
    blocked = await broker_cli("journals", "read", PARTS[0], "-n", "4", "-b")
    reads = [await broker_cli("journals", "read", *ALL, "-n", count, *offsets) for count in "1234"]

    assert (one.code, one.text, blocked.text) == (0, "1\n2\n", "1\n2\n3\n45\n"), blocked.err
    assert [each.text for each in reads] == ["1\n", "2\n3\n", "45\n6\n", ""]
    assert [each.err for each in reads] == [""] * 4


async def test_read_a_number_of_lines_of_many_journals(
    broker_cli: Any, gazette_client: Any, parts: pb.ListResponse, tmp_path: Path
) -> None:
    for name in PARTS:
        await gazette_client.append(name, b"1\n2\n")
    done = await broker_cli("journals", "read", *ALL, "-n", "1", "--json")

    assert [json.loads(line)["end"] for line in done.text.splitlines()] == [2]
