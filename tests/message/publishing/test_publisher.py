"""Publisher, transactions and intent logs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gazette_aio.message import (
    ACK_TXN,
    Clock,
    IntentLog,
    Publisher,
    csv_adapter,
    framing_by_content_type,
    get_clock,
    get_flags,
    get_producer_id,
    json_adapter,
    parse_uuid,
)
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.protocol.errors import (
    EmptyListResponseError,
    MixedTransactionError,
    StoreError,
    TransactionError,
    UnrecognizedContentTypeError,
    ValidationError,
)
from tests import golden, known_differences
from tests.message import fakes
from tests.message.publishing.two_journals import to

FakeAppends: Any = fakes.FakeAppends
NDJSON = "application/x-ndjson"


class Body(dict[str, Any]):
    def __init__(self, body: Any, fail: Any = None):
        super().__init__({"body": body} if body else {})
        self.fail = fail

    def validate(self):
        if self.fail == "invalid":
            raise ValueError("whoops!")


class MixedAdapter:
    """The three kinds of messages of the golden data, by the framing which is next."""

    def __init__(self):
        self.kind = ""
        self.ack_kinds: list[str] = []
        self._json = json_adapter(dict, "uuid")

    def decode(self, frame: Any):
        raise AssertionError

    def encode(self, message: Any, uuid: Any):
        if message.fail == "marshal_error":
            raise ValueError("can't")
        body = message.get("body", "")
        if self.kind == "text/csv":
            return csv_adapter().encode(["", body], uuid)
        if self.kind == NDJSON:
            return self._json.encode(dict(message), uuid)
        raw = body.encode()
        assert len(raw) < 128
        return b"\x0a\x10" + uuid.bytes + (b"\x12" + bytes([len(raw)]) + raw if raw else b"")

    def uuid(self, message: Any):
        raise AssertionError

    def acknowledgement(self, uuid: Any):
        if self.kind_of_ack(uuid) == NDJSON:
            return self._json.acknowledgement(uuid)
        return b"\x0a\x10" + uuid.bytes

    def kind_of_ack(self, _uuid: Any) -> str:
        return self.ack_kinds.pop(0)


async def test_golden_sequences():
    escapes = 0
    for number, case in enumerate(golden.load("publisher.json")["sequences"]):
        for fast in (True, False):
            appends, adapter = FakeAppends(fast=fast), MixedAdapter()
            types = dict(case["journals"])
            clock = Clock(case["clock"])
            publisher = Publisher(
                appends,
                adapter,
                producer=bytes.fromhex(case["producer"]),
                clock=clock,
                allow_mixed=True,
            )
            used: list[str] = []
            for op in case["ops"]:
                if op["op"] == "clock_update":
                    clock.update(op["unix_nanos"])
                elif op["op"] == "build_ack_intents":
                    adapter.ack_kinds = [types[j] for j in used]
                    intents = publisher.build_ack_intents()
                    want = [(i["journal"], i["intent"]) for i in op["intents"]]
                    assert [(i.journal, i.intent.hex()) for i in intents] == want
                    used = []
                else:
                    journal, kind = op["journal"], op["kind"]
                    adapter.kind = types[journal]
                    content_type = (
                        "application/unknown" if kind == "unknown_framing" else types[journal]
                    )

                    def mapping(
                        _message: Any,
                        kind: Any = kind,
                        journal: str = journal,
                        content_type: Any = content_type,
                    ):
                        if kind == "mapping_error":
                            raise EmptyListResponseError("empty ListResponse")
                        return journal, content_type

                    publish = getattr(publisher, op["op"])
                    before = bytes(appends.journals.get(journal, b""))
                    message = Body(op["body"], kind)
                    if kind == "ok":
                        await publish(mapping, message)
                        added = bytes(appends.journals[journal])[len(before) :]
                        if types[journal] == NDJSON:
                            assert json.loads(added) == json.loads(bytes.fromhex(op["appended"]))
                            escapes += added.hex() != op["appended"]
                        else:
                            assert added.hex() == op["appended"], (number, op)
                        if op["op"] == "publish_uncommitted" and journal not in used:
                            used.append(journal)
                    else:
                        with pytest.raises(
                            (ValueError, EmptyListResponseError, UnrecognizedContentTypeError)
                        ) as raised:
                            await publish(mapping, message)
                        if kind in {"mapping_error", "unknown_framing"}:
                            assert str(raised.value).startswith(op["error"])
                        assert bytes(appends.journals.get(journal, b"")) == before
                assert clock.value == op["clock"], (number, op)
    assert escapes, known_differences.PUBLISHER_JSON_BODIES


def lines(appends: Any, journal: str) -> list[Any]:
    found: list[Any] = []
    for line in bytes(appends.journals.get(journal, b"")).splitlines():
        document = json.loads(line)
        uuid = parse_uuid(document["_meta"]["uuid"])
        found.append((get_clock(uuid), int(get_flags(uuid)), document.get("v")))
    return found


async def test_committed_messages():
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    for text in ("hello", "world", "beer!"):
        assert await publisher.publish_committed(to("a/journal"), {"v": text})
    assert lines(appends, "a/journal") == [(160, 0, "hello"), (320, 0, "world"), (480, 0, "beer!")]
    with pytest.raises(ValueError, match="whoops!"):
        await publisher.publish_committed(to("a/journal"), Body("x", "invalid"))
    assert publisher.clock.value == 480


@pytest.mark.parametrize("fast", [True, False])
async def test_uncommitted_messages_and_intents(fast: bool):
    appends = FakeAppends(fast=fast)
    publisher = Publisher(appends, json_adapter(), clock=Clock())

    async def acknowledge():
        intents = publisher.build_ack_intents()
        for journal, intent in intents:
            appends.commit(journal, intent)
        return [i.journal for i in intents]

    await publisher.publish_uncommitted(to("J1"), {"v": "one"})
    await publisher.publish_uncommitted(to("J2"), {"v": "two"})
    assert await acknowledge() == ["J1", "J2"]
    await publisher.publish_uncommitted(to("J3"), {"v": "three"})
    await publisher.publish_uncommitted(to("J1"), {"v": "four"})
    assert await acknowledge() == ["J3", "J1"]
    assert publisher.build_ack_intents() == []
    assert lines(appends, "J1") == [
        (160, 1, "one"),
        (480, 2, None),
        (960, 1, "four"),
        (1280, 2, None),
    ]
    assert lines(appends, "J2") == [(320, 1, "two"), (640, 2, None)]
    assert lines(appends, "J3") == [(800, 1, "three"), (1120, 2, None)]


@pytest.mark.parametrize("fast", [True, False])
async def test_encoding_errors_leave_nothing(fast: bool):
    appends = FakeAppends(fast=fast)
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    with pytest.raises(ValidationError):
        await publisher.publish_uncommitted(to("a/journal"), {"v": object()})
    assert "a/journal" not in appends.journals
    assert publisher.build_ack_intents() == []
    await publisher.publish_committed(to("a/journal"), {"v": 1})
    assert lines(appends, "a/journal") == [(320, 0, 1)]


async def test_intents_are_kept_if_they_cannot_be_built(monkeypatch: pytest.MonkeyPatch):
    appends = FakeAppends()
    adapter = json_adapter()
    publisher = Publisher(appends, adapter)
    await publisher.publish_uncommitted(to("a/journal"), {"v": 1})

    def fail(_uuid: Any):
        raise ValueError("can't")

    monkeypatch.setattr(adapter, "acknowledgement", fail)
    with pytest.raises(ValueError, match="can't"):
        publisher.build_ack_intents()
    monkeypatch.undo()
    assert [i.journal for i in publisher.build_ack_intents()] == ["a/journal"]


async def test_mixing_is_refused():
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
    with pytest.raises(MixedTransactionError):
        await publisher.publish_committed(to("a/journal"), {"v": 2})
    await publisher.publish_committed(to("another/journal"), {"v": 2})
    publisher.build_ack_intents()
    await publisher.publish_committed(to("a/journal"), {"v": 3})
    lenient = Publisher(appends, json_adapter(), allow_mixed=True)
    await lenient.publish_uncommitted(to("a/journal"), {"v": 1})
    await lenient.publish_committed(to("a/journal"), {"v": 2})


@pytest.mark.parametrize("fast", [True, False])
async def test_concurrent_publishers_keep_the_order(fast: bool):
    appends = FakeAppends(fast=fast)
    publisher = Publisher(appends, json_adapter())

    async def mapping(message: Any):
        await asyncio.sleep(0)
        return f"j/{message['v'] % 2}", NDJSON

    async def publish(number: int):
        for value in range(10):
            await publisher.publish_committed(mapping, {"v": number * 10 + value})

    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(publish(number))
    for journal in ("j/0", "j/1"):
        clocks = [clock for clock, _, _ in lines(appends, journal)]
        assert len(clocks) == 250
        assert clocks == sorted(set(clocks))


async def test_clock_follows_wall_time():
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    before = Clock.now().value
    await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
    await publisher.publish_uncommitted(to("a/journal"), {"v": 2})
    first, second = (clock for clock, _, _ in lines(appends, "a/journal"))
    assert before < first < second < Clock.now().value + 1600
    at = publisher.clock.value
    publisher.build_ack_intents()
    assert publisher.clock.value == at + 160


@pytest.mark.parametrize("form", ["publish_uncommitted", "start_publish_committed"])
async def test_the_event_loop_has_turns_between_large_messages_to_many_journals(form: str):
    publisher: Any = Publisher(FakeAppends(), json_adapter())
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    turn()
    for journal in range(20):
        await getattr(publisher, form)(to(f"part/{journal}"), {"v": "x" * (1 << 19)})
    assert turns >= 20


async def test_cancelled_while_waiting_for_the_journal():
    appends = FakeAppends(fast=False)
    publisher = Publisher(appends, json_adapter())
    await appends.locks.setdefault("a/journal", asyncio.Lock()).acquire()
    task = asyncio.create_task(publisher.publish_uncommitted(to("a/journal"), {"v": 1}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    appends.locks["a/journal"].release()
    assert publisher.build_ack_intents() == []
    assert "a/journal" not in appends.journals


async def test_transaction(tmp_path: Path):
    log = IntentLog(tmp_path / "intents")
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    async with publisher.transaction(intents=log) as transaction:
        await publisher.publish_uncommitted(to("part/1"), {"v": 1})
        await publisher.publish_uncommitted(to("part/2"), {"v": 2})
        transaction.state = {"row": 2}
        with pytest.raises(TransactionError, match="is open in this task"):
            async with publisher.transaction():
                pass
    assert lines(appends, "part/1") == [(160, 1, 1), (480, 2, None)]
    assert lines(appends, "part/2") == [(320, 1, 2), (640, 2, None)]
    assert not log.in_doubt
    record = await IntentLog(log.path).load()
    assert record
    assert record.state == {"row": 2}
    assert record.written
    async with publisher.transaction(intents=log) as transaction:
        assert transaction.state == {"row": 2}
    assert len(lines(appends, "part/1")) == 2
    assert set(os.listdir(tmp_path)) == {"intents", "intents.lock"}  # noqa: PTH208


async def test_recovery_commits_what_was_persisted(tmp_path: Path):
    path = tmp_path / "intents"
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    await publisher.publish_uncommitted(to("part/1"), {"v": 1})
    await publisher.publish_uncommitted(to("part/2"), {"v": 1})
    await IntentLog(path).persist(publisher.build_ack_intents(), b"\x00state")
    # The process dies here.
    log = IntentLog(path)
    assert await log.recover(appends) == b"\x00state"
    assert [flags for _, flags, _ in lines(appends, "part/1")] == [1, 2]
    assert [flags for _, flags, _ in lines(appends, "part/2")] == [1, 2]
    assert (record := await log.load())
    assert record.written
    assert await IntentLog(tmp_path / "none").recover(appends) is None


@pytest.mark.parametrize("fast", [True, False])
async def test_an_exception_abandons(tmp_path: Path, fast: bool):
    appends = FakeAppends(fast=fast)
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    producer = publisher.producer_id
    async with publisher.transaction():
        await publisher.publish_uncommitted(to("a/journal"), {"v": 0})
    log = IntentLog(tmp_path / "log")
    with pytest.raises(KeyError):  # noqa: PT012
        async with publisher.transaction(intents=log, exclusive=True):
            await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
            await publisher.publish_uncommitted(to("b/journal"), {"v": 1})
            raise KeyError
    assert publisher.producer_id != producer
    assert not (tmp_path / "log").exists()
    if fast:
        # Readers drop what's pending, at an acknowledgement which isn't newer than the last.
        assert lines(appends, "a/journal")[-1] == (320, 2, None)
        assert lines(appends, "b/journal")[-1] == (
            get_clock(
                parse_uuid(
                    json.loads(appends.journals["b/journal"].splitlines()[0])["_meta"]["uuid"]
                )
            )
            - 1,
            2,
            None,
        )
    async with publisher.transaction():
        await publisher.publish_uncommitted(to("a/journal"), {"v": 2})
    last = [
        json.loads(line)["_meta"]["uuid"]
        for line in appends.journals["a/journal"].splitlines()[-2:]
    ]
    assert {get_producer_id(parse_uuid(u)) for u in last} == {publisher.producer_id}


async def test_failed_appends_abandon(tmp_path: Path):
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    producer = publisher.producer_id
    appends.failures["a/journal"] = OSError("no")
    with pytest.raises(TransactionError, match=r"nothing of it becomes visible: no$"):
        async with publisher.transaction(intents=IntentLog(tmp_path / "log")):
            await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
    assert publisher.producer_id != producer
    assert not (tmp_path / "log").exists()


async def test_a_transaction_in_doubt_is_recovered_by_the_next_one(tmp_path: Path):
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    log = IntentLog(tmp_path / "log")
    committed = appends.start_append
    with pytest.raises(TransactionError, match=r"may commit, .*broker is gone") as raised:  # noqa: PT012
        async with publisher.transaction(intents=log, exclusive=True) as transaction:
            await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
            transaction.state = {"row": 1}

            async def fail(journal: str, dependencies: Any = ()):
                raise OSError("broker is gone")

            appends.start_append = fail
    appends.start_append = committed
    assert log.in_doubt
    assert raised.value.outcome_unknown
    async with publisher.transaction(intents=log) as transaction:
        assert transaction.state == {"row": 1}
        await publisher.publish_uncommitted(to("a/journal"), {"v": 2})
    assert not log.in_doubt
    flags = [(flags, v) for _, flags, v in lines(appends, "a/journal")]
    assert flags == [(1, 1), (2, None), (1, 2), (2, None)]


async def test_others_wait_while_a_transaction_commits(tmp_path: Path):
    appends = FakeAppends()
    publisher = Publisher(appends, json_adapter())
    log = IntentLog(tmp_path / "log")
    started = asyncio.Event()

    async def another():
        await started.wait()
        await publisher.publish_committed(to("a/journal"), {"v": 2})

    task = asyncio.create_task(another())
    async with publisher.transaction(intents=log):
        await publisher.publish_uncommitted(to("a/journal"), {"v": 1})
        wait = log.persist

        async def persist(intents: Any, state: Any = None):
            started.set()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not task.done()
            await wait(intents, state)

        log.persist = persist
    await task
    assert [(flags, v) for _, flags, v in lines(appends, "a/journal")] == [
        (1, 1),
        (2, None),
        (0, 2),
    ]


async def test_damaged_records_are_refused(tmp_path: Path):
    path = tmp_path / "log"
    await IntentLog(path).persist([], {"row": 1})
    content = path.read_bytes()
    for damaged in (content[:-5], b"", content.replace(b"row", b"rov"), b"\x00" * 10):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="damaged"):
            await IntentLog(path).load()
    path.write_bytes(content + b"writ")
    assert (record := await IntentLog(path).load())
    assert not record.written
    with pytest.raises(StoreError, match="can't be stored"):
        await IntentLog(tmp_path / "other").persist([], {"row": object()})
    with pytest.raises(StoreError):
        await IntentLog(tmp_path / "absent" / "log").persist([], None)


async def test_unusual_framings():
    class Adapter:
        uuid_place = UUIDPlace(b"", b"", text=True)

        def decode(self, frame: Any):
            return frame

        def encode(self, message: Any, uuid: Any):
            return str(uuid).encode() + message

        def uuid(self, message: Any):
            return parse_uuid(message[:36])

        def acknowledgement(self, uuid: Any):
            return str(uuid).encode()

    appends = FakeAppends()
    publisher = Publisher(appends, Adapter())
    fixed = "application/x-protobuf-fixed"
    for body in (b"one", b"two"):
        await publisher.publish_uncommitted(to("a/journal", fixed), body)
    decoder = framing_by_content_type(fixed).decoder()
    decoder.feed(bytes(appends.journals["a/journal"]) + publisher.build_ack_intents()[0].intent)
    frames = decoder.frames()
    assert frames
    payloads = frames.payloads
    assert [p[36:] for p in payloads] == [b"one", b"two", b""]
    assert get_flags(parse_uuid(payloads[2])) == ACK_TXN
    assert "Publisher" in repr(publisher)
    assert msgspec.json.decode(b"{}") == {}
