"""An intent log on a disk that fails at any call, and another time while the first is handled."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.aio import file_lock
from gazette_aio.broker.journal.registers import registers_match, update_registers
from gazette_aio.message import Fence, IntentLog, Publisher, json_adapter
from gazette_aio.message.publishing import intent_files, intents
from gazette_aio.protocol.errors import StoreError
from gazette_aio.protocol.status_errors import RegisterMismatchError
from tests.message import fakes
from tests.message.publishing.two_journals import JOURNALS, NDJSON, commit, committed, rows

FakeAppends: Any = fakes.FakeAppends
FakeClient: Any = fakes.FakeClient
CALLS = {
    "open", "close", "write", "fsync", "replace", "unlink", "listdir", "ftruncate", "pread", "pwrite"
}  # fmt: skip
SECONDS = 8
"""Number of calls after a failed one which fail as well, one in each run."""


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch):
    """Make calls within the event loop, which is faster than threads."""

    async def call(function: Any, *args: Any, **options: Any):
        return function(*args, **options)

    monkeypatch.setattr(intents, "in_thread", call)


class FailingOS:
    """The calls of `os`, some of which fail. Writes are short."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.made: list[str] = []
        self.failed: list[str] = []
        self.descriptors: set[int] = set()

    def __getattr__(self, name: Any):
        if name not in CALLS:
            return getattr(os, name)

        def call(*args: Any, **options: Any):
            self.made.append(name)
            fails = len(self.made) in self.failing
            if name == "close":
                self.descriptors.discard(args[0])
            if fails:
                self.failed.append(name)
            if not fails or name == "close":  # A failed close closes nevertheless.
                if name == "write":
                    args = args[0], args[1][: len(args[1]) // 2 + 1]
                result = getattr(os, name)(*args, **options)
                if name == "open":
                    self.descriptors.add(result)
                if not fails:
                    return result
            elif name == "write":
                os.write(args[0], args[1][:3])
            raise OSError(errno.EIO, "disk is broken")

        return call


class RegisterAppend:
    """An append of a request with registers."""

    def __init__(self, service: Any, request: Any) -> None:
        self._service, self._request = service, request

    def write(self, data: Any):
        pass

    def release(self):
        pass

    def __await__(self):
        yield
        request, service = self._request, self._service
        response = pb.AppendResponse(registers=service.registers)
        if not registers_match(service.registers, request.check_registers):
            raise RegisterMismatchError(response=response)
        service.registers = update_registers(service.registers, request)
        return pb.AppendResponse(registers=service.registers)


class RegisterAppends(FakeAppends):
    """Appends which have registers, of one journal."""

    def __init__(self, client: Any) -> None:
        FakeAppends.__init__(self, client)
        self.registers = pb.LabelSet()

    def clear_error(self, journal: str):
        return None

    async def start_append(self, journal: Any, dependencies: Any = ()) -> Any:
        if isinstance(journal, str):
            return await FakeAppends.start_append(self, journal, dependencies)
        return RegisterAppend(self, journal)


async def survive(path: Path, fence: Any, monkeypatch: pytest.MonkeyPatch, *failing: Any):
    """Commit three transactions, the second of them on the failing disk, and recover after it."""
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = RegisterAppends(client)
    log = IntentLog(path, fence=fence)
    publisher = Publisher(appends, json_adapter())
    await log.recover(appends)
    await commit(publisher, log, 1)
    disk = FailingOS(*failing)
    failures: list[StoreError] = []
    with monkeypatch.context() as patched:
        for module in (intent_files, file_lock):
            patched.setattr(module, "os", disk)
        try:
            await commit(publisher, log, 2)
        except StoreError as error:
            failures.append(error)
        if "unlink" not in disk.failed:
            assert not [file.name for file in path.parent.iterdir() if file.suffix == ".tmp"]
        await log.aclose()
        # The next process may meet the rest of the failures.
        log = IntentLog(path, fence=fence)
        try:
            await log.recover(appends)
        except StoreError as error:
            failures.append(error)
        await log.aclose()
        assert not disk.descriptors
    assert all("disk is broken" in str(error) for error in failures)
    state: Any = await log.recover(appends)
    wanted = {1: rows(1), 2: rows(1, 2)}[state["row"]]
    assert await committed(client) == wanted
    await commit(publisher, log, 3)
    await log.aclose()
    assert await IntentLog(path, fence=fence).recover(appends) == {"row": 3}
    assert await committed(client) == sorted(wanted + rows(3))
    # Nothing is left behind, unless its removal failed.
    names = {file.name for file in path.parent.iterdir()}
    if "unlink" not in disk.failed:
        assert len(names) == 2, names
    return disk, failures, state["row"]


@pytest.mark.parametrize("fence", [None, Fence("fences", "etl")], ids=["alone", "fenced"])
async def test_each_call_fails_and_another_one(
    tmp_path: Path, fence: Any, monkeypatch: pytest.MonkeyPatch
):
    number = itertools.count()

    async def attempt(*failing: Any):
        directory = tmp_path / str(next(number))
        directory.mkdir()
        return await survive(directory / "log", fence, monkeypatch, *failing)

    disk, failures, row = await attempt()
    assert (failures, row) == ([], 2)
    count = len(disk.made)
    assert {"open", "write", "fsync", "close", "listdir"} <= set(disk.made)
    assert ("replace" in disk.made) == (fence is None)
    outcomes: set[tuple[str, int]] = set()
    for first in range(1, count + 1):
        disk, failures, row = await attempt(first)
        # Only the removal of what nobody needs, and of the lock at its end, may fail unnoticed.
        assert failures or disk.failed[0] in {"unlink", "close"}, (first, disk.made)
        outcomes.add((disk.failed[0], row))
        for second in range(first + 1, min(first + SECONDS, len(disk.made)) + 1):
            await attempt(first, second)
    assert outcomes >= {("write", 1), ("fsync", 1), ("fsync", 2), ("open", 1), ("open", 2)}


@pytest.mark.parametrize("fence", [None, Fence("fences", "etl")], ids=["alone", "fenced"])
async def test_file_systems_without_locks_need_a_fence(
    tmp_path: Path, fence: Any, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_descriptor: Any, _operation: Any):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    log = IntentLog(tmp_path / "log", fence=fence)
    appends = RegisterAppends(None)
    if fence is None:
        with pytest.raises(StoreError, match="No locks available"):
            await log.recover(appends)
    else:
        assert await log.recover(appends) is None
