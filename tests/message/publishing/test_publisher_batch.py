"""Publishing of messages in batches."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import subprocess
import sys

import msgspec
import pydantic
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import (
    Clock,
    Framing,
    Publisher,
    ReadCommittedIter,
    build_uuid,
    csv_adapter,
    framing_by_content_type,
    get_clock,
    get_flags,
    get_producer_id,
    json_adapter,
    parse_uuid,
    protobuf_adapter,
    raw_adapter,
    register_framing,
)
from gazette_aio.protocol.errors import (
    DependencyError,
    EmptyListResponseError,
    MixedTransactionError,
    UnrecognizedContentTypeError,
    ValidationError,
)
from tests.message.fakes import FakeClient
from tests.message.publishing.batch_fakes import BatchAppends
from tests.message.publishing.by_hand import acknowledge
from tests.waiting import eventually, turns

NDJSON, FIXED, CSV = "application/x-ndjson", "application/x-protobuf-fixed", "text/csv"
PRODUCER = b"\x01\x02\x03\x04\x05\x06"
ONE = ("one/journal", NDJSON)


class Event(msgspec.Struct):
    v: int | str | None = None
    amount: float = 0.0


class Pair(msgspec.Struct):
    a: float
    b: float


class Stamped(msgspec.Struct):
    v: int
    uuid: str | None = None


class Tagged(msgspec.Struct, array_like=True):
    v: int


@dataclasses.dataclass
class Row:
    v: int
    label: str


class Model(pydantic.BaseModel):
    v: int
    note: float | None = None


class Headed(Framing):
    """A framing which is more than a suffix."""

    content_type = "application/x-test-headed"

    def encode(self, message):
        if b"unframeable" in message:
            raise ValueError("unframeable")
        return b"<%d>" % len(message) + message

    def decoder(self, offset=0, *, max_frame_bytes=0):
        raise AssertionError


register_framing(Headed())


class Strange:
    """An adapter of none of the kinds which we know."""

    def decode(self, frame):
        return frame.decode()

    def encode(self, message, uuid):
        if message == "bad":
            raise ValueError("can't")
        return f"{message}:{uuid}".encode()

    def uuid(self, message):
        raise AssertionError

    def acknowledgement(self, uuid):
        return str(uuid).encode()


def documents(appends, journal):
    found = []
    for line in bytes(appends.journals.get(journal, b"")).splitlines():
        document = json.loads(line)
        uuid = parse_uuid(document["_meta"]["uuid"])
        found.append((get_clock(uuid), int(get_flags(uuid)), document.get("v")))
    return found


def values(appends, journal):
    return [value for _, _, value in documents(appends, journal)]


texts = st.text(max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), texts, floats, st.booleans())
dicts = st.dictionaries(st.sampled_from(["v", "w", "null", "_meta", "é"]), scalars, max_size=4)
nested = st.one_of(
    dicts,
    st.builds(lambda d, meta: {**d, "_meta": meta}, dicts, dicts),
    st.builds(lambda d: {"_meta": {"uuid": str(build_uuid(PRODUCER, 5, 0)), **d}}, dicts),
    st.just({"v": msgspec.Raw(b'[1,\n{"x":2}]')}),
    st.just({}),
)
cases = st.one_of(
    st.tuples(st.just(json_adapter), st.lists(nested, max_size=6)),
    st.tuples(
        st.just(lambda: json_adapter(Event)),
        st.lists(st.builds(Event, st.integers() | texts, floats | st.none()), max_size=6),
    ),
    st.tuples(
        st.just(lambda: json_adapter(Pair)), st.lists(st.builds(Pair, floats, floats), max_size=6)
    ),
    st.tuples(
        st.just(lambda: json_adapter(Stamped, "uuid")),
        st.lists(st.builds(Stamped, st.integers(), st.none() | texts), max_size=6),
    ),
    st.tuples(
        st.just(lambda: json_adapter(Row, "a.b.c")),
        st.lists(st.builds(Row, st.integers(), texts), max_size=6),
    ),
    st.tuples(
        st.just(lambda: json_adapter(Model)),
        st.lists(st.builds(Model, v=st.integers(), note=st.none() | floats), max_size=6),
    ),
    st.tuples(
        st.just(lambda: raw_adapter("_meta.uuid")),
        st.lists(
            st.sampled_from(
                [b"{}", b'{ "v":1}', b'{"v":"_meta"}', b'{"_meta":{"uuid":"x","k":1}}', b'{"a":2}']
            ),
            max_size=6,
        ),
    ),
    st.tuples(
        st.just(lambda: protobuf_adapter(BytesValue, "value")),
        st.lists(st.builds(BytesValue, value=st.binary(max_size=20)), max_size=6),
    ),
    st.tuples(
        st.just(lambda: csv_adapter(columns=3, uuid_column=1)),
        st.lists(st.lists(texts, min_size=3, max_size=3), max_size=6),
    ),
    st.tuples(st.just(raw_adapter), st.lists(st.binary(max_size=9), max_size=6)),
    st.tuples(st.just(Strange), st.lists(texts.filter(lambda t: t != "bad"), max_size=6)),
)
clocks = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 40).map(lambda n: (7 << 36) - 160 * n))


@given(
    cases,
    clocks,
    st.sampled_from([160, 1, 16]),
    st.sampled_from([NDJSON, FIXED, CSV, Headed.content_type]),
    st.booleans(),
)
def test_a_batch_is_what_its_messages_are(case, clock, tick, content_type, committed):
    make, messages = case
    target = ("one/journal", content_type)

    async def publish(batch):
        appends = BatchAppends()
        publisher = Publisher(
            appends, make(), producer=PRODUCER, clock=Clock(clock, tick=tick), allow_mixed=True
        )
        if batch:
            publish = (
                publisher.publish_committed_batch
                if committed
                else publisher.publish_uncommitted_batch
            )
            published = await publish(target, messages)
            assert list(published) == (["one/journal"] if messages else [])
        else:
            for message in messages:
                publish = (
                    publisher.publish_committed if committed else publisher.publish_uncommitted
                )
                await publish(lambda _message: target, message)
        return bytes(appends.journals.get("one/journal", b"")), repr(publisher)

    outcomes = []
    for batch in (False, True):
        try:
            outcomes.append(asyncio.run(publish(batch)))
        except Exception as error:  # noqa: BLE001 - both have to fail alike.
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


async def test_messages_go_to_their_journals_in_their_order():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    messages = [{"v": number} for number in range(1000)]

    def mapping(message):
        return f"part/{message['v'] % 3 if message['v'] > 500 else 0}", NDJSON

    published = await publisher.publish_uncommitted_batch(mapping, messages)
    assert list(published) == ["part/0", "part/1", "part/2"]
    assert appends.released == ["part/0", "part/1", "part/2"]  # One append of each.
    for journal, append in published.items():
        await append
        wanted = [m["v"] for m in messages if mapping(m)[0] == journal]
        assert values(appends, journal) == wanted
        stamps = [clock for clock, _, _ in documents(appends, journal)]
        assert stamps == sorted(set(stamps))
    intents = publisher.build_ack_intents()
    assert [intent.journal for intent in intents] == ["part/0", "part/1", "part/2"]
    # Later single messages follow.
    await publisher.publish_uncommitted(mapping, {"v": 0})
    assert documents(appends, "part/0")[-1][0] > 160 * 1000


@pytest.mark.parametrize("kind", ["plain", "async", "mixed", "pair"])
async def test_mappings(kind):
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())

    async def later(message):
        await asyncio.sleep(0)
        return ("even/part" if message["v"] % 2 == 0 else "odd/part"), NDJSON

    def mixed(message):
        return ("even/part", NDJSON) if message["v"] % 2 == 0 else later(message)

    mapping = {
        "plain": lambda m: ("even/part" if m["v"] % 2 == 0 else "odd/part", NDJSON),
        "async": later,
        "mixed": mixed,
        "pair": ONE,
    }[kind]
    await publisher.publish_committed_batch(mapping, [{"v": n} for n in range(200)])
    if kind == "pair":
        assert values(appends, "one/journal") == list(range(200))
    else:
        assert values(appends, "even/part") == list(range(0, 200, 2))
        assert values(appends, "odd/part") == list(range(1, 200, 2))


async def test_an_empty_batch_does_nothing():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    assert await publisher.publish_committed_batch(ONE, []) == {}
    assert await publisher.publish_uncommitted_batch(None, ()) == {}
    assert appends.started == 0
    assert publisher.clock.value == 0


class Checked(dict):
    def validate(self):
        if self["v"] == 700:
            raise ValueError("whoops!")


def raising(error, at):
    def mapping(message):
        if message["v"] == at:
            raise error
        return ONE

    return mapping


async def raise_later(message):
    await asyncio.sleep(0)
    if message["v"] == 700:
        raise EmptyListResponseError("empty ListResponse")
    return ONE


def numbered(count=1000, **changes):
    return [{"v": number} | changes.get(f"at_{number}", {}) for number in range(count)]


@pytest.mark.parametrize(
    ("adapter", "mapping", "messages", "error"),
    [
        (json_adapter(), ONE, numbered(at_700={"x": float("nan")}), ValidationError),
        (json_adapter(), ONE, numbered(at_700={"x": object()}), ValidationError),
        (json_adapter(), ONE, [Checked(m) for m in numbered()], ValueError),
        (json_adapter(), raising(KeyError("no"), 700), numbered(), KeyError),
        (json_adapter(), raise_later, numbered(), EmptyListResponseError),
        (
            json_adapter(),
            lambda m: (f"part/{m['v'] % 2}", NDJSON),
            numbered(at_700={"x": float("inf")}),
            ValidationError,
        ),
        (
            json_adapter(),
            ("one/journal", Headed.content_type),
            numbered(at_700={"x": "unframeable"}),
            ValueError,
        ),
        (json_adapter(Tagged), ONE, [Event(1)] * 700 + [Tagged(1)], ValidationError),
        (Strange(), ONE, ["good"] * 700 + ["bad"], ValueError),
        (csv_adapter(columns=2), ONE, [["", "a"]] * 700 + [["a"]], ValidationError),
    ],
)
async def test_errors_name_the_message_and_nothing_is_published(adapter, mapping, messages, error):
    appends = BatchAppends()
    publisher = Publisher(appends, adapter, clock=Clock())
    with pytest.raises(error) as raised:
        await publisher.publish_uncommitted_batch(mapping, messages)
    assert any("message 700 of" in note for note in raised.value.__notes__)
    assert appends.journals == {}
    assert appends.started == 0
    assert publisher.clock.value == 0
    assert publisher.build_ack_intents() == []


@pytest.mark.parametrize("target", [("one/journal", "application/unknown"), ("a journal", NDJSON)])
async def test_all_journals_are_checked_before_anything_is_published(target):
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    with pytest.raises((UnrecognizedContentTypeError, ValidationError)):
        await publisher.publish_committed_batch(
            lambda message: target if message["v"] == 9 else ONE, numbered(10)
        )
    assert appends.started == 0


async def test_bytes_are_in_the_order_of_clocks_among_concurrent_publishers():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    held = set()
    start = appends.start_append

    async def start_append(journal, dependencies=()):
        append = await start(journal, dependencies)
        task = asyncio.current_task()
        assert task not in held, "two appends are held at a time"
        held.add(task)
        release = append.release

        def released():
            held.discard(task)
            release()

        append.release = released
        return append

    appends.start_append = start_append

    async def batches(order):
        for _ in range(5):
            await publisher.publish_committed_batch(
                lambda m: (f"part/{order[m['v'] % 2]}", NDJSON), numbered(300)
            )

    async def singles():
        for number in range(100):
            await publisher.publish_committed(
                lambda m: (f"part/{m['v'] % 2}", NDJSON), {"v": number}
            )
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for order in ((0, 1), (1, 0), (0, 1)):
            group.create_task(batches(order))
        group.create_task(singles())
    for journal in ("part/0", "part/1"):
        stamps = [clock for clock, _, _ in documents(appends, journal)]
        assert len(stamps) == 3 * 5 * 150 + 50
        assert stamps == sorted(set(stamps))


async def test_the_event_loop_has_turns():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(count())
    await publisher.publish_uncommitted_batch(
        ONE, [{"v": n, "x": "x" * 100} for n in range(50_000)]
    )
    task.cancel()
    # It takes 20 ms at least, and there's a turn in about each millisecond.
    assert turns >= 10


@pytest.mark.parametrize("committed", [True, False])
async def test_a_cancellation_at_every_suspension(committed, monkeypatch):
    """Whole journals are published, or nothing of them, and the Publisher goes on."""
    # A slow machine would have more suspensions, at other points each time.
    monkeypatch.setattr("gazette_aio.aio.turns.SLICE_SECONDS", 1e9)
    done = False
    seen = set()
    for point in range(200):
        client = FakeClient({"part/0": NDJSON, "part/1": NDJSON})
        appends = BatchAppends(client)
        publisher = Publisher(appends, json_adapter())
        batch = (
            publisher.publish_committed_batch if committed else publisher.publish_uncommitted_batch
        )

        async def mapping(message):
            await asyncio.sleep(0)
            return f"part/{message['v'] % 2}", NDJSON

        task = asyncio.create_task(batch(mapping, numbered(8)))
        for _ in range(point):
            await asyncio.sleep(0)
        done = task.done()
        task.cancel()
        if not done:
            with pytest.raises(asyncio.CancelledError):
                await task
        found = {journal: values(appends, journal) for journal in ("part/0", "part/1")}
        assert found["part/0"] in ([], [0, 2, 4, 6])
        assert found["part/1"] in ([], [1, 3, 5, 7])
        seen.add((bool(found["part/0"]), bool(found["part/1"])))
        assert not any(lock.locked() for lock in appends.locks.values())
        pending = [] if committed else [name for name, rows in found.items() if rows]
        assert [intent.journal for intent in publisher.build_ack_intents()] == pending
        async with publisher.transaction():
            await publisher.publish_uncommitted_batch(ONE, [{"v": "next"}])
        if done:
            break
    assert done
    assert seen == {(False, False), (True, False), (True, True)}


async def test_cancelled_while_it_writes(monkeypatch):
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    monkeypatch.setattr("gazette_aio.aio.turns.SLICE_SECONDS", 0)
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.FIRST_ROWS", 1)
    held = asyncio.Event()
    start = appends.start_append

    async def start_append(journal, dependencies=()):
        append = await start(journal, dependencies)
        held.set()
        return append

    appends.start_append = start_append
    task = asyncio.create_task(publisher.publish_uncommitted_batch(ONE, numbered(20)))
    await held.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [journal for journal, _ in appends.rolled_back] == ["one/journal"]
    assert appends.journals == {}
    assert not appends.locks["one/journal"].locked()
    assert publisher.build_ack_intents() == []


@pytest.mark.parametrize("abandon_at", [1, 5])
async def test_messages_are_of_the_producer_which_is_acknowledged(monkeypatch, abandon_at):
    """What is abandoned while a batch is written isn't that batch."""
    client = FakeClient({"one/journal": NDJSON})
    appends = BatchAppends(client)
    publisher = Publisher(appends, json_adapter())
    monkeypatch.setattr("gazette_aio.aio.turns.SLICE_SECONDS", 0)
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.FIRST_ROWS", 1)
    before = publisher.producer_id
    held = await appends.start_append("one/journal")
    task = asyncio.create_task(publisher.publish_uncommitted_batch(ONE, numbered(20)))
    for _ in range(100):
        await asyncio.sleep(0)
    held.release()
    for _ in range(abandon_at):
        await asyncio.sleep(0)
    publisher.abandon()
    await task
    assert publisher.producer_id != before
    producers = {
        get_producer_id(parse_uuid(json.loads(line)["_meta"]["uuid"]))
        for line in client.journals["one/journal"].splitlines()
    }
    assert producers == {publisher.producer_id}
    await acknowledge(publisher)
    async with ReadCommittedIter(
        ["one/journal"], json_adapter(), client=client, skip_acks=True
    ) as messages:
        assert [envelope.message["v"] async for envelope in messages] == list(range(20))


async def test_a_transaction_has_all_of_a_batch_or_nothing():
    client = FakeClient({"part/0": NDJSON, "part/1": NDJSON})
    appends = BatchAppends(client)
    publisher = Publisher(appends, json_adapter())

    def mapping(message):
        return f"part/{message['v'] % 2}", NDJSON

    held = await appends.start_append("part/1")
    async with publisher.transaction(exclusive=True):
        task = asyncio.create_task(publisher.publish_uncommitted_batch(mapping, numbered(10)))
        await eventually(lambda: "part/0" in appends.released)
        asyncio.get_running_loop().call_soon(held.release)
        # The end of the block waits for the batch which is under way.
    assert task.done()
    for journal in ("part/0", "part/1"):
        found = documents(appends, journal)
        assert [flags for _, flags, _ in found] == [1] * 5 + [2]


async def test_mixing_is_refused():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    await publisher.publish_uncommitted_batch(("part/1", NDJSON), [{"v": 1}])
    started = appends.started
    with pytest.raises(MixedTransactionError):
        await publisher.publish_committed_batch(
            lambda m: (f"part/{m['v']}", NDJSON), [{"v": 0}, {"v": 1}]
        )
    assert appends.started == started
    # It's looked at once more when the journal is locked.
    publisher.build_ack_intents()
    held = await appends.start_append("part/1")
    first = asyncio.create_task(publisher.publish_uncommitted_batch(("part/1", NDJSON), [{"v": 2}]))
    await asyncio.sleep(0)
    second = asyncio.create_task(publisher.publish_committed_batch(("part/1", NDJSON), [{"v": 3}]))
    for _ in range(3):
        await asyncio.sleep(0)
    held.release()
    await first
    with pytest.raises(MixedTransactionError):
        await second
    assert values(appends, "part/1") == [1, 2]


async def test_long_batches_are_several_appends(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.FIRST_ROWS", 1)
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.MAX_ROWS", 1)
    monkeypatch.setattr("gazette_aio.message.publishing.routes.CROWD_BYTES", 200)
    appends = BatchAppends(cutoff_bytes=1000)
    publisher = Publisher(appends, json_adapter(), clock=Clock())
    published = await publisher.publish_uncommitted_batch(ONE, numbered(100))
    assert values(appends, "one/journal") == list(range(100))
    assert 5 < len(appends.released) < 10
    assert appends.drained > 10
    # The append which is returned is the last.
    assert published["one/journal"].commit_range[1] == len(appends.journals["one/journal"])


@pytest.mark.parametrize("committed", [True, False])
async def test_an_error_which_is_cleared_amid_a_batch_is_told(monkeypatch, committed):
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.MAX_ROWS", 1)
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.FIRST_ROWS", 1)
    appends = BatchAppends(cutoff_bytes=100)
    publisher = Publisher(appends, json_adapter())
    start = appends.start_append

    async def start_append(journal, dependencies=()):
        append = await start(journal, dependencies)
        if appends.started == 3:
            appends.clear_error(journal, OSError("broken"))
        return append

    appends.start_append = start_append
    batch = publisher.publish_committed_batch if committed else publisher.publish_uncommitted_batch
    with pytest.raises(DependencyError, match="may be missing"):
        await batch(ONE, numbered(20))
    assert not appends.locks["one/journal"].locked()
    if not committed:
        with pytest.raises(DependencyError, match="may be missing"):
            await publisher.flush()


async def test_an_error_which_is_cleared_while_a_batch_is_held_fails_the_transaction(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.publishing.encoding.FIRST_ROWS", 1)
    monkeypatch.setattr("gazette_aio.aio.turns.SLICE_SECONDS", 0)
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    task = asyncio.create_task(publisher.publish_uncommitted_batch(ONE, numbered(50)))
    # The lock is held for a few turns, which a longer pause would miss.
    while not (lock := appends.locks.get("one/journal")) or not lock.locked():
        await turns(1)
    await asyncio.sleep(0)
    appends.clear_error("one/journal", OSError("broken"))
    await task
    with pytest.raises(DependencyError, match="may be missing"):
        await publisher.flush()
    with pytest.raises(DependencyError, match="may be missing"):
        publisher.build_ack_intents()


async def test_clock_follows_wall_time():
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    before = Clock.now().value
    await publisher.publish_uncommitted_batch(ONE, numbered(3))
    first, second, third = (clock for clock, _, _ in documents(appends, "one/journal"))
    assert before < first
    assert (second - first, third - second) == (160, 160)
    assert third == publisher.clock.value


def test_batches_of_messages_need_no_numpy():
    program = """
import asyncio, sys
import gazette_aio.message as m
from tests.message.publishing.batch_fakes import BatchAppends
publisher = m.Publisher(BatchAppends(), m.json_adapter())
asyncio.run(publisher.publish_committed_batch(("one/journal", "application/x-ndjson"), [{}]))
assert not {"numpy", "pyarrow"} & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_fixed_frames():
    appends = BatchAppends()
    publisher = Publisher(appends, protobuf_adapter(BytesValue, "value"), clock=Clock())
    await publisher.publish_uncommitted_batch(("one/journal", FIXED), [BytesValue()] * 3)
    decoder = framing_by_content_type(FIXED).decoder()
    decoder.feed(bytes(appends.journals["one/journal"]))
    found = [BytesValue.FromString(payload).value for payload in decoder.frames().payloads]
    assert found == [build_uuid(publisher.producer_id, n, 1).bytes for n in (160, 320, 480)]


async def test_targets_of_many_messages_do_not_pile_up() -> None:
    """The garbage collector runs after so many new objects, and looks at all of them."""
    collected: list[str] = []

    def note(phase: str, _: object) -> None:
        collected.append(phase)

    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter())
    journal, content_type = ONE
    messages: list[object] = [{"number": number} for number in range(20_000)]
    mapped = 0

    def mapping(_: object) -> tuple[str, str]:
        nonlocal mapped
        mapped += 1
        if mapped == len(messages):
            gc.callbacks.remove(note)
        return journal, content_type

    gc.collect()
    gc.callbacks.append(note)
    await publisher.publish_uncommitted_batch(mapping, messages)
    assert mapped == len(messages)
    assert len(collected) < 20
