"""Recovery of a replica's files from the recovery log of its shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.consumer.recoverylog import Author
    from gazette_aio.protocol.consumer import GetHintsResponse
    from gazette_aio.protocol.recoverylog import FSMHints


class Recorder(Protocol):
    """Records the files of a store into the recovery log, as far as shards need to know it."""

    async def build_hints(self) -> FSMHints:
        """Return hints of the files that are recorded.

        Cancellation: safe.
        """
        ...

    @property
    def recorded_bytes(self) -> int:
        """Length of what was recorded so far."""
        ...

    def when_committed(self, size: int, call: Callable[[], object]) -> None:
        """Have a function called once that length is committed."""
        ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery."""

    recorder: Recorder | None = None
    """Recorder that continues the log, for the application's store; None without a log."""
    hints: FSMHints | None = None
    """Hints of the recovered files; None without a log."""


class Recovery(Protocol):
    """Recovery of one replica. `complete()` is called while `play()` runs, or after it returned."""

    @property
    def log(self) -> str:
        """Recovery log of the shard, empty if it has none."""
        ...

    @property
    def hints(self) -> GetHintsResponse | None:
        """Hints that were fetched for the recovery, once they are."""
        ...

    async def play(self, on_tailing: Callable[[], None]) -> None:
        """Recover the files, then follow the log until `complete()` ends that.

        Args:
            on_tailing: Called once the files are as of the end of the log.

        Raises:
            GazetteError: The files can't be recovered. `complete()` isn't called then.

        Cancellation: aborts.
        """
        ...

    async def complete(self, author: Author) -> Recovered:
        """Fence the log for `author`, and return once the files are as of all before the fence.

        Raises:
            RecoveryError: The playback failed.

        Cancellation: aborts — the log may be fenced.
        """
        ...

    def cancel(self) -> None:
        """End what would hold up the end of the store: appends of the recorder. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Release what is left, after the store is destroyed: the recorder, and files. Idempotent.

        Cancellation: waits — the framework doesn't cancel it.
        """
        ...


class NoRecoveryLog:
    """Recovery of shards without a recovery log: there's nothing to recover."""

    def __init__(self) -> None:
        self.log = ""
        self.hints: GetHintsResponse | None = None

    async def play(self, on_tailing: Callable[[], None]) -> None:
        """Be ready at once.

        Cancellation: safe.
        """
        on_tailing()

    async def complete(self, author: Author) -> Recovered:  # noqa: ARG002 - There's no log to fence.
        """Return neither a recorder nor hints.

        Cancellation: safe.
        """
        return Recovered()

    def cancel(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing.

        Cancellation: safe.
        """
