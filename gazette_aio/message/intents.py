"""Durable acknowledgement intents: what makes transactions of a Publisher survive crashes."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_aio.message.intent_record import (
    WRITTEN,
    AckIntent,
    IntentRecord,
    State,
    decode_record,
    encode_record,
)
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.client import AppendService, AsyncAppend


class IntentLog:
    """A file which holds the acknowledgements of the latest transaction, and a state beside them.

    The record is replaced as a whole: it's written to a temporary file, synced, and renamed, and
    the directory is synced. Whatever the moment of a crash, the file has either the record of the
    transaction, acknowledgements and state both, or the one before.

    A path belongs to one publisher at a time. A process which starts calls `recover()` before
    anything else.

    Args:
        path: Path of the file. Its directory must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._record: IntentRecord | None = None
        self._unsettled = False

    @property
    def state(self) -> State:
        """State of the latest record which was loaded or persisted, or None."""
        return None if self._record is None else self._record.state

    @property
    def unsettled(self) -> bool:
        """Whether a record was persisted whose acknowledgements may not be appended."""
        return self._unsettled

    async def load(self) -> IntentRecord | None:
        """Return the stored record, or None if there is none.

        Cancellation: safe.

        Raises:
            StoreError: If the record can't be read, or is damaged.
        """
        content = await asyncio.to_thread(_read, self.path)
        record = None if content is None else decode_record(content)
        self._record = record
        self._unsettled = record is not None and not record.written
        return record

    async def recover(self, appends: AppendService) -> State:
        """Append the stored acknowledgements once more, and return the stored state.

        Acknowledgements are appended even if the record says that they were: a repeated one commits
        nothing, and rolls back what its producer left pending when it crashed.

        Args:
            appends: Service to append through.

        Returns:
            The state stored with the latest transaction, which is now committed; or None.

        Cancellation: safe — call again.

        Raises:
            StoreError: If the record can't be read, or is damaged.
            GazetteError: If an append fails. Call again.
        """
        record = await self.load()
        if record is None:
            return None
        await append_intents(appends, record.intents)
        await self.mark_written()
        return record.state

    async def persist(self, intents: Sequence[AckIntent], state: State = None) -> None:
        """Store acknowledgements and state as one durable record.

        Cancellation: poisons — the record may or may not be stored; call `recover()`.

        Raises:
            StoreError: If it can't be stored, or the record before isn't written. If `unsettled`
                is set thereafter, it may be stored nevertheless; call `recover()`.
        """
        if self._unsettled:
            raise StoreError(f"{self.path}: intents of a transaction before are not written")
        content = encode_record(intents, state)
        writing = asyncio.ensure_future(asyncio.to_thread(self._replace, content))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Race: the thread goes on. What it does must not happen behind a later call's back.
            self._unsettled = True
            await _finished(writing)
            raise
        self._record = IntentRecord(tuple(intents), state)
        self._unsettled = True

    async def mark_written(self) -> None:
        """Note that the acknowledgements of the record were appended.

        It isn't synced: should it be lost, they're appended again, which does no harm.

        Cancellation: safe — they're appended again by `recover()`.

        Raises:
            StoreError: If it can't be noted.
        """
        await asyncio.to_thread(_append, self.path, WRITTEN)
        if self._record is not None:
            self._record = IntentRecord(self._record.intents, self._record.state, written=True)
        self._unsettled = False

    def __repr__(self) -> str:
        state = "unsettled" if self._unsettled else "settled"
        return f"<IntentLog {os.fspath(self.path)!r} {state}>"

    def _replace(self, content: bytes) -> None:
        directory = self.path.parent
        temporary: str | None = None
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # Invariant: from here on the record may be found by a later process.
            Path(temporary).replace(self.path)
            temporary = None
            self._unsettled = True
            _sync_directory(directory)
        except OSError as error:
            raise StoreError(f"{self.path}: {error}") from error
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


async def append_intents(appends: AppendService, intents: Iterable[AckIntent]) -> None:
    """Append acknowledgements, each to its journal, and wait until all are committed.

    Cancellation: aborts — some may be appended; append all of them again.

    Raises:
        GazetteError: If an append fails.
    """
    pending: list[AsyncAppend] = []
    for journal, intent in intents:
        append = await appends.start_append(journal)
        append.write(intent)
        append.release()
        pending.append(append)
    for append in pending:
        await append


async def _finished(future: asyncio.Future[None]) -> None:
    """Wait until `future` is done, however often the caller is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            # The caller re-raises the cancellation it began with.
            continue
    # Mark its exception as retrieved: the record is unsettled either way.
    future.exception()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error


def _append(path: Path, content: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return  # Directories can't be opened there.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
