"""Durable log of acknowledgement intents, by which transactions survive crashes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.publishing.intent_record import (
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

    from gazette_aio.client import AsyncAppend, AsyncJournalClient


class IntentLog:
    """A file which holds the acknowledgements of the latest transaction, along with a state.

    The record is replaced as a whole: it's written to a temporary file, synced, and renamed, and
    the directory is synced. After a crash at any moment, the file holds either the record of the
    transaction, both acknowledgements and state, or the record before.

    A path belongs to one publisher at a time. After its start, a process calls `recover()` before
    it publishes.

    Args:
        path: Path of the file. Its directory must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._record: IntentRecord | None = None
        self._loaded = False
        self._recovered = False  # Only records of this object can be in doubt.
        self._in_doubt = False

    @property
    def state(self) -> State:
        """Copy of the state of the latest record loaded or persisted, or None."""
        return None if self._record is None else copy.deepcopy(self._record.state)

    @property
    def in_doubt(self) -> bool:
        """Whether acknowledgements of the record may not be appended yet."""
        return self._in_doubt

    async def load(self) -> IntentRecord | None:
        """Return the stored record, or None if there is none.

        Cancellation: safe.

        Raises:
            StoreError: If the record can't be read, or is damaged.
        """
        content = await in_thread(_read, self.path)
        record = None if content is None else decode_record(content)
        self._record = record
        self._loaded = True
        self._in_doubt = record is not None and not record.written
        return record

    async def require_recovered(self) -> None:
        """Load the record once, and raise if it has to be recovered.

        Cancellation: safe.

        Raises:
            StoreError: If `recover()` must be called, or the record can't be read or is damaged.
        """
        if not self._loaded:
            await self.load()
        if self._in_doubt:
            raise StoreError(
                f"{self.path}: intents of a transaction before are not written: call recover()"
            )

    async def recover(self, appends: AsyncJournalClient) -> State:
        """Append the stored acknowledgements again, and return the stored state.

        The first call appends them even if the record is marked as written: a repeated one commits
        nothing, and rolls back the messages which its producer left pending at a crash. Later calls
        append only those of a transaction in doubt.

        Args:
            appends: Service to append through. Failed journals need its `clear_error()`.

        Returns:
            The state stored with the latest transaction, which is now committed; or None.

        Cancellation: safe — call again.

        Raises:
            StoreError: If the record can't be read, or is damaged.
            GazetteError: If an append fails. Call again.
        """
        if not self._recovered or self._in_doubt:
            record = await self.load()
            if record is not None:
                self._in_doubt = True
                await append_intents(appends, record.intents)
                await self.mark_written()
            self._recovered = True
        return self.state

    async def persist(self, intents: Sequence[AckIntent], state: State = None) -> None:
        """Store acknowledgements and state as one durable record.

        Cancellation: poisons — the record may or may not be stored; call `recover()`.

        Raises:
            StoreError: If it can't be stored, or the record before isn't written or is damaged. If
                `in_doubt` is set afterwards, it may be stored nevertheless; call `recover()`.
        """
        await self.require_recovered()
        content = encode_record(intents, state)
        try:
            await in_thread(self._replace, content)
        except asyncio.CancelledError:
            self._in_doubt = True
            raise
        self._record = decode_record(content)
        self._recovered = True
        self._in_doubt = True

    async def mark_written(self) -> None:
        """Mark the record as written: its acknowledgements were appended.

        The mark isn't synced: if it's lost, they're appended again, which does no harm.

        Cancellation: safe — they're appended again by `recover()`.

        Raises:
            StoreError: If the mark can't be written.
        """
        record = self._record
        if record is not None and not record.written:
            await in_thread(_append, self.path, WRITTEN)
            self._record = dataclasses.replace(record, written=True)
        self._in_doubt = False

    def __repr__(self) -> str:
        state = "in doubt" if self._in_doubt else "written"
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
            self._in_doubt = True
            _sync_directory(directory)
        except OSError as error:
            raise StoreError(f"{self.path}: {error}") from error
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


async def append_intents(appends: AsyncJournalClient, intents: Iterable[AckIntent]) -> None:
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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error}") from error


def _append(path: Path, content: bytes) -> None:
    try:
        # Not by mode `a`, which would create a file that isn't a record.
        with path.open("r+b") as file:
            file.seek(0, os.SEEK_END)
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
