"""Run the command line in a process of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import os
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.cli.app import run
from gazette_aio.testing import create_journals, journal_spec
from gazette_aio.testing.ports import free_port

_PREFIXES = ("BROKER_", "CONSUMER_")
NO_BROKER_VARIABLES = {name: v for name, v in os.environ.items() if not name.startswith(_PREFIXES)}


@dataclasses.dataclass(frozen=True)
class Finished:
    """What became of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


CLI = Callable[..., Awaitable[Finished]]


async def spawn(*args: str, env: dict[str, str] | None = None, **kwargs: Any) -> Any:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gazette_aio",
        *args,
        stdin=kwargs.pop("stdin", asyncio.subprocess.PIPE),
        stdout=kwargs.pop("stdout", asyncio.subprocess.PIPE),
        stderr=asyncio.subprocess.PIPE,
        env={**NO_BROKER_VARIABLES, **(env or {})},
        **kwargs,
    )


def drawn_on(terminal: int) -> bytes:
    """Return all that was written to a terminal, whose other end is closed, and close it."""
    drawn = b""
    try:
        with contextlib.suppress(OSError):  # There's no more.
            while piece := os.read(terminal, 1 << 16):
                drawn += piece
    finally:
        os.close(terminal)
    return drawn


@pytest.fixture
def inline(monkeypatch, capfdbinary) -> Callable[..., Finished]:
    """Run `gazette-aio` within this process: for tests without a broker, which this spares time."""
    for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
        monkeypatch.delenv(name)

    def run_inline(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Finished:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        code = run(args)
        captured = capfdbinary.readouterr()
        return Finished(code, captured.out, captured.err.decode())

    return run_inline


class Worker:
    """A process that runs the command line again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, args: tuple[str, ...], stdin: bytes, env: dict[str, str]) -> Finished:
        request = {
            "args": args,
            "stdin": base64.b64encode(stdin).decode(),
            "env": {**NO_BROKER_VARIABLES, **env},
            "directory": str(Path.cwd()),
        }
        with self._lock:
            process = self._process or self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        out, err = (base64.b64decode(answer[name]) for name in ("out", "err"))
        return Finished(answer["code"], out, err.decode())

    def _started(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        args = [sys.executable, "-m", "tests.cli.worker"]
        self._process = subprocess.Popen(args, stdin=pipe, stdout=pipe)
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def cli(worker) -> CLI:
    """Run `gazette-aio` with arguments, and return what it printed."""

    async def run(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Finished:
        return await asyncio.to_thread(worker.run, args, stdin, env or {})

    return run


@pytest.fixture
def broker_cli(gazette_broker, cli) -> CLI:
    """Run `gazette-aio` against the broker of the test."""

    async def run(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Finished:
        variables = {"BROKER_ADDRESS": gazette_broker.endpoint, **(env or {})}
        return await cli(*args, stdin=stdin, env=variables)

    return run


@pytest.fixture
async def journal(gazette_client) -> str:
    """Name of a journal of the test."""
    spec = journal_spec("test/journal")
    await create_journals(gazette_client, spec)
    return spec.name


@pytest.fixture
def unused_port() -> int:
    """A port of the loopback interface where nobody listens."""
    return free_port()


@pytest.fixture
def editor(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Return the variables of an editor, each use of which runs another script of sed."""

    def make(*commands: str) -> dict[str, str]:
        path = tmp_path / "editor"
        lines = [
            "#!/bin/sh",
            f"count=$(cat {tmp_path}/count 2>/dev/null || echo 0)",
            f"echo $((count + 1)) > {tmp_path}/count",
            f'cp "$1" {tmp_path}/seen.$count',
            "case $count in",
            *(
                f'{index}) sed -i {shlex.quote(command)} "$1" ;;'
                for index, command in enumerate(commands)
            ),
            "esac",
        ]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"GAZ_EDITOR": os.fspath(path)}

    return make
