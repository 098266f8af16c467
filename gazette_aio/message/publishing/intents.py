"""Durable log of acknowledgement intents, by which transactions survive crashes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gazette_aio.aio.file_lock import FileLock
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.threads import in_thread
from gazette_aio.message.publishing import intent_files as files
from gazette_aio.message.publishing.fence import Hold, read_hold, swap_hold
from gazette_aio.message.publishing.intent_files import PLAIN, RecordID
from gazette_aio.message.publishing.intent_record import (
    WRITTEN,
    AckIntent,
    IntentRecord,
    State,
    decode_record,
    encode_record,
)
from gazette_aio.protocol.errors import FencedError, LockedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.client import AsyncAppend, AsyncJournalClient
    from gazette_aio.message.publishing.fence import Fence

_POLL_SECONDS: Final = 0.02


class IntentLog(Owner):
    """A file that holds the acknowledgements of the latest transaction, along with a state.

    The record is replaced as a whole: it's written to a temporary file, synced, and renamed, and
    the directory is synced. After a crash at any moment, the file holds either the record of the
    transaction, both acknowledgements and state, or the record before.

    A log belongs to one process at a time. `recover()`, or else the first transaction, locks the
    file `path` + `.lock`, until `aclose()`, the end of the process, or that of this object. After
    its start, a process calls `recover()` for the state from which it resumes. A transaction that
    finds an earlier one in doubt recovers it first.

    The lock works on one machine. If several machines can reach the directory, such as a network
    file system or a volume that moves, give the log a `fence`: `recover()` takes the register of
    the fence, and each commit appends to its journal and checks the register. A former holder of
    the fence, which may still run or pause, fails with FencedError at its next commit, and nothing
    of that transaction commits. Records are then files named `path` + `.EPOCH-NUMBER`.

    Args:
        path: Path of the file. Its directory must exist.
        fence: Identity of the publisher on all machines; None for a lock alone.
        lock_timeout: Seconds to wait for the lock, such as for the end of a predecessor; 0 by
            default.
    """

    exclusive: bool = False
    """Whether a transaction needs its turn before its block; always False."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fence: Fence | None = None,
        lock_timeout: float = 0.0,
    ) -> None:
        self.path: Path = Path(path)
        self.fence = fence
        self.turn: asyncio.Lock = asyncio.Lock()
        """Held while a transaction commits, and while `recover()` runs."""
        self._lock_timeout = lock_timeout
        self._lock = FileLock()
        self._record: IntentRecord | None = None
        self._record_id = PLAIN
        """Record in `_record`, which may be undecided."""
        self._obsolete: RecordID | None = None
        """Record before the decided one."""
        self._hold: Hold | None = None
        self._fenced: str = ""
        """Reason why this log decides nothing any more."""
        self._owned: set[tuple[int, str]] = set()
        """Epochs and nonces of holds that this object has taken, or may have."""
        self._recovered = False  # Only records of this object can be in doubt.
        self._in_doubt = False

    @property
    def state(self) -> Any:
        """Copy of the state of the latest record recovered or persisted, or None.

        A checkpoint, bytes, or an object of JSON: the program that stored it knows its type.
        """
        state = None if self._record is None else self._record.state
        return copy.deepcopy(state) if isinstance(state, dict) else state

    @property
    def in_doubt(self) -> bool:
        """Whether acknowledgements of the record may not be appended yet."""
        return self._in_doubt

    async def load(self) -> IntentRecord | None:
        """Return the stored record, or None if there is none. Doesn't lock the log.

        With a fence, that's the newest record, which may be undecided before `recover()`.

        Raises:
            StoreError: The record can't be read, or is damaged.

        Cancellation: safe.
        """
        if self.fence is None or self._hold is not None:
            return await self._read(self._record_id)
        return await self._read(max(await self._find_records(), default=PLAIN))

    @property
    def is_ready(self) -> bool:
        """Whether a transaction may begin without `prepare()`."""
        has_fence = self.fence is None or self._hold is not None
        # What a commit under way has stored is decided before the next one.
        is_decided = not self._in_doubt or self.turn.locked()
        return self._lock.is_held and has_fence and is_decided and not self._fenced

    async def prepare(self, appends: AsyncJournalClient) -> None:
        """Lock the log, and recover an earlier transaction that is in doubt.

        Args:
            appends: Service to append through.

        Raises:
            LockedError: The log is in use by another process.
            FencedError: Another process has taken the fence.
            StoreError: The log has a fence, which `recover()` must take first; or the record can't
                be read, or is damaged.
            GazetteError: An append fails. Call again.

        Cancellation: safe — call again.
        """
        async with self.turn:
            if not self._lock.is_held:
                await self._open()
        if self._in_doubt and (self.fence is None or self._hold is not None):
            await self.recover(appends)
        await self.require_recovered()

    async def require_recovered(self) -> None:
        """Lock the log and load the record once, and raise if it has to be recovered.

        Raises:
            LockedError: The log is in use by another process.
            FencedError: Another process has taken the fence.
            StoreError: `recover()` must be called, or the record can't be read or is damaged.

        Cancellation: safe.
        """
        if not self._lock.is_held:
            await self._open()
        self._check_fenced()
        if self.fence is not None and self._hold is None:
            raise StoreError(f"{self.path}: the log has a fence: call recover()")
        if self._in_doubt:
            raise StoreError(
                f"{self.path}: intents of an earlier transaction are not written: call recover()"
            )

    async def recover(self, appends: AsyncJournalClient) -> Any:
        """Lock the log, take its fence, append the stored acknowledgements, and return the state.

        The first call appends them even if the record is marked as written: a repeated one commits
        nothing, and rolls back the messages that its producer left pending at a crash. Later calls
        append only those of a transaction in doubt.

        Args:
            appends: Service to append through.

        Returns:
            The state stored with the latest transaction, which is now committed; or None.

        Raises:
            LockedError: The log is in use by another process.
            FencedError: Another process has taken the fence from this object.
            StoreError: The record can't be read, or is damaged or missing.
            GazetteError: An append fails. Call again.

        Cancellation: safe — call again.
        """
        async with self.turn:
            if not self._lock.is_held:
                await self._open()
            self._check_fenced()
            if not self._recovered or self._in_doubt:
                if self.fence is not None:
                    self._hold = await self._take_fence(appends, self.fence)
                    self._record_id = self._hold.record
                record = self._record = await self._read(self._record_id)
                if record is None and self._record_id != PLAIN:
                    self._lose_fence("a later owner, which removed the record")
                if record is not None:
                    self._in_doubt = True
                    # A crash of the machine must not bring back an older record than the one which
                    # readers see acknowledged.
                    await in_thread(_sync, self.path)
                    await append_intents(appends, record.intents)
                await self.mark_written()
                if self._hold is not None:
                    await in_thread(_remove_others, self.path, self._hold)
                self._recovered = True
            return self.state

    async def persist(self, intents: Sequence[AckIntent], state: State = None) -> None:
        """Store acknowledgements and state as one durable record.

        Raises:
            LockedError: The log is in use by another process.
            FencedError: Another process has taken the fence.
            StoreError: It can't be stored, or the record before isn't written or is damaged. If
                `in_doubt` is set afterwards, it may be stored nevertheless; call `recover()`.

        Cancellation: poisons — the record may or may not be stored; call `recover()`.
        """
        await self.require_recovered()
        content = encode_record(intents, state)
        hold, record_id = self._hold, self._record_id
        try:
            if hold is None:
                await in_thread(files.replace_file, self.path, content, self._doubt)
            else:
                is_own = record_id.epoch == hold.epoch
                record_id = RecordID(hold.epoch, record_id.number + 1 if is_own else 1)
                await in_thread(files.create_file, record_id.file_of(self.path), content)
        except asyncio.CancelledError:
            self._in_doubt = True
            raise
        self._record = decode_record(content)
        self._record_id = record_id
        self._recovered = True
        self._in_doubt = True

    async def decide(self, appends: AsyncJournalClient) -> None:
        """Decide the transaction whose record is persisted. Without a fence, that's so already.

        Raises:
            FencedError: Another process has taken the fence, and decides the outcome.
            GazetteError: The append to the fence's journal failed; call `recover()`.

        Cancellation: poisons — the transaction may or may not be decided; call `recover()`.
        """
        held = self._hold
        if held is None or self.fence is None:
            return
        wanted = held._replace(record=self._record_id)
        found = await swap_hold(appends, self.fence, held, wanted)
        if found != wanted:
            self._lose_fence(f"epoch {found.epoch}" if found else "nobody")
        self._hold, self._obsolete = wanted, held.record

    async def mark_written(self) -> None:
        """Mark the record as written: its acknowledgements were appended.

        The mark isn't synced: if it's lost, they're appended again, which does no harm.

        Raises:
            FencedError: Another process has taken the fence, and removed the record.
            StoreError: The mark can't be written.

        Cancellation: safe — they're appended again by `recover()`.
        """
        record = self._record
        if record is not None and not record.written:
            file = self._record_id.file_of(self.path)
            try:
                await in_thread(self._mark, file)
            except FileNotFoundError as error:
                if self._hold is not None:
                    self._lose_fence("a later owner, which removed the record")
                raise StoreError(f"{file}: {error.strerror}") from error
            self._record = dataclasses.replace(record, written=True)
        self._in_doubt = False

    async def aclose(self) -> None:
        """Release the lock of the log. Idempotent.

        Cancellation: safe.
        """
        # The file stays: a process may be about to lock it, and the next would lock another.
        self._lock.release()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self._lock.release()

    def __repr__(self) -> str:
        state = "fenced" if self._fenced else "in doubt" if self._in_doubt else "written"
        return f"<IntentLog {os.fspath(self.path)!r} {state}>"

    async def _open(self) -> None:
        """Lock the log, and load the record unless it's the register of a fence that names it."""
        deadline = time.monotonic() + self._lock_timeout
        while True:
            try:
                await in_thread(
                    files.lock, self._lock, self.path, is_optional=self.fence is not None
                )
                break
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_POLL_SECONDS)
        # Others may have used the log while this object didn't hold the lock.
        self._recovered, self._hold, self._in_doubt = False, None, False
        self._owned.clear()
        try:
            if self.fence is None:
                if (found := max(await self._find_records(), default=PLAIN)) != PLAIN:
                    text = f"{found.file_of(self.path)} is of a log with a fence: give the fence"
                    raise StoreError(text)
                self._record = await self._read(PLAIN)
                self._in_doubt = self._record is not None and not self._record.written
        except BaseException:
            self._lock.release()
            raise

    async def _take_fence(self, appends: AsyncJournalClient, fence: Fence) -> Hold:
        missing: Hold | None = None
        while True:
            held = await read_hold(appends, fence)
            if self._owned and held is not None and held[:2] not in self._owned:
                self._lose_fence(f"epoch {held.epoch}")
            # Invariant: records are looked for after the register was read, so that all that it
            # may name are there.
            records = await self._find_records()
            newest = max(records, default=PLAIN)
            if held is None:
                # Nobody held it, or brokers have lost the register: the newest record counts.
                held_epoch, record = 0, await self._newest_sound(records)
            else:
                held_epoch, record = held.epoch, held.record
                if record != PLAIN and record not in records:
                    if held != missing:
                        missing = held  # Race: its owner may have decided another by now.
                        continue
                    raise StoreError(
                        f"{record.file_of(self.path)} is missing: the latest transaction of "
                        f"{fence.name!r} was recorded elsewhere"
                    )
            wanted = Hold.after(max(held_epoch, newest.epoch), record)
            self._owned.add(wanted[:2])
            if await swap_hold(appends, fence, held, wanted) == wanted:
                return wanted

    async def _newest_sound(self, records: Iterable[RecordID]) -> RecordID:
        damage: StoreError | None = None
        for record in sorted(records, reverse=True):
            try:
                await self._read(record)
            except StoreError as error:
                damage = damage or error  # It may be torn, and isn't decided then.
            else:
                return record
        if damage is not None:
            raise damage
        return PLAIN

    def _check_fenced(self) -> None:
        if self._fenced:
            raise FencedError(self._fenced)

    def _lose_fence(self, owner: str) -> NoReturn:
        assert self.fence is not None
        self._fenced = (
            f"{self.path}: {self.fence.name!r} of {self.fence.journal} was taken by {owner}"
        )
        raise FencedError(self._fenced)

    def _doubt(self) -> None:
        self._in_doubt = True

    def _mark(self, file: Path) -> None:
        files.append_file(file, WRITTEN)
        if self._obsolete is not None:
            files.remove_file(self._obsolete.file_of(self.path))
            self._obsolete = None

    async def _find_records(self) -> set[RecordID]:
        return await in_thread(files.find_records, self.path)

    async def _read(self, record_id: RecordID) -> IntentRecord | None:
        content = await in_thread(files.read_file, record_id.file_of(self.path))
        return None if content is None else decode_record(content)


async def append_intents(appends: AsyncJournalClient, intents: Iterable[AckIntent]) -> None:
    """Append acknowledgements, each to its journal, and wait until all are committed.

    Raises:
        GazetteError: An append fails.

    Cancellation: aborts — some may be appended; append all of them again.
    """
    pending: list[AsyncAppend] = []
    for journal, intent in intents:
        append = await appends.start_append(journal)
        append.write(intent)
        append.release()
        pending.append(append)
    for append in pending:
        await append


def _sync(path: Path) -> None:
    try:
        files.sync_directory(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _remove_others(path: Path, hold: Hold) -> None:
    """Remove the records of former owners, except the one that counts."""
    for record in files.find_records(path):
        # Race: a later owner may have records by now.
        if record.epoch < hold.epoch and record != hold.record:
            files.remove_file(record.file_of(path))
