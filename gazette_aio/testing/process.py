"""Broker process that tests can stop, kill and restart."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import msgspec

from gazette_aio.aio.owner import Owner
from gazette_aio.protocol import ConfigurationError
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_STDERR_BYTES = 4096


class _Ready(msgspec.Struct):
    """Line that `gazette-aio serve` prints when it's ready."""

    endpoint: str
    http_endpoint: str | None = None


@dataclasses.dataclass(frozen=True)
class _Running:
    process: asyncio.subprocess.Process
    stderr: IO[bytes]
    ready: _Ready


class BrokerProcess(Owner):
    """`gazette-aio serve` on a directory, as an async context manager.

    Args:
        data_dir: Directory of the broker; created if it's missing, and kept at the end.
        port: gRPC port; 0 chooses a free port at each start.
        options: Further command-line options of `gazette-aio serve`.
    """

    def __init__(self, data_dir: str | Path, *, port: int = 0, options: Sequence[str] = ()) -> None:
        self.data_dir: Path = Path(data_dir)
        self.port = port
        self.options: tuple[str, ...] = tuple(options)
        self._running: _Running | None = None
        self._asked_to_end = False

    def __repr__(self) -> str:
        state = f"pid={self.pid} at {self.endpoint}" if self._running else "stopped"
        return f"<BrokerProcess {self.data_dir} {state}>"

    def __del__(self) -> None:
        if getattr(self, "_running", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)

    @property
    def endpoint(self) -> str:
        """Address of the running broker, such as `http://127.0.0.1:40123`."""
        return self._require().ready.endpoint

    @property
    def http_endpoint(self) -> str | None:
        """Address of the HTTP gateway, or None without a gateway."""
        return self._require().ready.http_endpoint or None

    @property
    def pid(self) -> int:
        """Process ID of the running broker."""
        return self._require().process.pid

    def _require(self) -> _Running:
        if self._running is None:
            raise UsageError("the broker isn't running")
        return self._running

    async def start(self) -> None:
        """Start the process, and wait until it serves.

        Raises:
            ConfigurationError: The process ended. The text is its stderr.

        Cancellation: aborts — the process is killed.
        """
        assert self._running is None, "the broker runs already"
        command = [sys.executable, "-m", "gazette_aio", "serve", "--http-port=0"]
        command += [f"--data-dir={self.data_dir}", f"--port={self.port}", *self.options]
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed after the end of the process.
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )  # fmt: skip
        except BaseException:
            stderr.close()
            raise
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_START_SECONDS):
                line = await process.stdout.readline()
            if not line:
                await process.wait()
                raise ConfigurationError(_tail(stderr) or f"exit code {process.returncode}")
            ready = msgspec.json.decode(line, type=_Ready)
        except BaseException:
            await _end(process, signal.SIGKILL)
            stderr.close()
            raise
        self._running = _Running(process, stderr, ready)
        self._asked_to_end = False

    async def stop(self) -> None:
        """Terminate the broker (SIGTERM), and wait for its end. Idempotent.

        Raises:
            UsageError: The exit code isn't zero.

        Cancellation: safe — call again.
        """
        running = self._running
        if running is None:
            return
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                # Race: the broker may not handle a second signal any more.
                asked, self._asked_to_end = self._asked_to_end, True
                await _end(running.process, None if asked else signal.SIGTERM)
        except TimeoutError:
            await _end(running.process, signal.SIGKILL)
        self._running = None
        text = _tail(running.stderr)
        running.stderr.close()
        code = running.process.returncode
        if code != 0:
            raise UsageError(f"the broker ended with exit code {code}: {text}")

    async def kill(self) -> None:
        """Kill the process (SIGKILL), like a crash. Idempotent.

        Cancellation: safe — call again.
        """
        if (running := self._running) is None:
            return
        await _end(running.process, signal.SIGKILL)
        self._running = None
        running.stderr.close()

    async def aclose(self) -> None:
        """Stop the broker. Idempotent.

        Cancellation: safe — call again.
        """
        await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def _leave(self, error: BaseException | None) -> None:
        await (self.kill() if error is not None else self.stop())


async def _end(process: asyncio.subprocess.Process, number: signal.Signals | None) -> None:
    """Send a signal, if given, and wait for the end of a process."""
    if number is not None and process.returncode is None:
        # Race: the process may have ended without asyncio's notice. Then send_signal() would reap
        # it, and the thread which waits for the process would lose the exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
    # Reading stdout to its end also closes the pipe's transport.
    await process.communicate()


def _tail(stderr: IO[bytes]) -> str:
    size = stderr.seek(0, 2)
    stderr.seek(max(0, size - _STDERR_BYTES))
    return stderr.read().decode("utf-8", "replace").strip()
