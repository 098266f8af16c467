"""Store whose state is one JSON file, written anew by each commit."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import aiofiles
import msgspec

from gazette_aio.aio.file_lock import locked
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import explained, fenced
from gazette_aio.consumer.stores.removal import remove_directory
from gazette_aio.consumer.stores.state_file import decode_state_file, encode_state_file
from gazette_aio.message.adapters.restorable import (
    PLAIN_TYPES,
    encode_json,
    require_plain,
    require_restored,
)
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard
    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

S = TypeVar("S")
T = TypeVar("T")

_CURRENT: Final = "state.json"
_NEXT: Final = "next.json"
_FENCE: Final = "fence"
_FIRST_PAUSE: Final = 0.001
_LAST_PAUSE: Final = 0.1


class JSONFileStore(Generic[S]):
    """Store whose state is one JSON file, written anew by each commit.

    It's for states of up to some megabytes. With a recorder, the file is recorded in the recovery
    log of the shard, in the form that Gazette's own JSONFileStore reads and writes. Without one, it
    is a file of this machine: the state is lost to a member elsewhere that the shard moves to, so
    this is for a single member. Stores of several processes that share the directory fence off
    each other.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        state: State of a shard that has none so far: a dict or list of what JSON can hold, a
            dataclass, or a msgspec Struct. It has to support `copy.deepcopy()`, since a repeated
            transaction begins with it anew. A restored state is of its type. A commit fails if the
            state wouldn't be restored as it is: by default, if a dict holds a tuple, bytes, keys
            that aren't texts, or infinity, or a member of a dataclass isn't of its type.
        dumps: Encodes the state as JSON; by default, msgspec does. What your function returns has
            only to be decodable: each commit calls `loads` with it, too.
        loads: Decodes the state; by default, msgspec decodes the type of `state`. Give both for
            other types, and `loads` for dicts whose keys aren't texts.
        directory: Directory of the file if there's no recorder. It's made if it's missing, and
            must be of this shard only.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        state: S,
        *,
        dumps: Callable[[S], bytes | str] | None = None,
        loads: Callable[[bytes], S] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if (recorder is None) == (directory is None):
            raise ConfigurationError("JSONFileStore takes either a recorder or a directory")
        self.state: S = state
        """State, which the application changes within transactions. Restoring replaces it."""
        self.directory: Path = Path(recorder.directory if recorder is not None else directory or "")
        """Directory of the file."""
        self._recorder = recorder
        self._dumps = dumps
        self._kind: type | None = type(state) if loads is None else None
        """Type of restored states, if the store decodes them itself."""
        self._loads = loads or msgspec.json.Decoder(type(state)).decode
        self._initial: tuple[S] | None = None
        self._fence = b""
        self._commits = Commits()

    def start_commit(
        self,
        shard: Shard,  # noqa: ARG002 - The directory is of one shard.
        checkpoint: Checkpoint,
        wait_for: Collection[OpFuture[Any]],
        /,
    ) -> OpFuture[None]:
        """Encode state and checkpoint, and begin to commit them. See `Store.start_commit()`.

        The commit fails with StoreError, before anything is written, if the state wouldn't be
        restored as it is. The error has the path of the member.
        """
        try:
            content = encode_state_file(self._encode, self.state, checkpoint)
        except StoreError as error:
            return finished_operation(error)
        if (recorder := self._recorder) is not None:
            # Nothing that is recorded after the barrier is committed before `wait_for`.
            barrier = recorder.barrier(wait_for)
            return self._commits.start_recorded(
                barrier, lambda: in_thread(_replace_recorded, recorder, content)
            )
        return self._commits.start(wait_for, lambda: self._commit(content))

    async def restore_checkpoint(
        self,
        shard: Shard,  # noqa: ARG002 - The directory is of one shard.
        /,
    ) -> Checkpoint:
        """Read the file, drop changes of this transaction, and fence off other stores.

        Raises:
            StoreError: The file can't be read, or isn't valid.

        Cancellation: safe — other stores may have been fenced off.
        """
        if self._recorder is None:
            self._fence = await _unlocked(self._take, asyncio.sleep)
        try:
            content = await _read(self.directory / _CURRENT)
        except FileNotFoundError:
            if self._initial:
                (self.state,) = copy.deepcopy(self._initial)
            else:
                self._initial = copy.deepcopy((self.state,))
            return Checkpoint()
        except OSError as error:
            raise StoreError(f"opening state file: {error}") from error
        stored = decode_state_file(content)
        try:
            self.state = self._loads(stored.state)
        except Exception as error:
            raise StoreError(f"decode(state): {error}") from error
        return stored.checkpoint

    async def destroy(self) -> None:
        """End the commit under way, and remove the directory of a recorder.

        A directory without a recorder has the only copy of the state, and stays.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()
        if self._recorder is not None:
            await in_thread(remove_directory, self.directory)

    def _encode(self, state: S) -> bytes | str:
        """Return the document of a state, from which it's known to be restored."""
        if self._dumps is not None:
            document = self._dumps(state)
            self._loads(document.encode() if isinstance(document, str) else document)
            return document
        if self._kind not in (None, type(state)):
            text = f"it's of {type(state)!r}, and would be restored as the initial {self._kind!r}"
            raise ValidationError(text)
        encoded = encode_json(state)
        if self._kind in PLAIN_TYPES:
            require_plain(state)
        else:
            require_restored(state, encoded, self._loads)
        return encoded

    async def _commit(self, content: bytes) -> None:
        await _unlocked(lambda: self._replace(content), self._commits.pause)

    def _replace(self, content: bytes) -> None:
        """Replace the file if nobody else has taken the directory. Runs in a thread."""
        with self._locked() as fence:
            if os.pread(fence, 64, 0) != self._fence:
                raise fenced()
            self._write_next(content)
            with explained("renaming next => current"):
                (self.directory / _NEXT).replace(self.directory / _CURRENT)
            with explained("syncing the directory of the state file"):
                descriptor = os.open(self.directory, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _take(self) -> bytes:
        """Fence off other stores of the directory. Runs in a thread."""
        with explained("opening state file"):
            self.directory.mkdir(parents=True, exist_ok=True)
        taken = secrets.token_hex(16).encode()
        with self._locked() as fence, explained("writing the fence"):
            os.pwrite(fence, taken, 0)
        return taken

    @contextlib.contextmanager
    def _locked(self) -> Generator[int]:
        """Lock the directory, and yield the descriptor of its fence.

        Raises:
            _LockedError: Another store has locked it.
        """
        fence = self.directory / _FENCE
        with contextlib.ExitStack() as stack:
            with explained("locking the fence"):
                try:
                    descriptor = stack.enter_context(
                        locked(lambda: os.open(fence, os.O_RDWR | os.O_CREAT, 0o600))
                    )
                except BlockingIOError as error:
                    raise _LockedError from error
            yield descriptor

    def _write_next(self, content: bytes) -> None:
        # Not exclusive: the file of a transaction that was rolled back may be there.
        with explained("creating state file"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            file = os.fdopen(os.open(self.directory / _NEXT, flags, 0o600), "wb", buffering=0)
        with file, explained("closing state file"):
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def __repr__(self) -> str:
        recorded = "recorded " if self._recorder is not None else ""
        return f"<JSONFileStore in the {recorded}directory {str(self.directory)!r}>"


def _replace_recorded(recorder: Recorder, content: bytes) -> OpFuture[Any]:
    """Replace the file, and return the barrier of what was recorded. Runs in a thread."""
    # Recovery logs need an extra, and a file of this machine doesn't.
    from gazette_aio.consumer.recoverylog import RecordedDir  # noqa: PLC0415

    with explained("replacing state file"):
        RecordedDir(recorder).write_file_atomic(_CURRENT, content, temporary=_NEXT)
    return recorder.barrier()


class _LockedError(Exception):
    """Another store has locked the directory."""


async def _unlocked(call: Callable[[], T], pause: Callable[[float], Awaitable[None]]) -> T:
    """Make a call in a thread, again and again while the directory is locked.

    A thread that waited for the lock would be missing elsewhere: whoever has it may be a process
    that is stopped, and threads are few.
    """
    seconds = _FIRST_PAUSE
    while True:
        with contextlib.suppress(_LockedError):
            return await in_thread(call)
        await pause(seconds)
        seconds = min(2 * seconds, _LAST_PAUSE)


async def _read(path: Path) -> bytes:
    async def read() -> bytes:
        # Unbuffered, it's read at once.
        async with aiofiles.open(path, "rb", buffering=0) as file:
            return await file.read()

    # Race: a cancelled coroutine of aiofiles returns while its thread still uses the file.
    return await finish(read())
