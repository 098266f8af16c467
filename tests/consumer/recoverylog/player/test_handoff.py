"""Players that take a log over, also at the same time and from one who still records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import (
    Author,
    PlaybackError,
    PlaybackProgress,
    Player,
    RecordedDir,
    Recorder,
    RecorderFencedError,
    Resolved,
)
from gazette_aio.consumer.recoverylog.playing.reader import READ_AHEAD_BYTES
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.player.logs import (
    AUTHOR,
    LOG,
    LogWriter,
    create_log,
    files_of,
    is_there,
    recover,
    written,
)
from tests.waiting import eventually

HINTS = FSMHints(log=LOG)
JUNK = b"... junk ..."


async def take_over(
    client: JournalClient, directory: Path, author: int, hints: FSMHints = HINTS
) -> Resolved:
    player = Player()
    player.inject_handoff(author)
    return await player.play(hints, directory, client)


async def record(client: JournalClient, author: int, content: bytes) -> pb.AppendResponse:
    """Append as a recorder does, which must be the owner of the log."""
    registers = pb.LabelSelector(include=Author(author).fence())
    return await client.append(pb.AppendRequest(journal=LOG, check_registers=registers), content)


async def registers(client: JournalClient) -> list[tuple[str, str]]:
    response = await client.append(LOG)
    return [(label.name, label.value) for label in response.registers.labels]


async def test_an_empty_log_is_taken_over(client: JournalClient, directory: Path):
    await create_log(client)
    resolved = await take_over(client, directory, 1337)
    assert (resolved.fsm.next_seq_no, files_of(directory)) == (2, {})
    assert await registers(client) == [("author", "19p")]


async def test_the_new_author_goes_on(client: JournalClient, directory: Path):
    old = await written(client)
    resolved = await take_over(client, directory / "1", 1337)
    assert resolved.fsm.next_seq_no == old.fsm.next_seq_no + 1
    new = LogWriter(resolved.read_through, fsm=resolved.fsm, author=1337)
    new.files = old.files
    await record(client, 1337, new.write("/file", b" world"))
    # What the old one still writes is refused, or ignored if it doesn't check.
    with pytest.raises(pb.RegisterMismatchError):
        await record(client, AUTHOR, b"late")
    await client.append(LOG, old.write("/file", b" lost"))
    new.files[1] = bytearray(b"hello world")
    recovered = await recover(client, directory / "2")
    assert files_of(recovered.directory) == new.expected()
    assert recovered.fsm.build_hints(LOG) == new.hints


async def test_a_lost_race(broker: EmbeddedBroker, client: JournalClient, directory: Path):
    """What commits just before the handoff is played, and the handoff is tried again."""
    writer = await written(client)

    def is_handoff(request: pb.AppendRequest) -> bool:
        return bool(request.union_registers.labels)

    with broker.control.hold("append", where=is_handoff) as held:
        first = asyncio.create_task(take_over(client, directory / "1", 1337))
        await held.held()
        second = asyncio.create_task(take_over(client, directory / "2", 1338))
        await held.held(2)
        await client.append(LOG, JUNK + writer.write("/file", b" world"))
    resolved = [await first, await second]
    await client.append(LOG, writer.write("/file", b" lost"))
    writer.files[1] = bytearray(b"hello world")
    for each in resolved:
        assert files_of(each.directory) == writer.expected()
    third = await recover(client, directory / "3")
    assert files_of(third.directory) == writer.expected()
    owner = max(resolved, key=lambda each: each.fsm.next_seq_no)
    assert third.fsm.build_hints(LOG) == owner.fsm.build_hints(LOG)


async def test_owners_of_a_log_and_of_its_fork(client: JournalClient, directory: Path):
    other = "recovery/other"
    await create_log(client, other, LOG)
    hints, recorders = FSMHints(log=other), list[Recorder]()
    for author, log, name in ((123, other, "one"), (456, LOG, "two"), (789, LOG, "three")):
        resolved = await take_over(client, directory / name, author, hints)
        assert resolved.log == (LOG if name == "three" else other)
        recorder = await Recorder.open(
            client, log, resolved.fsm, Author(author), resolved.directory
        )
        recorders.append(recorder)
        RecordedDir(recorder).write_file_atomic(name, [name.encode()])
        hints = await recorder.build_hints()
    assert await registers(client) == [("author", Author(789).fence().labels[0].value)]
    first, second, third = recorders
    with pytest.raises(RecorderFencedError):
        await second.barrier()
    with pytest.raises(RecorderFencedError):
        await first.barrier()
    await third.barrier()
    await recover(client, directory / "last", hints)
    assert files_of(directory / "last") == {
        "/one": b"one", "/two": b"two", "/three": b"three"
    }  # fmt: skip
    for recorder in recorders:
        await recorder.aclose()


@pytest.mark.parametrize(
    "junk", [b"j", b"\x66\x33", b"\x66\x33\x93\x36", b"\x66\x33\x93\x36\1\0\0"]
)
async def test_junk_before_a_handoff(client: JournalClient, directory: Path, junk: bytes):
    writer = await written(client)
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    await client.append(LOG, junk)
    player.inject_handoff(1337)
    await playing
    assert files_of(directory) == writer.expected()


@pytest.mark.parametrize("cut", [1, 20, 45, 60])
@pytest.mark.parametrize("takes_over", [True, False])
async def test_a_torn_operation_that_a_standby_has_read(
    client: JournalClient, directory: Path, cut: int, *, takes_over: bool
):
    """Otherwise, the handoff would be taken for the rest of the content."""
    writer = await written(client)
    writer.checksums = False  # As of other implementations.
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    begin = writer.offset
    torn = writer.write("/file", b"0123456789" * 5)[:-cut]
    head = (await client.append(LOG, torn)).commit.end

    async def is_read() -> bool:
        return player.progress.offset == head

    await eventually(is_read)
    if takes_over:
        player.inject_handoff(1337)
    else:
        player.finish_at_write_head()
    with pytest.raises(PlaybackError, match=f"{LOG} ends at {head} within") as caught:
        await playing
    assert (caught.value.log, caught.value.offset) == (LOG, begin)
    assert (await client.append(LOG)).commit.end == head
    assert not is_there(directory)


async def test_a_handoff_amid_an_operation(client: JournalClient, directory: Path):
    """What was received ends within it. The log is taken over once all of it is played."""
    writer = await written(client)
    begin, told = writer.offset, list[int]()

    def tell(progress: PlaybackProgress) -> None:
        if begin < progress.offset < writer.offset and not told:
            told.append(progress.offset)
            player.inject_handoff(1337)

    player = Player(on_progress=tell)
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    await client.append(
        LOG, writer.write("/file", bytes(range(256)) * (3 * READ_AHEAD_BYTES // 256))
    )
    resolved = await playing
    assert told
    assert files_of(directory) == writer.expected()
    assert resolved.fsm.next_seq_no == writer.fsm.next_seq_no + 1


@pytest.mark.parametrize("round_", range(5))
async def test_two_players_race(client: JournalClient, directory: Path, round_: int):
    """Exactly one owns the log, and nothing of the other is ever played."""
    writer = await written(client)
    authors = {1001: directory / "1", 1002: directory / "2"}
    players = {author: Player() for author in authors}
    playing = [
        asyncio.create_task(player.play(HINTS, authors[author], client))
        for author, player in players.items()
    ]
    for player in players.values():
        await player.tailing.wait()
    order = sorted(players, reverse=bool(round_ % 2))
    for author in order:
        players[author].inject_handoff(author)
        for _ in range(round_):
            await asyncio.sleep(0)
    winners = []
    for author, resolved in zip(authors, await asyncio.gather(*playing), strict=True):
        assert files_of(resolved.directory) == writer.expected()
        new = LogWriter(resolved.read_through, fsm=resolved.fsm, author=author)
        new.files = {1: bytearray(b"hello")}
        try:
            await record(client, author, new.write("/file", b" from %d" % author))
        except pb.RegisterMismatchError:
            continue
        winners.append(new)
    (winner,) = winners
    recovered = await recover(client, directory / "3")
    assert files_of(recovered.directory) == winner.expected()


class Repeating:
    """A client whose handoffs commit twice, as if the response to the first was lost."""

    def __init__(self, client: JournalClient, between: Any = None) -> None:
        self.client = client
        self.between = between
        self.handoffs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    async def append(self, request: pb.AppendRequest, *content: bytes, **options: Any) -> Any:
        response = await self.client.append(request, *content, **options)
        if content:
            self.handoffs += 1
            if self.handoffs == 1:
                if self.between is not None:
                    await self.between()
                response = await self.client.append(request, *content, **options)
        return response


async def test_a_handoff_that_commits_twice(client: JournalClient, directory: Path):
    writer = await written(client)
    repeating: Any = Repeating(client)
    resolved = await take_over(repeating, directory, 1337)
    assert repeating.handoffs == 1
    assert resolved.fsm.next_seq_no == writer.fsm.next_seq_no + 1
    assert resolved.read_through == (await client.append(LOG)).commit.end


async def test_another_owner_between_both_commits(client: JournalClient, directory: Path):
    """What another one recorded between them isn't lost."""
    writer = await written(client)
    other = LogWriter()

    async def interject() -> None:
        nonlocal other
        resolved = await take_over(client, directory / "other", 2000)
        other = LogWriter(resolved.read_through, fsm=resolved.fsm, author=2000)
        other.files = writer.files
        await record(client, 2000, other.write("/file", b" world"))

    repeating: Any = Repeating(client, interject)
    resolved = await take_over(repeating, directory / "mine", 1337)
    assert repeating.handoffs == 2
    assert files_of(resolved.directory) == other.expected()
    new = LogWriter(resolved.read_through, fsm=resolved.fsm, author=1337)
    new.files = other.files
    await record(client, 1337, new.write("/file", b"!"))
    await recover(client, directory / "after")
    assert files_of(directory / "after") == new.expected()
    with pytest.raises(pb.RegisterMismatchError):
        await record(client, 2000, b"late")


async def test_a_refused_handoff(broker: EmbeddedBroker, client: JournalClient, directory: Path):
    await written(client)
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    with broker.control.once("append", status=pb.Status.NOT_ALLOWED):
        player.inject_handoff(1337)
        with pytest.raises(PlaybackError, match=r"^injecting no-op: NOT_ALLOWED"):
            await playing
    assert not is_there(directory)
