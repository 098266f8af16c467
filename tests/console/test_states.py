"""States of messages, told apart in a tail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

import gazette_aio.protocol as pb
from gazette_aio.console.message_uuids import text_of, uuid_reader, wire_uuid
from gazette_aio.console.states import MessageStates
from gazette_aio.console.tail_forms import MessageForm, TextForm
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ZERO_UUID,
    ProducerID,
    build_uuid,
    encode_fixed_frame,
)
from gazette_aio.message.uuid import clock_from_ns
from gazette_aio.testing import StubBroker, create_journals, journal_spec
from tests.console.serving import asked, next_event, serving

_ONE, _TWO = ProducerID(b"\x01one.."), ProducerID(b"\x01two..")
_LINES = {"content-type": "application/x-ndjson"}


def _taken(*messages: tuple[bytes, int, int], **limits: int) -> tuple[list[str], dict[int, str]]:
    """Return the states of messages when they were read, and those which they have in the end."""
    states = MessageStates(**limits)
    first: list[str] = []
    last: dict[int, str] = {}
    for begin, (producer, clock, flags) in enumerate(messages):
        state, settled = states.take(begin, build_uuid(producer, clock, flags))
        first.append(state)
        last[begin] = state
        for each in settled:
            assert last[each.begin] == "pending"
            last[each.begin] = each.state
    return first, last


def test_transactions_commit_up_to_the_clock_of_their_acknowledgement():
    first, last = _taken(
        (_ONE, 16, CONTINUE_TXN),
        (_TWO, 16, CONTINUE_TXN),
        (_ONE, 32, CONTINUE_TXN),
        (_ONE, 48, CONTINUE_TXN),
        (_ONE, 32, ACK_TXN),
        (_TWO, 64, OUTSIDE_TXN),
    )
    assert first == ["pending"] * 4 + ["acknowledgement", "committed"]
    both = ["committed", "rolled-back"]
    assert list(last.values()) == [*both, *both, "acknowledgement", "committed"]


def test_transactions_that_are_rolled_back():
    first, last = _taken(
        (_ONE, 16, OUTSIDE_TXN),
        (_ONE, 32, CONTINUE_TXN),
        (_ONE, 48, CONTINUE_TXN),
        (_ONE, 16, ACK_TXN),
    )
    assert first == ["committed", "pending", "pending", "acknowledgement"]
    assert list(last.values()) == ["committed", "rolled-back", "rolled-back", "acknowledgement"]


def test_duplicates_and_messages_without_clocks():
    first, last = _taken(
        (_ONE, 16, OUTSIDE_TXN),
        (_ONE, 16, OUTSIDE_TXN),
        (_ONE, 32, CONTINUE_TXN),
        (_ONE, 32, CONTINUE_TXN),
        (_ONE, 0, OUTSIDE_TXN),
    )
    assert first == ["committed", "duplicate", "pending", "duplicate", "plain"]
    assert last[2] == "pending"
    assert MessageStates().take(0, ZERO_UUID) == ("plain", [])


def test_memory_is_bounded():
    producers = [(ProducerID(b"\x01" + bytes([0, 0, 0, 0, each])), 16, 1) for each in range(9)]
    first, last = _taken(*producers, (producers[0][0], 32, ACK_TXN), most_producers=4)
    assert (first[0], last[0]) == ("pending", "pending")
    many = [(_ONE, 16 * each, CONTINUE_TXN) for each in range(1, 10)]
    _, last = _taken(*many, (_ONE, 16 * 9, ACK_TXN), most_pending=4)
    assert list(last.values()) == ["pending"] * 5 + ["committed"] * 4 + ["acknowledgement"]


def _spec(content_type: str) -> pb.JournalSpec:
    return journal_spec("a/journal", labels={"content-type": content_type})


def _events(form: MessageForm, begin: int, content: bytes, size: int = 1 << 20) -> list[Any]:
    events: list[Any] = []
    for at in range(0, len(content), size):
        for event in form.events(begin + at, content[at : at + size]):
            assert event.count(b"\n") == 3
            events.append(json.loads(event.split(b"data: ", 1)[1]))
    return events


def _line(producer: ProducerID, clock: int, flags: int, text: str = "") -> bytes:
    uuid = build_uuid(producer, clock, flags)
    return json.dumps({"_meta": {"uuid": str(uuid)}, "text": text}).encode() + b"\n"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_of_lines(size):
    content = (
        b'of an earlier message"}\n'
        + _line(_ONE, 16, CONTINUE_TXN, "<b>\n\ndata: {}")
        + b"no JSON\n{}\n"
        + _line(_ONE, 16, ACK_TXN)
    )
    form = MessageForm(_spec("application/x-ndjson"))
    form.begin(1000)
    events = _events(form, 1000, content, size)
    shown = [message for event in events for message in event["messages"]]
    states = [message["state"] for message in shown]
    assert states == ["pending", "unreadable", "plain", "acknowledgement"]
    assert "no JSON" in shown[1]["text"]
    assert "<b>" in shown[0]["text"]
    assert shown[0]["producer"] == _ONE.hex()
    assert int(shown[0]["begin"]) == 1000 + content.index(b"\n") + 1
    assert int(shown[-1]["end"]) == 1000 + len(content)
    settled = [each for event in events for each in event["settled"]]
    assert settled == [[shown[0]["begin"], "committed"]]


def test_states_of_messages_that_are_not_sent():
    """A part of a journal is sent, and the states that it gives to what was sent before."""
    content = _line(_ONE, 16, CONTINUE_TXN, "one")
    second = len(content)
    content += _line(_ONE, 32, CONTINUE_TXN, "two") + b"no JSON\n"
    third = len(content)
    content += _line(_ONE, 16, ACK_TXN)
    form = MessageForm(_spec("application/x-ndjson"), fresh=range(second))
    [event] = _events(form, 0, content)
    assert [message["begin"] for message in event["messages"]] == ["0"]
    last = dict(event["settled"])
    assert (last["0"], last[str(second)]) == ("committed", "rolled-back")
    assert last[str(third)] == "acknowledgement"
    assert "unreadable" in last.values()
    form = MessageForm(_spec("application/x-ndjson"), fresh=range(len(content), 1 << 60))
    [event] = _events(form, 0, content)
    assert (event["messages"], len(event["settled"])) == ([], 6)


def test_events_have_few_messages():
    content = b"".join(_line(_ONE, 16 * each, OUTSIDE_TXN) for each in range(1, 101))
    events = _events(MessageForm(_spec("application/x-ndjson")), 0, content)
    assert sum(len(event["messages"]) for event in events) == 100
    assert max(len(event["messages"]) for event in events) == 32


def test_messages_of_fixed_frames():
    uuid = build_uuid(_ONE, 16, OUTSIDE_TXN)
    content = bytearray(b"the end of a frame")
    encode_fixed_frame(b"\x08\x01\x12\x10" + uuid.bytes + b"\x1a\x02hi", content)
    encode_fixed_frame(b"\x07", content)
    form = MessageForm(_spec("application/x-protobuf-fixed"))
    form.begin(7)
    [event] = _events(form, 7, bytes(content))
    first, second = event["messages"]
    assert (first["state"], first["producer"]) == ("committed", _ONE.hex())
    # A tick after the beginning of the calendar.
    assert first["time"] == "1582-10-15T00:00:00.000+00:00"
    assert first["text"].endswith("hi")
    assert second["state"] == "unreadable"
    [event] = _events(form, 7 + len(content), b"garbage in between")
    assert event["messages"][0]["state"] == "unreadable"


def test_messages_of_csv():
    uuid = build_uuid(_ONE, 16, OUTSIDE_TXN)
    [event] = _events(MessageForm(_spec("text/csv")), 0, f"{uuid},a\nno,b\n".encode())
    assert [message["state"] for message in event["messages"]] == ["committed", "unreadable"]


def test_long_messages_are_cut():
    [event] = _events(
        MessageForm(_spec("application/x-ndjson")), 0, b'{"a":"' + b"x" * 20_000 + b'"}\n'
    )
    [message] = event["messages"]
    assert (len(message["text"]), message["isCut"]) == (16 << 10, True)


@pytest.mark.parametrize("content_type", ["text/plain", ""])
def test_journals_without_messages(content_type):
    with pytest.raises(pb.ValidationError):
        MessageForm(_spec(content_type))


@pytest.mark.parametrize("path", ["a" * 101, "a..b", '"'])
def test_paths_that_lead_to_no_uuid(path):
    with pytest.raises(pb.ConfigurationError):
        MessageForm(_spec("application/x-ndjson"), path)


def test_paths_to_uuids():
    uuid = build_uuid(_ONE, 16, OUTSIDE_TXN)
    assert (
        uuid_reader("application/x-ndjson", "a.b")(b'{"a":{"b":"%s"}}' % str(uuid).encode()) == uuid
    )


@pytest.mark.parametrize("frame", [b"\x12\x7f", b"\x0b", b"\xff" * 11, b"\x12\x10short", b"\x09"])
def test_frames_that_are_no_protobuf(frame):
    with pytest.raises(pb.ValidationError):
        wire_uuid(frame)


def test_protobuf_messages_without_uuids():
    other = UUID("00000000-0000-4000-8000-000000000000")
    assert wire_uuid(b"") == ZERO_UUID
    assert (
        wire_uuid(b"\x0a\x10" + other.bytes + b"\x11" + bytes(8) + b"\x1d" + bytes(4)) == ZERO_UUID
    )


def test_texts_are_printable():
    assert text_of(b"a\x00\x1b[2J\xff\n\tb", 100) == "a··[2J\ufffd\n\tb"


async def test_a_tail_of_messages(gazette_broker, gazette_client):
    await create_journals(
        gazette_client, journal_spec("a/journal", labels=_LINES), journal_spec("a/bytes")
    )
    async with serving(gazette_broker) as page:
        await asked(page, "/api/tail?name=a/bytes&form=messages", 400)
        await asked(page, "/api/tail?name=a/journal&form=messages&uuid=a..b", 400)
        await asked(page, "/api/tail?name=a/missing&form=messages", 404)
        async with page.get("/api/tail?name=a/journal&form=messages") as response:
            assert response.status == 200
            await gazette_client.append("a/journal", _line(_ONE, 16, CONTINUE_TXN, "one"))
            [message] = (await next_event(response))["messages"]
            assert message["state"] == "pending"
            await gazette_client.append("a/journal", _line(_ONE, 32, ACK_TXN))
            event = await next_event(response)
            assert event["messages"][0]["state"] == "acknowledgement"
            assert event["settled"] == [[message["begin"], "committed"]]


def _at(seconds: int) -> bytes:
    return _line(_ONE, clock_from_ns(seconds * 1_000_000_000), OUTSIDE_TXN, "x" * 500)


async def _part(page: Any, query: str) -> tuple[list[Any], Any]:
    """Return the messages of a part of a journal, and the last event."""
    messages: list[Any] = []
    path = f"/api/tail?name=a/journal&form=messages&{query}"
    async with page.get(path) as response:
        assert response.status == 200, await response.text()
        while "head" not in (event := await next_event(response)):
            messages += event["messages"]
        assert await response.read() == b""
    return messages, event


async def test_parts_of_a_journal(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal", labels=_LINES))
    lines = [_at(seconds) for seconds in range(10)]
    size = len(lines[0])
    await gazette_client.append("a/journal", b"".join(lines))
    async with serving(gazette_broker) as page:
        every, event = await _part(page, "bytes=100")
        assert [int(message["begin"]) for message in every] == [size * each for each in range(10)]
        assert event == {"end": str(10 * size), "head": str(10 * size)}
        # A part begins with the message at its offset, and has whole messages only.
        some, event = await _part(page, f"begin={2 * size}&bytes={3 * size - 1}")
        assert some == every[2:4]
        assert event == {"end": str(5 * size - 1), "head": str(10 * size)}
        later, _ = await _part(page, f"begin={2 * size}&bytes={8 * size}&from={4 * size}")
        assert later == every[4:]
        earlier, _ = await _part(page, f"begin=1&bytes={9 * size}&from=1&to={2 * size}")
        assert earlier == every[1:2]
        assert await _part(page, "begin=999999&bytes=5") == ([], event | {"end": str(10 * size)})
        for wrong in ("begin=-1", "begin=9223372036854775808", "time=x", "from=1e3"):
            await asked(page, f"/api/tail?name=a/journal&form=messages&{wrong}", 400)


async def test_parts_from_a_time_on(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal", labels=_LINES))
    lines = [_at(seconds) for seconds in range(1000)]
    await gazette_client.append("a/journal", b"".join(lines))
    async with serving(gazette_broker) as page:
        for seconds in (0, 1, 500, 998, 5000, 1 << 60):
            found, _ = await _part(page, f"time={seconds}&bytes=40000")
            at = min(seconds, 999)
            assert _second(found[0]) <= at <= _second(found[-1])
            assert at - _second(found[0]) < 40  # It began less than 16 KiB before.
        # Content without messages has times of files only.
        path = "/api/tail?name=a/journal&time=5&bytes=10"
        async with page.get(path) as response:
            assert (await next_event(response))["begin"] == "0"


async def test_files_that_are_older_than_a_time_are_not_read(gazette_broker, gazette_client):
    spec = journal_spec("a/journal", labels=_LINES, stores=["file:///"])
    await create_journals(gazette_client, spec)
    stored = (await gazette_client.append(spec.name, _at(5))).commit.end
    await gazette_broker.flush()
    later = 4_000_000_000  # Of this century, but after the test.
    await gazette_client.append(spec.name, _at(later))
    async with serving(gazette_broker) as page:
        [found], _ = await _part(page, f"time={later}&bytes=40000")
        assert (found["begin"], _second(found)) == (str(stored), later)


async def test_files_that_were_copied_tell_no_times(gazette_broker, gazette_client):
    spec = journal_spec("a/journal", labels=_LINES, stores=["file:///"])
    await create_journals(gazette_client, spec)
    for hundred in range(0, 300, 100):
        lines = [_at(seconds) for seconds in range(hundred, hundred + 100)]
        await gazette_client.append(spec.name, b"".join(lines))
        await gazette_broker.flush()
    async with serving(gazette_broker) as page:
        for seconds in (50, 150, 250):
            found, _ = await _part(page, f"time={seconds}&bytes=40000")
            assert _second(found[0]) <= seconds <= _second(found[-1])
        # After all files, it's the newest.
        found, _ = await _part(page, "time=5000000000&bytes=40000")
        assert _second(found[-1]) == 299


async def test_content_after_a_hole_begins_with_a_message():
    content = _at(1) + _at(2)
    head = 100 + len(content)
    async with StubBroker() as broker:

        async def answer(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            header = broker.header()
            if request.metadata_only:
                status = pb.Status.OFFSET_NOT_YET_AVAILABLE
                yield pb.ReadResponse(status=status, header=header, write_head=head)
                return
            fragment = pb.Fragment(journal="a/journal", begin=100, end=head)
            fragment.compression_codec = pb.CompressionCodec.NONE
            yield pb.ReadResponse(header=header, offset=100, write_head=head, fragment=fragment)
            yield pb.ReadResponse(offset=100, content=content)

        spec = journal_spec("a/journal", labels=_LINES)
        listed = pb.ListResponse.Journal(spec=spec, create_revision=1, mod_revision=1)
        listed.route.primary = -1
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[listed])
        broker.read_handler = answer
        async with serving(broker) as page:
            found, _ = await _part(page, f"begin=5&bytes={head}")
    assert [int(message["begin"]) for message in found] == [100, 100 + len(_at(1))]


def _second(message: Any) -> int:
    return int(datetime.fromisoformat(message["time"]).timestamp())


@pytest.mark.parametrize("begin", [0, 1])
def test_a_part_of_text_may_begin_within_a_character(begin):
    content = "ä€😀"[begin:].encode()
    form = TextForm()
    form.begin(7)
    [event] = form.events(7, content[begin:])
    data = json.loads(event.split(b"data: ", 1)[1])
    skipped = 0 if begin == 0 else 2
    assert data["text"] == ("ä€😀" if begin == 0 else "😀")
    assert data["begin"] == str(7 + skipped)
