"""Recovery of files from a log, up to its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy
from gazette_aio.consumer.recoverylog import (
    FSM,
    LogHole,
    PlaybackError,
    PlaybackProgress,
    Player,
    encode_operation,
)
from gazette_aio.consumer.recoverylog.playing import files
from gazette_aio.message.framing import FIXED_FRAME_WORD
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp
from tests.consumer.recoverylog.player.logs import (
    AUTHOR,
    LOG,
    LogWriter,
    create_log,
    described,
    files_of,
    is_there,
    recover,
)
from tests.waiting import eventually

HINTS = FSMHints(log=LOG)


def links_of(path: Path) -> int:
    return path.stat().st_nlink


def make(directory: Path) -> None:
    directory.mkdir()


async def appended(client: JournalClient, writer: LogWriter) -> LogWriter:
    """Append all that a writer encoded to a new log."""
    await create_log(client, writer.log)
    await client.append(writer.log, writer.content)
    return writer


def two_files(offset: int = 0) -> LogWriter:
    writer = LogWriter(offset)
    writer.create("/foo/bar")
    writer.write("/foo/bar", b"hello")
    writer.create("/baz")
    writer.write("/baz", b"bing")
    return writer


async def test_finish_at_the_write_head(client: JournalClient, directory: Path):
    """Junk before and within the log, and operations after the hints."""
    junk = b"... garbage data ..."
    await create_log(client)
    await client.append(LOG, junk)
    writer = LogWriter(len(junk))
    writer.create("/foo/bar")
    hints = writer.hints
    writer.write("/foo/bar", b"hello")
    await client.append(LOG, writer.content)
    await client.append(LOG, junk)
    writer.offset += len(junk)
    rest = writer.write("/foo/bar", b" world!") + writer.create("/baz")
    rest += writer.write("/baz", b"bing") + writer.link("/baz", "/b/a/z") + writer.op()
    rest += writer.set_property("/IDENTITY", "me")
    await client.append(LOG, rest)
    for number, each in enumerate((HINTS, hints, writer.hints)):
        resolved = await recover(client, directory / str(number), each)
        assert files_of(resolved.directory) == writer.expected()
        assert (resolved.log, resolved.read_through) == (LOG, writer.offset)
        assert resolved.fsm.build_hints(LOG) == writer.hints
        assert links_of(resolved.directory / "baz") == 2


async def test_an_empty_log(client: JournalClient, directory: Path):
    await create_log(client)
    resolved = await recover(client, directory)
    assert (files_of(directory), resolved.read_through, resolved.fsm.is_fresh) == ({}, 0, True)
    assert is_there(directory)


async def test_hints_beyond_the_log(client: JournalClient, directory: Path):
    writer = await appended(client, two_files())
    head = writer.offset
    hints = writer.hints
    node = hints.live_nodes.add(fnode=writer.fsm.next_seq_no)
    node.segments.add(
        author=AUTHOR + 1,
        first_seq_no=node.fnode,
        first_offset=head,
        first_checksum=writer.fsm.next_checksum,
        last_seq_no=node.fnode,
    )
    with pytest.raises(PlaybackError) as raised:
        await recover(client, directory, hints)
    assert str(raised.value) == (
        f"max write-head of {LOG} is {head}, vs hinted operations {node.fnode} to {node.fnode} of "
        f"author {AUTHOR + 1}, from offset {head} of {LOG}; possible data loss"
    )
    end = (await client.append(LOG, b"other content")).commit.end
    with pytest.raises(
        PlaybackError,
        match=rf"^offset {LOG}:{end} >= readThrough {end}, but FSM has unused hints; possible dat",
    ):
        await recover(client, directory, hints)
    assert not is_there(directory)


async def test_a_history_of_two_logs(client: JournalClient, directory: Path):
    other = "recovery/other"
    writer = await appended(client, LogWriter(log=other, author=123))
    await client.append(other, writer.create("/one") + writer.write("/one", b"first"))
    fork = LogWriter(fsm=writer.fsm, author=456)
    fork.files = writer.files
    fork.op()
    fork.create("/two")
    fork.write("/one", b" and more")
    await appended(client, fork)
    hints = fork.hints
    assert hints.live_nodes[0].segments[0].log == other
    resolved = await recover(client, directory, hints)
    assert files_of(directory) == fork.expected()
    assert (resolved.log, resolved.fsm.last_log) == (LOG, LOG)


async def test_tailing(client: JournalClient, directory: Path):
    """A player at the end of the log follows what is recorded, until it's told to finish."""
    writer = await appended(client, two_files())
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    assert player.progress.is_tailing
    assert not player.done.done()
    for number in range(3):
        await client.append(LOG, writer.write("/baz", b"%d" % number))
        await eventually(lambda: player.progress.offset == writer.offset)
    assert (directory / ".fnodes" / "3").read_bytes() == b"bing012"
    # An operation may arrive in pieces.
    await client.append(LOG, writer.write("/baz", os.urandom(6 << 20)))
    await eventually(lambda: player.progress.offset == writer.offset)
    # What was appended before the call is played, also if it isn't received yet.
    await client.append(LOG, writer.create("/late"))
    player.finish_at_write_head()
    await player.done
    assert player.resolved is await playing
    assert files_of(directory) == writer.expected()


async def test_tailing_or_done(client: JournalClient, directory: Path):
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    with pytest.raises(PlaybackError, match=f'^determining head of "{LOG}": JOURNAL_NOT_FOUND'):
        await playing
    with pytest.raises(PlaybackError, match="determining head"):
        await player.done


async def test_misuse(client: JournalClient, directory: Path):
    await create_log(client)
    player = Player()
    with pytest.raises(ValueError, match="invalid author"):
        player.inject_handoff(0)
    with pytest.raises(ValueError, match="can't take the log over"):
        Player(accept_loss=True).inject_handoff(1)
    player.finish_at_write_head()
    for again in (player.finish_at_write_head, lambda: player.inject_handoff(1)):
        with pytest.raises(RuntimeError, match="was called before"):
            again()
    with pytest.raises(RuntimeError, match="has no result"):
        _ = player.resolved
    assert "ready" in repr(player)
    await player.play(HINTS, directory, client)
    assert "ended" in repr(player)
    with pytest.raises(RuntimeError, match="plays once"):
        await player.play(HINTS, directory, client)
    with pytest.raises(pb.RecoveryError, match="hinted log not provided"):
        await Player().play(FSMHints(), directory, client)


async def test_the_directory_must_be_empty(client: JournalClient, directory: Path):
    writer = await appended(client, two_files())
    make(directory)
    await recover(client, directory)  # An empty one is fine.
    kept = files_of(directory)
    with pytest.raises(pb.ConfigurationError, match="isn't empty"):
        await recover(client, directory)
    assert files_of(directory) == kept == writer.expected()
    (directory / "stale").write_bytes(b"stale")
    await recover(client, directory, wipe=True)
    assert files_of(directory) == kept
    for path in (directory / "link", directory / "baz"):
        if path.name == "link":
            path.symlink_to(directory / "foo")
        with pytest.raises(pb.ConfigurationError, match="isn't a directory"):
            await recover(client, path, wipe=True)
        assert path.exists()


@pytest.mark.parametrize("length", range(1, 12))
async def test_junk_at_the_tail(client: JournalClient, directory: Path, length: int):
    """What begins no operation, up to the end of an append, is passed over at once."""
    writer = await appended(client, two_files())
    for junk in (b"j" * length, (b"j" * length + FIXED_FRAME_WORD + b"\1\1\1")[-length:]):
        await client.append(LOG, junk)
        writer.offset += len(junk)
        resolved = await recover(client, directory, wipe=True)
        assert resolved.read_through == writer.offset
        await client.append(LOG, writer.write("/baz", b"."))
    await recover(client, directory, wipe=True)
    assert files_of(directory) == writer.expected()


async def test_frames_that_are_too_long(client: JournalClient, directory: Path):
    writer = two_files()
    await create_log(client)
    await client.append(LOG, FIXED_FRAME_WORD + b"\xff\xff\xff\x7f" + writer.content)
    await recover(client, directory)
    assert files_of(directory) == writer.expected()


UNSAFE = ["/../out", "relative", "/a/../b", "//a", "/a/", "/", "", "/a\0b", "/.fnodes/1", "/./a"]


@pytest.mark.parametrize("path", [*UNSAFE, pytest.param("/d" * 1500, id="deep")])
async def test_paths_that_escape(client: JournalClient, directory: Path, path: str):
    safe = two_files()
    await create_log(client)
    await client.append(LOG, safe.content)
    at, head = safe.offset, safe.content
    for number, fields in enumerate(
        (
            {"create": {"path": path}},
            {"link": {"fnode": 1, "path": path}},
            {"property": {"path": path, "content": "x"}},
        )
    ):
        log = f"recovery/{number}"
        await create_log(client, log)
        await client.append(log, head)
        writer = LogWriter(at, fsm=two_files().fsm)
        await client.append(log, writer.op(**fields))
        with pytest.raises(PlaybackError) as caught:
            await recover(client, directory, FSMHints(log=log))
        text = f'playOperation("{log}", {at}): unsafe path {path!r}'
        if path in UNSAFE:
            assert str(caught.value) == text
        else:
            assert str(caught.value).endswith("...: more than 255 components")
    hints = FSMHints(log=LOG, properties=[{"path": path, "content": "x"}])
    with pytest.raises(pb.RecoveryError, match="unsafe path"):
        await recover(client, directory, hints)
    assert not is_there(directory)


async def test_paths_below_a_file(client: JournalClient, directory: Path):
    writer = LogWriter()
    writer.create("/a")
    writer.create("/a/b")
    await appended(client, writer)
    with pytest.raises(PlaybackError, match=r"^making /a/b live: "):
        await recover(client, directory)
    assert not is_there(directory)


async def test_content_is_checked(client: JournalClient, directory: Path):
    writer = two_files()
    begin, end = writer.ops[1]
    content = bytearray(writer.content)
    content[end - 1] ^= 1
    await create_log(client)
    await client.append(LOG, bytes(content))
    with pytest.raises(PlaybackError) as caught:
        await recover(client, directory)
    assert str(caught.value) == (
        f'playOperation("{LOG}", {begin}): content of fnode 1 doesn\'t match its checksum'
    )


async def test_content_without_a_checksum(client: JournalClient, directory: Path):
    """Other implementations record none."""
    writer = LogWriter(checksums=False)
    writer.create("/a")
    writer.write("/a", b"over-write", 5)
    writer.write("/a", b"abcde", 0)
    writer.write("/a", b"", 100)
    writer.write("/a", b"0123456789", 5)
    writer.files[1] = writer.files[1][:15]  # Writing nothing doesn't extend a file.
    await appended(client, writer)
    await recover(client, directory)
    assert files_of(directory) == writer.expected() == {"/a": b"abcde0123456789"}


async def test_few_descriptors(
    client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = LogWriter()
    paths = [f"/d/{number}" for number in range(20)]
    for path in paths:
        writer.create(path)
    for round_ in range(3):
        for path in paths:
            writer.write(path, b"%d" % round_)
    writer.unlink(paths[0])
    await appended(client, writer)
    seen: list[int] = []

    def count(_: PlaybackProgress) -> None:
        seen.append(len(described(directory)))

    monkeypatch.setattr(files, "MAX_OPEN_FILES", 2)
    await recover(client, directory, on_progress=count)
    assert seen
    assert max(seen) == 2
    assert files_of(directory) == writer.expected()


async def test_progress(client: JournalClient, directory: Path):
    writer = await appended(client, two_files())
    reports: list[PlaybackProgress] = []
    player = Player(on_progress=reports.append)
    player.finish_at_write_head()
    await player.play(HINTS, directory, client)
    last = reports[-1]
    assert player.progress is last
    assert last.is_tailing
    assert (last.log, last.offset, last.read_through) == (LOG, writer.offset, writer.offset)
    assert (last.bytes_played, last.bytes_total, last.lag_bytes) == (
        writer.offset,
        writer.offset,
        0,
    )
    assert last.content_bytes == len(b"hellobing")
    assert max(report.bytes_per_second for report in reports) > 0

    def fail(_: PlaybackProgress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await recover(client, directory, wipe=True, on_progress=fail)
    assert not is_there(directory)


async def test_a_pruned_beginning(
    broker: EmbeddedBroker, client: JournalClient, directory: Path, tmp_path: Path
):
    """Without it, no operation applies, and an empty store would be taken for the recovered one."""
    (tmp_path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    writer = two_files()
    await client.append(LOG, writer.content)
    await broker.flush(LOG)
    hints = writer.hints
    rest = writer.write("/baz", b"more")
    await client.append(LOG, rest)
    await broker.flush(LOG)
    first, *_ = sorted((tmp_path / "fragments" / LOG).iterdir())
    first.unlink()
    await broker.refresh(LOG)
    with pytest.raises(PlaybackError, match=rf"^{LOG} has content up to {writer.offset}, but its"):
        await recover(client, directory)
    handing_off = Player()
    handing_off.inject_handoff(99)
    with pytest.raises(PlaybackError, match="its beginning was removed"):
        await handing_off.play(HINTS, directory, client)
    assert not (await client.append(LOG)).registers.labels
    with pytest.raises(PlaybackError, match=r"jumps over hinted segment of .*possible data loss"):
        await recover(client, directory, hints)
    with pytest.raises(PlaybackError, match="FSM has unused hints"):
        await recover(client, directory, writer.hints)


async def test_a_log_that_is_pruned_as_a_whole(
    broker: EmbeddedBroker, client: JournalClient, directory: Path, tmp_path: Path
):
    (tmp_path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    await client.append(LOG, two_files().content)
    await broker.flush(LOG)
    for file in (tmp_path / "fragments" / LOG).iterdir():
        file.unlink()
    await broker.refresh(LOG)
    with pytest.raises(PlaybackError, match="its beginning was removed"):
        await asyncio.wait_for(recover(client, directory), 60)


async def pruned_end(broker: EmbeddedBroker, client: JournalClient, path: Path) -> LogWriter:
    """Return the writer of a log, to which one more append was made, and removed."""
    (path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    writer = two_files()
    await client.append(LOG, writer.content)
    await broker.flush(LOG)
    await client.append(LOG, b"what nobody knows")
    await broker.flush(LOG)
    *_, last = sorted((path / "fragments" / LOG).iterdir())
    last.unlink()
    await broker.refresh(LOG)
    return writer


@pytest.mark.parametrize("author", [None, 99])
async def test_a_pruned_end(
    broker: EmbeddedBroker,
    client: JournalClient,
    directory: Path,
    tmp_path: Path,
    author: int | None,
):
    """Nothing that follows tells what it held, and acknowledged writes would be missing."""
    writer = await pruned_end(broker, client, tmp_path)
    end, hints = writer.offset, writer.hints
    head = (await client.append(LOG)).commit.end
    assert head > end
    for each in (HINTS, hints):
        player = Player()
        if author is None:
            player.finish_at_write_head()
        else:
            player.inject_handoff(author)
        with pytest.raises(
            PlaybackError,
            match=rf"^content of {LOG} from {end} to its end at {head} was removed",
        ) as caught:
            await asyncio.wait_for(player.play(each, directory, client), 30)
        assert (caught.value.log, caught.value.offset) == (LOG, end)
        assert not is_there(directory)
    # Nobody has taken over what isn't whole.
    assert (await client.append(LOG)).commit.end == head


@pytest.mark.parametrize("is_standby", [False, True])
async def test_a_pruned_end_whose_loss_is_accepted(
    broker: EmbeddedBroker,
    client: JournalClient,
    directory: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_standby: bool,
):
    writer = await pruned_end(broker, client, tmp_path)
    head = (await client.append(LOG)).commit.end
    player = Player(accept_loss=True)
    if not is_standby:
        player.finish_at_write_head()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    if is_standby:
        # It goes on with what isn't of the history, until it's told to finish.
        await client.append(LOG, LogWriter(head, fsm=FSM(HINTS), author=666).op())
        with pytest.raises(ValueError, match="accept_loss=True can't take the log over"):
            player.inject_handoff(99)
        player.finish_at_write_head()
    resolved = await playing
    hole = LogHole(LOG, writer.offset, head, writer.fsm.next_seq_no)
    assert resolved.holes == (hole,)
    assert resolved.fsm.next_seq_no == hole.seq_no
    assert files_of(directory) == writer.expected()
    assert caplog.text.count(f"after {hole} continues its history") == 1
    assert not (await client.append(LOG)).registers.labels


@pytest.mark.parametrize("author", [None, 99])
async def test_a_removed_part_before_another_author(
    broker: EmbeddedBroker,
    client: JournalClient,
    directory: Path,
    tmp_path: Path,
    author: int | None,
    caplog: pytest.LogCaptureFixture,
):
    """An author who took the log over after the part doesn't tell what it held."""
    (tmp_path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    writer = two_files()
    before = writer.expected()
    await client.append(LOG, writer.content)
    await broker.flush(LOG)
    begin, hints = writer.offset, writer.hints
    await client.append(LOG, writer.write("/baz", b"more"))
    await broker.flush(LOG)
    end = writer.offset
    other = LogWriter(end, fsm=writer.fsm, author=777)
    await client.append(LOG, other.op())
    await broker.flush(LOG)
    _, removed, last = sorted((tmp_path / "fragments" / LOG).iterdir())
    removed.unlink()
    os.utime(last, (10**9, 10**9))  # Brokers jump to old fragments only.
    await broker.refresh(LOG)
    for each in (HINTS, hints):
        player = Player()
        if author is None:
            player.finish_at_write_head()
        else:
            player.inject_handoff(author)
        with pytest.raises(PlaybackError, match=rf"hole at {begin}-{end} of {LOG}") as caught:
            await player.play(each, directory, client)
        assert (caught.value.log, caught.value.offset) == (LOG, begin)
        assert not is_there(directory)
    if author is None:
        resolved = await recover(client, directory, hints, accept_loss=True)
        assert [(hole.begin, hole.end) for hole in resolved.holes] == [(begin, end)]
        assert files_of(directory) == before
        assert "which is accepted" in caplog.text
    response = await client.append(LOG)
    assert response.commit.end == other.offset
    assert not response.registers.labels


async def test_a_removed_part_of_what_is_dead(
    broker: EmbeddedBroker, client: JournalClient, directory: Path, tmp_path: Path
):
    """A short gap between hinted segments is read, but nothing in it is needed."""
    (tmp_path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    writer = LogWriter()
    for frames in (
        writer.create("/one") + writer.write("/one", b"content"),
        writer.create("/dead") + writer.write("/dead", b"removed"),
        writer.write("/dead", b"still there") + writer.unlink("/dead"),
        writer.create("/two"),
    ):
        await client.append(LOG, frames)
        await broker.flush(LOG)
    _, removed, *rest = sorted((tmp_path / "fragments" / LOG).iterdir())
    removed.unlink()
    for file in rest:
        os.utime(file, (10**9, 10**9))  # Brokers jump to old fragments only.
    await broker.refresh(LOG)
    await recover(client, directory, writer.hints)
    assert files_of(directory) == writer.expected()


async def test_content_that_is_no_log(client: JournalClient, directory: Path):
    await create_log(client)
    await client.append(LOG, b"not a recovery log at all")
    with pytest.raises(PlaybackError, match="its history doesn't begin there"):
        await recover(client, directory)


async def test_files_of_fragments(
    broker: EmbeddedBroker, client: JournalClient, directory: Path, tmp_path: Path
):
    """They're fetched from their stores, or through the broker by clients that can't."""
    (tmp_path / "fragments").mkdir()
    await create_log(client, stores=["file:///fragments/"])
    writer = two_files()
    await client.append(LOG, writer.content)
    await broker.flush(LOG)
    with broker.control.observe("read") as reads:
        await recover(client, directory)
        assert all(request.do_not_proxy for request in reads.requests)
        async with connect(broker.endpoint) as rootless:
            await recover(rootless, directory, wipe=True)
        assert not reads.requests[-1].do_not_proxy
    assert files_of(directory) == writer.expected()


async def test_hints_skip_what_is_dead(
    broker: EmbeddedBroker, client: JournalClient, directory: Path
):
    """Reading begins at the first hinted segment, and long gaps aren't read."""
    writer = LogWriter()
    writer.create("/dead")
    for _ in range(8):
        writer.write("/dead", bytes(1 << 20))
    writer.unlink("/dead")
    writer.create("/live")
    first = writer.ops[-1][0]
    writer.create("/dead")
    for _ in range(8):
        writer.write("/dead", bytes(1 << 20))
    writer.unlink("/dead")
    writer.create("/live2")
    await appended(client, writer)
    with broker.control.observe("read") as reads:
        player = Player()
        player.finish_at_write_head()
        await player.play(writer.hints, directory, client)
    assert files_of(directory) == writer.expected()
    assert player.progress.bytes_played < 2 << 20
    assert [request.offset for request in reads.requests] == [first, writer.ops[-1][0]]


async def test_a_suspended_log(broker: EmbeddedBroker, client: JournalClient, directory: Path):
    """A standby of a suspended log waits until somebody appends."""
    writer = await appended(client, two_files())
    with broker.control.keep("read", status=pb.Status.SUSPENDED) as suspended:
        player = Player()
        playing = asyncio.create_task(player.play(HINTS, directory, client))
        await eventually(lambda: suspended.hits >= 2)
        assert not player.tailing.is_set()
    await player.tailing.wait()
    player.finish_at_write_head()
    await playing
    assert files_of(directory) == writer.expected()


async def test_a_log_that_is_removed(client: JournalClient, directory: Path):
    await appended(client, two_files())
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    await client.apply([pb.ApplyRequest.Change(delete=LOG, expect_mod_revision=-1)])
    with pytest.raises(pb.JournalNotFoundError):
        await playing
    assert not is_there(directory)


async def test_a_store_that_is_unhealthy(
    broker: EmbeddedBroker, client: JournalClient, directory: Path
):
    """A player waits for what only a broker or a store can mend."""
    await appended(client, two_files())
    unhealthy = [pb.Status.FRAGMENT_STORE_UNHEALTHY, pb.Status.INDEX_HAS_GREATER_OFFSET]
    rules = [broker.control.once("append", status=status) for status in unhealthy]
    await recover(client, directory)
    assert [rule.hits for rule in rules] == [1, 1]


async def test_a_program_that_decides_otherwise(
    broker: EmbeddedBroker, client: JournalClient, directory: Path
):
    """Its `on_error` is asked before the player waits for what only a store can mend."""
    await appended(client, two_files())
    broker.control.once("append", status=pb.Status.FRAGMENT_STORE_UNHEALTHY)
    async with connect(
        broker.endpoint, retry=RetryPolicy(on_error=lambda failure: False)
    ) as refusing:
        with pytest.raises(PlaybackError, match="FRAGMENT_STORE_UNHEALTHY"):
            await recover(refusing, directory)


async def test_a_full_disk(client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch):
    writer = await appended(client, two_files())
    write = os.pwritev

    def cut_short(descriptor: int, buffers: list[bytes], offset: int) -> int:
        return write(descriptor, [b"".join(buffers)[:2]], offset)

    monkeypatch.setattr(os, "pwritev", cut_short)
    await recover(client, directory)
    assert files_of(directory) == writer.expected()

    def full(_descriptor: int, _data: memoryview, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(PlaybackError, match=rf'^playOperation\("{LOG}", \d+\): .*No space left'):
        await recover(client, directory, wipe=True)
    assert not is_there(directory)


async def test_files_that_change_meanwhile(client: JournalClient, directory: Path):
    """Recovered files are checked before playback succeeds."""
    await appended(client, two_files())
    for change in (
        lambda file: file.write_bytes(b"longer than it was"),
        lambda file: os.link(file, file.parent / "another"),
    ):
        player = Player()
        playing = asyncio.create_task(player.play(HINTS, directory, client))
        await player.tailing.wait()
        change(directory / ".fnodes" / "3")
        player.finish_at_write_head()
        with pytest.raises(PlaybackError, match=r"^making /baz live: fnode 3 has "):
            await playing
        assert not is_there(directory)


async def test_a_staged_file_that_is_a_link(
    client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is written through a symbolic link."""
    writer = await appended(client, two_files())
    monkeypatch.setattr(files, "MAX_OPEN_FILES", 1)
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    outside = directory.parent / "outside"
    outside.write_bytes(b"untouched")
    staged = directory / ".fnodes" / "1"
    staged.unlink()
    staged.symlink_to(outside)
    await client.append(LOG, writer.write("/foo/bar", b"!"))
    with pytest.raises(PlaybackError, match="playOperation"):
        await playing
    assert outside.read_bytes() == b"untouched"


async def test_warnings_name_the_log(
    client: JournalClient, directory: Path, caplog: pytest.LogCaptureFixture
):
    writer = two_files()
    await create_log(client)
    await client.append(LOG, b"junk" + writer.content)
    with caplog.at_level(logging.WARNING, "gazette_aio.consumer.recoverylog"):
        await recover(client, directory)
    (record,) = caplog.records
    assert record.message.startswith(f"4 bytes of {LOG} before ")
    assert record.__dict__["journal"] == LOG


async def test_an_operation_that_is_of_no_kind_or_several(client: JournalClient, directory: Path):
    await create_log(client)
    _, frame = encode_operation(
        RecordedOp(seq_no=1, author=AUTHOR, create={"path": "/a"}, link={"path": "/b"})
    )
    await client.append(LOG, frame)
    with pytest.raises(PlaybackError, match=rf'^playOperation\("{LOG}", 0\): .*more than one kind'):
        await recover(client, directory)
