"""Run the command line as users do: as a process."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
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


@pytest.fixture
def cli() -> CLI:
    """Run `gazette-aio` with arguments, and return what it printed."""

    async def run(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Finished:
        process = await spawn(*args, env=env)
        out, err = await process.communicate(stdin)
        return Finished(process.returncode, out, err.decode())

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
