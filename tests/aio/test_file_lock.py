"""Locks of files, and the processes that hold them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gazette_aio.aio.file_lock import FileLock, holder_of, locked

FORK = """
import os, sys
from gazette_aio.aio.file_lock import locked
from gazette_aio.aio.forks import close_in_children

def opened():
    return os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)

class Owner:
    def close(self):
        raise OSError("no free descriptor")

owner = Owner()
close_in_children(owner, Owner.close)
(end, kept), (begun, begins) = os.pipe(), os.pipe()
with locked(opened):
    if not (child := os.fork()):
        os.write(begins, b".")
        os.close(kept)
        os.read(end, 1)
        os._exit(0)
    os.read(begun, 1)
with locked(opened):
    print("locked again")
os.close(kept)
os.waitpid(child, 0)
"""


def opener(path: Path):
    return lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def test_a_forked_child_does_not_keep_a_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, tmp_path / "lock"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "locked again\n", done.stderr


def test_a_lock_in_use(tmp_path: Path) -> None:
    path, lock = tmp_path / "lock", FileLock()
    lock.acquire(opener(path))
    with pytest.raises(BlockingIOError), locked(opener(path)):
        pass
    lock.release()
    lock.release()
    with locked(opener(path)):
        assert not lock.is_held


def test_a_released_lock_is_free_though_a_process_has_a_copy(tmp_path: Path) -> None:
    """A child of a fork has one for a moment."""
    path, lock = tmp_path / "lock", FileLock()
    descriptor = lock.acquire(opener(path))
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=[descriptor]):
        lock.release()
        with locked(opener(path)):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_the_holder_is_named_though_another_process_took_the_lock(tmp_path: Path) -> None:
    path, lock = tmp_path / "lock", FileLock()
    descriptor = lock.acquire(opener(path))
    assert holder_of(path) == f"process {os.getpid()}"
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=[descriptor]) as heir:
        os.close(descriptor)  # As at the end of this process.
        for signed in ("", f"{ended_process()}\n", f"{os.getpid()}\n"):
            path.write_text(signed)
            assert holder_of(path) == f"process {heir.pid}"
        heir.send_signal(signal.SIGKILL)


def test_a_holder_is_named_as_it_signed_where_the_system_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gazette_aio.aio.file_lock._PROCESSES", tmp_path / "none")
    path, lock = tmp_path / "lock", FileLock()
    assert holder_of(path) == "another process"
    lock.acquire(opener(path))
    lock.sign()
    assert holder_of(path) == f"process {os.getpid()}"
    ended = ended_process()
    path.write_text(f"{ended}\n")
    assert holder_of(path) == (
        f"another process (process {ended}, which took the lock, doesn't run here)"
    )
    for damaged in ("9" * 20 + "\n", "-1\n", "\0"):
        path.write_text(damaged)
        assert holder_of(path) == "another process"
    lock.release()


def ended_process() -> int:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    return process.pid
