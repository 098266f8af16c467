"""Messages that can't be consumed: what applications decide, and that nothing remains of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer import ConsumerOptions, DeadLetter, Fail, Retry, Service, Skip
from gazette_aio.consumer.api import apply_shards, connect_shards
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.message import ReadCommittedIter, json_adapter
from gazette_aio.protocol import Status
from gazette_aio.protocol.consumer import ApplyRequest, ReplicaStatus
from gazette_aio.protocol.errors import (
    ConfigurationError,
    DependencyError,
    FencedError,
    GazetteError,
    TransactionError,
)
from gazette_aio.protocol.status_errors import JournalNotFoundError
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests import extent
from tests.consumer.recoverylog.player.logs import create_log
from tests.consumer.service.applications import publish as publish_numbers
from tests.consumer.service.poisoned import (
    DEAD,
    LINES,
    LOG,
    OUT,
    SHARD,
    SOURCE,
    Poisoned,
    PoisonedAsync,
    PoisonedBatch,
    PoisonedMapping,
    PoisonedThread,
    shard_spec,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from gazette_aio.client import JournalClient
    from gazette_aio.testing import ConsumerHarness

ROOT = Path(__file__).parents[3]
FORMS = [Poisoned, PoisonedAsync, PoisonedBatch, PoisonedThread]


async def create(client: JournalClient, *journals: str) -> None:
    specs = [journal_spec(name, labels={"content-type": LINES}) for name in journals]
    await create_journals(client, *specs)


@pytest.fixture
async def harness() -> AsyncIterator[ConsumerHarness]:
    async with consumer_harness() as harness:
        await create(harness.client, SOURCE, OUT, DEAD)
        yield harness


async def publish(client: JournalClient, numbers: Iterable[object]) -> None:
    await publish_numbers(client, numbers, SOURCE)


async def committed(client: JournalClient, journal: str) -> list[dict[str, Any]]:
    source = ReadCommittedIter(journal, json_adapter(), client=client, skip_acks=True)
    async with source as messages:
        return [envelope.message async for envelope in messages]


async def shipped(client: JournalClient) -> list[int]:
    return [message["number"] for message in await committed(client, OUT)]


def numbers_of(application: Poisoned) -> list[int]:
    _, _, states = application.database.take(f"/consumer.test/items/{SHARD}")
    return states[0]["numbers"] if states else []


async def run(harness: ConsumerHarness, application: Poisoned, **fields: Any) -> None:
    await harness.start_member(application)
    await harness.create_shards(shard_spec(**fields))


async def failed(harness: ConsumerHarness) -> str:
    """Wait until the shard has failed, and return the text of its status."""
    (member,) = harness.members

    def statuses() -> list[ReplicaStatus]:
        found = [each.status for each in member.session.group.assignments(SHARD)]
        return [each for each in found if each.code == ReplicaStatus.FAILED]

    await eventually(statuses)
    return statuses()[0].errors[0]


@pytest.mark.parametrize("form", [*FORMS, PoisonedMapping])
async def test_skipped_messages_leave_no_effects(
    harness: ConsumerHarness, form: type[Poisoned]
) -> None:
    application = form(3, 4, 9, decide=lambda _: Skip())
    await publish(harness.client, range(1, 8))
    await run(harness, application)
    await publish(harness.client, (8, 9, 10))
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 2, 5, 6, 7, 8, 10]
    assert await shipped(harness.client) == [1, 2, 5, 6, 7, 8, 10]
    assert application.decided == [(number, "KeyError('qty')") for number in (3, 4, 9)]


async def to_dead(letter: dict[str, Any]) -> tuple[str, str]:
    assert letter["error"]["type"] == "KeyError"
    return DEAD, LINES


@pytest.mark.parametrize(("form", "to"), [*((form, DEAD) for form in FORMS), (Poisoned, to_dead)])
async def test_dead_letters_are_published_once(
    harness: ConsumerHarness, form: type[Poisoned], to: Any
) -> None:
    application = form(3, 4, decide=lambda _: DeadLetter(to))
    await publish(harness.client, range(1, 7))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 2, 5, 6]
    assert await shipped(harness.client) == [1, 2, 5, 6]
    letters = await committed(harness.client, DEAD)
    source = ReadCommittedIter(SOURCE, json_adapter(), client=harness.client, skip_acks=True)
    async with source as messages:
        sent = {envelope.message["number"]: envelope async for envelope in messages}
    for letter, number in zip(letters, (3, 4), strict=True):
        del letter["_meta"]
        envelope = sent[number]
        assert json.loads(letter.pop("content")) == envelope.message
        assert letter == {
            "shard": SHARD,
            "journal": SOURCE,
            "begin": envelope.begin,
            "end": envelope.end,
            "uuid": str(envelope.uuid),
            "error": {"type": "KeyError", "text": "'qty'"},
            "encoding": "utf-8",
        }


@pytest.mark.parametrize("form", FORMS)
async def test_retries_repeat_the_transaction(
    harness: ConsumerHarness, form: type[Poisoned]
) -> None:
    application = form(3, decide=lambda _: Retry(times=3, first_seconds=0))
    left = [2]

    def fail(number: int) -> None:
        if number == 3 and left[0]:
            left[0] -= 1
            raise OSError("the database is away")

    application.failing = fail
    if application.__class__ in (PoisonedBatch, PoisonedThread):
        left[0] += 1  # The first failure is that of the batch.
    await publish(harness.client, range(1, 7))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 2, 3, 4, 5, 6]
    assert await shipped(harness.client) == [1, 2, 3, 4, 5, 6]
    assert [number for number, _ in application.decided] == [3, 3]
    # Earlier messages were repeated once, and then had committed.
    assert application.calls.count(2) <= 3


async def test_retries_are_bounded(harness: ConsumerHarness) -> None:
    application = Poisoned(2, decide=lambda _: Retry(times=2, first_seconds=0, then=Skip()))
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 3]
    assert application.calls.count(2) == 3


def test_pauses_grow() -> None:
    retry = Retry(times=70, first_seconds=0.5, last_seconds=3)
    assert [retry.pause_seconds(n) for n in (1, 2, 3, 4, 70, 71)] == [0.5, 1, 2, 3, 3, None]
    assert Retry(times=10**9).pause_seconds(10**9) == 30


@pytest.mark.parametrize(
    "wrong",
    [{"times": 0}, {"first_seconds": -1}, {"last_seconds": float("inf")}, {"first_seconds": 99}],
)
def test_unbounded_retries_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Retry(**wrong)


async def test_another_member_takes_over_during_a_pause(harness: ConsumerHarness) -> None:
    application = Poisoned(2, decide=lambda _: Retry(first_seconds=1e6, last_seconds=1e6))
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    (pausing,) = harness.members
    await eventually(lambda: application.decided)
    await eventually(lambda: len(application.ends) == 1)
    successor = Poisoned(2, decide=lambda _: Skip())
    successor.database = application.database
    await harness.start_member(successor)
    assert await harness.stop_member(pausing)
    await harness.wait_for_shards()
    assert numbers_of(successor) == [1, 3]
    assert await shipped(harness.client) == [1, 3]


PLACE = rf"{SOURCE} at offset \d+ \(UUID [0-9a-f-]{{36}}\)"


class Unprepared(Poisoned):
    on_message_error = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "application",
    [
        Poisoned(2, decide=lambda _: Fail()),
        Poisoned(2, decide=lambda _: Retry(times=1, first_seconds=0)),
        Unprepared(2),
    ],
)
async def test_a_status_names_the_message(
    harness: ConsumerHarness, application: Poisoned, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    text = await failed(harness)
    assert re.fullmatch(rf"{PLACE}: consume_message\(\): KeyError: 'qty'", text)
    assert f"shard {SHARD} failed: {text}" in caplog.text


class Order(msgspec.Struct):
    number: int


BAD = {
    "no JSON": b"garbage\n",
    "no UTF-8": b"\xff\xfe\n",
    "no UUID": b'{"_meta": {"uuid": "xyz"}, "number": 2}\n',
}


@pytest.mark.parametrize("content", BAD)
async def test_undecodable_messages_become_dead_letters(
    harness: ConsumerHarness, content: str
) -> None:
    line = BAD[content]
    application = Poisoned(decide=lambda _: DeadLetter(DEAD))
    await publish(harness.client, [1])
    begin = await head_of(harness.client, SOURCE)
    await harness.client.append(SOURCE, line)
    await publish(harness.client, [3])
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 3]
    (letter,) = await committed(harness.client, DEAD)
    assert (letter["begin"], letter["end"]) == (begin, begin + len(line))
    assert letter["uuid"] is None
    if content == "no UTF-8":
        assert (letter["content"], letter["encoding"]) == ("//4K", "base64")
    else:
        assert (letter["content"], letter["encoding"]) == (line.decode(), "utf-8")
    assert application.calls == [1, 3]  # Nothing was repeated.


async def test_a_dead_letter_of_a_suspended_source() -> None:
    async with (
        EmbeddedBroker() as broker,
        connect(broker.endpoint) as client,
        consumer_harness(client=client) as harness,
    ):
        await create(client, SOURCE, OUT, DEAD)
        await publish(client, (1, 2, 3))
        # Reads of sources have no end.
        with broker.control.once(
            "read", status=Status.SUSPENDED, where=lambda request: request.end_offset > 0
        ) as suspended:
            await run(harness, Poisoned(2, decide=lambda _: DeadLetter(DEAD)))
            await eventually(lambda: suspended.hits)
        await harness.wait_for_shards()
        (letter,) = await committed(client, DEAD)
        assert json.loads(letter["content"])["number"] == 2


@pytest.mark.parametrize("content", BAD)
async def test_undecodable_messages_fail_the_shard(harness: ConsumerHarness, content: str) -> None:
    line = BAD[content]
    await harness.client.append(SOURCE, line)
    await run(harness, Unprepared())
    text = await failed(harness)
    assert re.match(rf"{SOURCE} at offset 0 can't be decoded: \w+Error: ", text)


class WithTypes(Poisoned):
    def adapter(self, spec: Any) -> Any:
        return json_adapter(Order)

    def effects(self, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.message is not None:
            store.state["numbers"].append(envelope.message.number)


async def test_messages_of_another_type_are_skipped(harness: ConsumerHarness) -> None:
    application = WithTypes(decide=lambda _: Retry(times=2, first_seconds=0, then=Skip()))
    await publish(harness.client, (1, "two", 3, "four", 5))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 3, 5]
    assert len(application.decided) == 6


async def test_a_dead_letter_that_cant_be_published_fails_the_shard(
    harness: ConsumerHarness,
) -> None:
    await publish(harness.client, (1, 2, 3))
    application = Poisoned(2, decide=lambda _: DeadLetter("missing"))
    await run(harness, application)
    text = await failed(harness)
    assert re.fullmatch(
        rf"dead letter of {PLACE}, KeyError: 'qty': "
        r"JournalNotFoundError: JOURNAL_NOT_FOUND \(journal missing\)",
        text,
    )
    assert 2 not in numbers_of(application)


def raise_away(_: Exception) -> None:
    raise OSError("away")


@pytest.mark.parametrize(
    ("decide", "text"),
    [
        (
            lambda _: "skip",
            "TypeError: it returned 'skip', and not Fail, Retry, Skip or DeadLetter",
        ),
        (lambda _: None, "TypeError: it returned None, and not Fail, Retry, Skip or DeadLetter"),
        (raise_away, "OSError: away"),
    ],
)
async def test_errors_of_a_policy_fail_the_shard(
    harness: ConsumerHarness, decide: Any, text: str
) -> None:
    await publish(harness.client, (1, 2, 3))
    await run(harness, Poisoned(2, decide=decide))
    failure = await failed(harness)
    assert failure.endswith(f": consume_message(): KeyError: 'qty'; on_message_error(): {text}")


@pytest.mark.parametrize(
    "error",
    [
        TransactionError("abandoned"),
        FencedError("another process"),
        DependencyError("earlier messages"),
    ],
)
async def test_errors_of_the_shard_are_no_errors_of_messages(
    harness: ConsumerHarness, error: GazetteError
) -> None:
    application = Poisoned(decide=lambda _: Skip())

    def fail(number: int) -> None:
        raise error

    application.failing = fail
    await publish(harness.client, [1])
    await run(harness, application)
    assert str(error) in await failed(harness)
    assert application.decided == []


class Misdirected(PoisonedAsync):
    """Publishes a message to a journal that is missing, and is told so, or fails before."""

    is_told = True

    async def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.message.get("number") in self.poison:
            pending = await publisher.publish_uncommitted(lambda _: ("missing", LINES), {})
            if self.is_told:
                await pending
        await super().consume_message(shard, store, envelope, publisher)


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_message_that_couldnt_be_published_is_skipped(
    harness: ConsumerHarness, is_told: bool
) -> None:
    application = Misdirected(2, decide=lambda _: Skip())
    application.is_told = is_told
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 3]
    assert await shipped(harness.client) == [1, 3]


async def test_a_message_is_published_once_its_journal_exists(harness: ConsumerHarness) -> None:
    application = Misdirected(2)
    application.failing = lambda _: None

    async def decide(shard: Any, envelope: Any, error: Exception) -> Retry:
        assert isinstance(error, JournalNotFoundError)
        await create(harness.client, "missing")
        return Retry(first_seconds=0)

    application.on_message_error = decide  # type: ignore[method-assign]
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    await harness.wait_for_shards()
    assert numbers_of(application) == [1, 2, 3]
    assert await shipped(harness.client) == [1, 2, 3]
    assert len(await committed(harness.client, "missing")) == 1


class Straying(PoisonedAsync):
    """Leaves a task behind that publishes after its hook has failed."""

    async def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.message.get("number") == 2:
            self.stray = asyncio.create_task(self._stray(publisher))
        await super().consume_message(shard, store, envelope, publisher)

    async def _stray(self, publisher: Any) -> None:
        await eventually(lambda: 3 in self.calls)
        await publisher.publish_uncommitted(lambda _: (OUT, LINES), {"number": -1})


async def test_a_task_of_a_failed_hook_cant_publish(harness: ConsumerHarness) -> None:
    application = Straying(2, decide=lambda _: Skip())
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    await harness.wait_for_shards()
    with pytest.raises(TransactionError, match="nothing more is published"):
        await application.stray
    await publish(harness.client, [4])
    await harness.wait_for_shards()
    assert await shipped(harness.client) == [1, 3, 4]


async def test_the_end_of_a_repeated_transaction_is_told(harness: ConsumerHarness) -> None:
    application = Poisoned(2, decide=lambda _: Skip())
    await publish(harness.client, (1, 2, 3))
    await run(harness, application)
    await harness.wait_for_shards()
    errors = [commit.exception() for commit in application.ends]
    assert "KeyError: 'qty'; the transaction is repeated" in str(errors[0])
    assert errors[1:]
    assert set(errors[1:]) == {None}


async def test_decisions_are_logged_and_counted(
    harness: ConsumerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = ConsumerMetrics(CollectorRegistry())
    options = ConsumerOptions(prefix="/metrics.test", bind="127.0.0.1", host="127.0.0.1")
    application = Poisoned(2, decide=lambda _: Retry(times=1, first_seconds=0, then=Skip()))
    await publish(harness.client, (1, 2, 3))

    def count(action: str) -> float | None:
        labels = {"shard": f"/metrics.test/items/{SHARD}", "action": action}
        return metrics.registry.get_sample_value("gazette_shard_message_errors_total", labels)

    with caplog.at_level(logging.WARNING, "gazette_aio.consumer"):
        async with (
            Service(application, harness.store, harness.client, options, metrics=metrics) as member,
            connect_shards(member.endpoint) as shards,
        ):
            await apply_shards(shards, [ApplyRequest.Change(upsert=shard_spec())])
            await eventually(lambda: count("skip"))
            assert [count(action) for action in ("retry", "skip", "fail")] == [1, 1, None]
    place = rf"shard {SHARD}: {PLACE}: consume_message\(\): KeyError: 'qty'"
    lines = [record for record in caplog.records if record.name.endswith(".message_errors")]
    texts = [record.getMessage() for record in lines]
    assert re.fullmatch(rf"{place}; retry 1 of 1 follows in 0 s", texts[0])
    assert re.fullmatch(rf"{place}; the message is skipped", texts[1])
    assert lines[0].__dict__["journal"] == SOURCE
    assert count("skip") is None


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("kind", ["log", "sql"])
async def test_kills_at_many_steps(kind: str, tmp_path: Path) -> None:
    """A process that dies leaves nothing twice, and nothing of failed messages."""
    stride = extent.of(17, 1)
    async with EmbeddedBroker() as broker, connect(broker.endpoint) as client:
        await create(client, SOURCE, OUT, DEAD)
        await create_log(client, LOG)

        async def consume(kill_at: int) -> str | None:
            """Consume all in a process, and return what it says, or None if it's killed."""
            end = str(await head_of(client, SOURCE))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.consumer.service.poisoned"),
                *(kind, broker.endpoint, str(tmp_path), str(kill_at), end),
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            said, _ = await process.communicate()
            assert process.returncode in (0, -signal.SIGKILL)
            return None if process.returncode else said.decode()

        wanted: list[int] = []
        kill_at, first, said = 0, 0, None
        while said is None:
            await publish(client, range(first + 1, first + 6))
            wanted += [first + 1, first + 2, first + 5]
            first += 10
            kill_at += stride
            if (said := await consume(kill_at)) is None:
                state = await consume(0)
                assert state is not None
                assert json.loads(state) == wanted
        assert json.loads(said) == wanted
        assert sorted(await shipped(client)) == wanted
        letters = [json.loads(each["content"]) for each in await committed(client, DEAD)]
        assert [each["number"] for each in letters] == list(range(3, first, 10))
        assert kill_at > 2 * stride
