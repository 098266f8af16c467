"""Durable acknowledgement intents: what makes transactions of a Publisher survive crashes."""

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
        self._loaded = False
        self._recovered = False  # Nothing but what this object persisted is to be recovered.
        self._unsettled = False

    @property
    def state(self) -> State:
        """State of the latest record which was loaded or persisted, or None: a copy."""
        return None if self._record is None else copy.deepcopy(self._record.state)

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
        content = await in_thread(_read, self.path)
        record = None if content is None else decode_record(content)
        self._record = record
        self._loaded = True
        self._unsettled = record is not None and not record.written
        return record

    async def require_settled(self) -> None:
        """Load the record, unless that's done, and see to it that none has to be recovered.

        Cancellation: safe.

        Raises:
            StoreError: If `recover()` must be called, or the record can't be read or is damaged.
        """
        if not self._loaded:
            await self.load()
        if self._unsettled:
            raise StoreError(
                f"{self.path}: intents of a transaction before are not written: call recover()"
            )

    async def recover(self, appends: AppendService) -> State:
        """Append the stored acknowledgements once more, and return the stored state.

        The first call appends them even if the record says that they were: a repeated one commits
        nothing, and rolls back what its producer left pending when it crashed. Later calls append
        only those of a transaction which was left in doubt.

        Args:
            appends: Service to append through. Journals which failed need its `clear_error()`.

        Returns:
            The state stored with the latest transaction, which is now committed; or None.

        Cancellation: safe — call again.

        Raises:
            StoreError: If the record can't be read, or is damaged.
            GazetteError: If an append fails. Call again.
        """
        if not self._recovered or self._unsettled:
            record = await self.load()
            if record is not None:
                self._unsettled = True
                await append_intents(appends, record.intents)
                await self.mark_written()
            self._recovered = True
        return self.state

    async def persist(self, intents: Sequence[AckIntent], state: State = None) -> None:
        """Store acknowledgements and state as one durable record.

        Cancellation: poisons — the record may or may not be stored; call `recover()`.

        Raises:
            StoreError: If it can't be stored, or the record before isn't written or is damaged. If
                `unsettled` is set thereafter, it may be stored nevertheless; call `recover()`.
        """
        await self.require_settled()
        content = encode_record(intents, state)
        try:
            await in_thread(self._replace, content)
        except asyncio.CancelledError:
            self._unsettled = True
            raise
        self._record = decode_record(content)
        self._recovered = True
        self._unsettled = True

    async def mark_written(self) -> None:
        """Note that the acknowledgements of the record were appended.

        It isn't synced: should it be lost, they're appended again, which does no harm.

        Cancellation: safe — they're appended again by `recover()`.

        Raises:
            StoreError: If it can't be noted.
        """
        record = self._record
        if record is not None and not record.written:
            await in_thread(_append, self.path, WRITTEN)
            self._record = dataclasses.replace(record, written=True)
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
