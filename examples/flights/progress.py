"""Show how far the demo has come: a bar on a terminal, lines elsewhere. All of it on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from types import TracebackType

_LINE_SECONDS = 2.0


class Progress(Protocol):
    """Where the demo tells what it does."""

    def note(self, text: str) -> None:
        """Tell one event."""

    def begin(self, what: str, total: int) -> None:
        """Begin something of which `total` pieces are to be done."""

    def advance(self, pieces: int) -> None:
        """Tell that so many pieces more are done."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class BarProgress:
    """A bar for a terminal, redrawn in place."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=Console(stderr=True))
        self._task: TaskID | None = None

    def note(self, text: str) -> None:
        self._bars.console.print(text, highlight=False)

    def begin(self, what: str, total: int) -> None:
        self._task = self._bars.add_task(what, total=total)

    def advance(self, pieces: int) -> None:
        assert self._task is not None
        self._bars.advance(self._task, pieces)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()


class LineProgress:
    """A line now and then, for logs and pipes."""

    def __init__(self) -> None:
        self._what = ""
        self._total = 0
        self._done = 0
        self._printed_at = 0.0

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._printed_at = time.monotonic()

    def advance(self, pieces: int) -> None:
        self._done += pieces
        now = time.monotonic()
        if now - self._printed_at >= _LINE_SECONDS or self._done == self._total:
            self._printed_at = now
            self.note(f"{self._what}: {self._done:,} of {self._total:,}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def progress_for_stderr() -> Progress:
    """Return the kind of progress which suits stderr."""
    return BarProgress() if sys.stderr.isatty() else LineProgress()
