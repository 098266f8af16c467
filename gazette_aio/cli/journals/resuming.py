"""Reads that signals end as write heads do, and files of offsets to resume from."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from pathlib import Path


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Await work, but cancel it at the first SIGINT or SIGTERM; a second signal interrupts.

    Cancellation: aborts — the work is cancelled, and its end awaited.
    """
    with _stopping() as stopped:
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            task.cancel()
            await asyncio.wait((task, stopping))
        if not task.cancelled():
            task.result()


@contextmanager
def _stopping() -> Generator[asyncio.Event]:
    """Yield an event that the first signal sets; a second signal interrupts the process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop(_number: int, _frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        # Not a handler of the loop, which a full pipe may block.
        loop.call_soon_threadsafe(stopped.set)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before: list[Callable[..., Any] | int | None] = [signal.signal(each, stop) for each in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def offsets_saved(
    given: str | None, out: Path | None, offsets: Callable[[], str]
) -> Generator[None]:
    """Save offsets when the context is left, also by an error of Gazette, unless there's no file.

    Args:
        given: File of the offsets at which reading began, or None. If it's the file to write, it's
            moved first: after a crash the file is missing, and the moved file has the old offsets.
        out: File to write.
        offsets: Returns the offsets at the end.

    Raises:
        OSError: Writing failed.
    """
    if given is not None and out is not None and out.exists() and out.samefile(given):
        out.rename(out.with_name(f"{out.name}.previous"))
    try:
        yield
    except pb.GazetteError:
        _save(out, offsets())
        raise
    _save(out, offsets())


def _save(path: Path | None, text: str) -> None:
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.temp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
