"""Appends after a failed one, which are tried afresh unless they were to follow it."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import AppendService, AsyncAppend, JournalClient
from tests.client.appends.support import write
from tests.client.support import JOURNAL, MemoryJournals, refused
from tests.waiting import eventually, turns

OTHER = "b/journal"
NOT_FOUND = refused(pb.Status.JOURNAL_NOT_FOUND)
MISMATCH = refused(pb.Status.REGISTER_MISMATCH)
CHECKED = pb.AppendRequest(
    journal=JOURNAL, check_registers=pb.LabelSelector(include=pb.label_set("owner", "me"))
)


async def fail(append: AsyncAppend) -> None:
    with pytest.raises(pb.JournalNotFoundError):
        await append


async def test_a_new_append_is_tried_afresh(
    journals: MemoryJournals, service: AppendService, caplog: pytest.LogCaptureFixture
) -> None:
    journals.failures = [NOT_FOUND, NOT_FOUND]
    for count in (1, 2):
        await fail(await write(service, JOURNAL, b"lost"))
        assert journals.begun == count
        assert service.try_append(JOURNAL, b"lost") is None
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    first = service.cleared_error(JOURNAL)
    assert first is not None
    assert isinstance(first.error, pb.JournalNotFoundError)

    await (await write(service, JOURNAL, b"content"))
    assert journals.contents[JOURNAL] == b"content"
    assert service.cleared_error(JOURNAL) is not first
    assert service.status().failed_journals == 0
    more = service.try_append(JOURNAL, b", more")
    assert more is not None
    await more

    # Whoever relies on everything before doesn't pass, until it's said that this is seen to.
    for left_out in ("", JOURNAL):
        assert service.pending_except(left_out)
        for failed in service.pending_except(left_out):
            assert isinstance(failed.exception(), pb.JournalNotFoundError)
    with pytest.raises(pb.JournalNotFoundError):
        await service.flush()
    with pytest.raises(pb.DependencyError):
        await (await write(service, JOURNAL, b"marker", service.pending_except(JOURNAL)))
    assert isinstance(service.clear_error(JOURNAL), pb.DependencyError)
    assert service.clear_error(JOURNAL) is None
    await service.flush()
    await (await write(service, JOURNAL, b", marker", service.pending_except(JOURNAL)))
    assert journals.contents[JOURNAL] == b"content, more, marker"


async def test_an_append_without_a_check_relies_on_the_check_before(
    journals: MemoryJournals, service: AppendService
) -> None:
    journals.failures = [MISMATCH, MISMATCH]
    for count in (1, 2):
        with pytest.raises(pb.RegisterMismatchError):
            await (await write(service, CHECKED, b"refused"))
        with pytest.raises(pb.RegisterMismatchError):
            await (await write(service, JOURNAL, b"plain"))
        assert journals.begun == count
    assert service.status().failed_journals == 1
    await (await write(service, CHECKED, b"mine"))
    await (await write(service, JOURNAL, b", plain"))
    assert journals.contents[JOURNAL] == b"mine, plain"


@pytest.mark.parametrize("ending", ["rolled back", "another refusal"])
async def test_a_check_that_never_succeeded_admits_no_append_without_one(
    journals: MemoryJournals, service: AppendService, ending: str
) -> None:
    journals.failures = [MISMATCH, NOT_FOUND]
    with pytest.raises(pb.RegisterMismatchError):
        await (await write(service, CHECKED, b"refused"))
    checked = await service.start_append(CHECKED)
    if ending == "rolled back":
        checked.roll_back(OSError("changed my mind"))
        journals.failures.clear()
    else:
        checked.release()
        await fail(checked)
    with pytest.raises(pb.RegisterMismatchError):
        await (await write(service, JOURNAL, b"plain"))
    assert service.status().failed_journals == 1
    journals.gate.clear()
    checked = await write(service, CHECKED, b"mine")
    held = await service.start_append(JOURNAL)
    in_line = asyncio.create_task(write(service, JOURNAL, b"!"))
    await turns(3)
    journals.gate.set()
    await checked
    held.release()
    await (await in_line)
    assert journals.contents[JOURNAL] == b"mine!"


async def test_appends_in_line_fail_with_the_one_before(
    journals: MemoryJournals, service: AppendService
) -> None:
    """However late they get their turn, and whoever was tried afresh meanwhile."""
    journals.gate.clear()
    journals.failures = [NOT_FOUND]
    first = await write(service, JOURNAL, b"first")
    await eventually(lambda: journals.begun)
    held = await service.start_append(JOURNAL)
    in_line = [asyncio.create_task(write(service, JOURNAL, b"in line")) for _ in range(2)]
    cancelled = asyncio.create_task(write(service, JOURNAL, b"in line"))
    await turns(3)
    journals.gate.set()
    await fail(first)

    # Three are new, and race. One of them gives up.
    given_up, *new = [
        asyncio.create_task(write(service, JOURNAL, content)) for content in (b"-", b"1", b"2")
    ]
    await turns(3)
    given_up.cancel()
    cancelled.cancel()
    held.write(b"held")
    held.release()
    for append in (held, *await asyncio.gather(*in_line)):
        await fail(append)
    for append in await asyncio.gather(*new):
        await append
    assert journals.contents[JOURNAL] == b"12"
    cleared = service.cleared_error(JOURNAL)
    assert cleared is not None
    assert cleared.count == 1
    await eventually(lambda: service.status().journals == 0)


async def test_an_append_that_waited_for_room_fails_with_the_one_before(
    journals: MemoryJournals, client: JournalClient
) -> None:
    async with AppendService(client, cutoff_bytes=10, max_pending_bytes=30) as service:
        journals.gate.clear()
        journals.failures = [NOT_FOUND]
        first = await write(service, JOURNAL, bytes(20))
        await eventually(lambda: journals.begun)
        await write(service, JOURNAL, bytes(20))
        new: list[asyncio.Task[AsyncAppend]] = []

        def begin_anew() -> None:
            # It begins before the one that waits goes on.
            new.append(asyncio.create_task(write(service, JOURNAL, b"new")))

        first.operation.when_done(begin_anew)
        waiting = asyncio.create_task(write(service, JOURNAL, b"waited"))
        await turns(5)
        assert not waiting.done()
        journals.gate.set()
        await fail(await waiting)
        await (await new[0])
        assert journals.contents[JOURNAL] == b"new"


async def test_appends_that_race_to_be_tried_afresh_fail_together(
    journals: MemoryJournals, service: AppendService
) -> None:
    journals.failures = [NOT_FOUND] * 2
    await fail(await write(service, JOURNAL, b"first"))
    for append in await asyncio.gather(*(write(service, JOURNAL, b"-") for _ in range(3))):
        await fail(append)
    assert journals.begun == 2
    cleared = service.cleared_error(JOURNAL)
    assert cleared is not None
    assert cleared.count == 1


async def test_dependents_of_a_failed_append_fail(
    journals: MemoryJournals, service: AppendService
) -> None:
    journals.gate.clear()
    journals.failures = [NOT_FOUND]
    first = await write(service, JOURNAL, b"first")
    dependent = await write(service, OTHER, b"dependent", {first})
    behind = await write(service, OTHER, b"behind")
    await eventually(lambda: journals.begun)
    journals.gate.set()
    for append in (dependent, behind):
        with pytest.raises(pb.DependencyError, match="JOURNAL_NOT_FOUND"):
            await append
    # A new one that depends on the failed append fails, and others are tried.
    with pytest.raises(pb.DependencyError, match="JOURNAL_NOT_FOUND"):
        await (await write(service, OTHER, b"dependent", {first}))
    for journal in (JOURNAL, OTHER):
        await (await write(service, journal, b"new"))
    with pytest.raises(pb.DependencyError, match="JOURNAL_NOT_FOUND"):
        await (await write(service, "c/journal", b"-", service.pending_except("c/journal")))
    assert journals.contents == {JOURNAL: b"new", OTHER: b"new"}
