"""Validation, mapping and encoding of batches, before anything is published."""

from __future__ import annotations

import functools
import importlib
import inspect
import reprlib
from itertools import islice
from time import thread_time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio import turns
from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.errors import ConfigurationError, ValidationError, within
from gazette_aio.protocol.journal import encodable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from gazette_aio.aio.turns import Turns
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.mapping import Mapping, Target
    from gazette_aio.message.publishing.routes import Encoded, Route, Routes

T = TypeVar("T")

_TABLE_ROWS: Final = "gazette_aio.message.publishing.table_rows"  # Needs pyarrow.

FIRST_ROWS: Final = 16
MAX_ROWS: Final = 4096

_COPIED_AT_ONCE: Final = 4096
_MAPPED_AT_ONCE: Final = 512
"""Targets are new objects. The garbage collector runs as soon as 700 of them are alive."""
_YIELDED_AT_ONCE: Final = 32


class Slices:
    """Async iterator of slices of rows, with turns for the event loop in between.

    Slices grow and shrink to take about a millisecond each.

    Args:
        count: Number of rows.
        pace: Turns of the event loop.
        max_rows: Greatest size of a slice; by default 4096.
    """

    def __init__(
        self,
        count: int,
        pace: Turns,
        max_rows: int | None = None,
    ) -> None:
        self._count, self._pace = count, pace
        self._max_rows = max_rows or MAX_ROWS
        self._rows = FIRST_ROWS
        self._start = self._stop = 0
        self._began = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, int]:
        if self._stop:
            # Time of this thread alone: others that keep it waiting don't make the work longer.
            seconds = thread_time() - self._began
            factor = min(max(turns.SLICE_SECONDS / max(seconds, 1e-9), 0.5), 4.0)
            rows = int((self._stop - self._start) * factor)
            self._rows = max(min(rows, self._max_rows), 1)
            await self._pace.rest()
        if self._stop == self._count:
            raise StopAsyncIteration
        self._start = self._stop
        self._stop = min(self._start + self._rows, self._count)
        self._began = thread_time()
        return self._start, self._stop


class Rows(Protocol):
    """Rows of a batch: messages, or rows of a table."""

    def __len__(self) -> int: ...

    def validate(self, start: int, stop: int) -> None:
        """Raise if a row isn't valid."""
        ...

    def items(self, start: int, stop: int) -> Sequence[Any]:
        """Return an argument of the mapping for each row."""
        ...

    def encode(self, indices: range | list[int]) -> Encoded:
        """Encode rows."""
        ...


class MessageRows(Generic[T]):
    """Messages as rows.

    Args:
        messages: The messages.
        split: Encodes them, as `splitter()` returns it.
        validate: Raises if a message isn't valid.
        plain: Types of messages that need no validation, as known so far.
    """

    def __init__(
        self,
        messages: Sequence[T],
        split: Callable[[Sequence[T]], Encoded],
        validate: Callable[[T], None],
        plain: set[type],
    ) -> None:
        self._messages = messages
        self._split = split
        self._validate = validate
        self._plain = plain

    def __len__(self) -> int:
        return len(self._messages)

    def validate(self, start: int, stop: int) -> None:
        """Call the `validate()` of each message."""
        messages = self._messages[start:stop]
        if self._plain.issuperset(map(type, messages)):
            return
        for index, message in enumerate(messages, start):
            try:
                self._validate(message)
            except Exception as error:  # noqa: BLE001 - it's raised.
                raise _noted(error, index) from None

    def items(self, start: int, stop: int) -> Sequence[T]:
        """Return messages."""
        return self._messages[start:stop]

    def encode(self, indices: range | list[int]) -> Encoded:
        """Encode messages; they're returned unchanged if their adapter can't split them."""
        if isinstance(indices, range):
            messages = self._messages[indices.start : indices.stop]
        else:
            messages = [self._messages[index] for index in indices]
        return self._split(messages)


async def rows_of_table(table: Any, adapter: Adapter[Any], *, is_mapped: bool) -> Rows:
    """Return the rows of a table that supports the PyCapsule interface of Arrow.

    Args:
        table: The table.
        adapter: Adapter of the messages.
        is_mapped: Whether rows may go to several journals.

    Raises:
        ConfigurationError: pyarrow isn't installed, or the adapter can't make messages of the
            table.

    Cancellation: safe.
    """

    def rows() -> Rows:
        try:
            # Race: another thread may be importing it, which this waits for.
            module = importlib.import_module(_TABLE_ROWS)
        except ImportError as error:
            text = "tables need pyarrow and numpy (pip install 'gazette-aio[arrow]')"
            raise ConfigurationError(text) from error
        made: Rows = module.TableRows(table, adapter, is_mapped=is_mapped)
        return made

    # Importing takes long, and so may a table that is yet to be computed.
    return await in_thread(rows)


async def copied(messages: Iterable[T], pace: Turns) -> list[T]:
    """Copy messages to a list, which callers can't change.

    Raises:
        ValidationError: It's a table.
        Exception: Iterating raises it.

    Cancellation: safe.
    """
    if hasattr(messages, "__arrow_c_stream__"):
        raise ValidationError("pass a table as `table=`, not as messages")
    iterator = iter(messages)
    # What yields messages may take its time.
    rows = _COPIED_AT_ONCE if isinstance(messages, (list, tuple)) else _YIELDED_AT_ONCE
    copies: list[T] = []
    while True:
        before = len(copies)
        copies.extend(islice(iterator, rows))
        if len(copies) < before + rows:
            return copies
        await pace.rest()


async def release(copies: list[Any], pace: Turns) -> None:
    """Empty a list in slices.

    Cancellation: safe.
    """
    while copies:
        del copies[-_COPIED_AT_ONCE:]
        await pace.rest()


def _noted(error: Exception, index: int) -> Exception:
    error.add_note(f"It is message {index} of the batch, counted from zero.")
    return error


async def encode_batch(
    rows: Rows, mapping: Mapping[Any] | Target, routes: Routes[Any], pace: Turns
) -> list[tuple[Target, list[Encoded]]]:
    """Validate, map and encode rows, and return them by journal.

    Raises:
        Exception: As of `Publisher.publish_uncommitted_batch()`.

    Cancellation: safe.
    """
    indices = await _map_rows(rows, mapping, pace)
    _check_journals(indices)
    batch: list[tuple[Target, list[Encoded]]] = []
    for target, some in indices.items():
        await routes.journals.check_content_type(target)
        batch.append((target, await _encode_rows(rows, some, routes.find(target), pace)))
    return batch


async def _map_rows(
    rows: Rows, mapping: Mapping[Any] | Target, pace: Turns
) -> dict[Target, range | list[int]]:
    """Return the indices of the rows of each journal, in their order."""
    indices: dict[Target, range | list[int]] = {}
    async for start, stop in Slices(len(rows), pace, max_rows=_MAPPED_AT_ONCE):
        rows.validate(start, stop)
        if isinstance(mapping, tuple):
            indices[mapping] = range(stop)
            continue
        require_mapping(mapping)
        targets = await _targets(mapping, rows.items(start, stop), start)
        if len(targets) == 1:
            before = indices.get(targets[0], range(0))
            if len(before) == start and isinstance(before, range):
                indices[targets[0]] = range(stop)
                continue
            targets *= stop - start
        for index, target in enumerate(targets, start):
            found = indices.get(target)
            if found is None:
                found = indices[target] = []
            elif isinstance(found, range):
                found = indices[target] = list(found)
            found.append(index)
    return indices


def require_mapping(mapping: object) -> None:
    """Raise unless `mapping` may be called.

    Raises:
        TypeError: It's no function.
    """
    if not callable(mapping):
        text = "mapping: expected a function that returns a pair of journal and content type"
        raise TypeError(f"{text}, not {reprlib.repr(mapping)}")


async def awaited_target(target: Awaitable[Target]) -> Target:
    """Return the target that a mapping has returned, or that it returns when it's awaited.

    Raises:
        TypeError: It isn't a pair of a journal and a content type.

    Cancellation: safe — an async mapping is cancelled.
    """
    mapped = await target if inspect.isawaitable(target) else target
    _require_pair(mapped)
    return mapped


def plain_target(mapped: Awaitable[Target] | Target) -> Target:
    """Return the target that a plain mapping has returned.

    Raises:
        TypeError: It isn't a pair of a journal and a content type, but has to be awaited, maybe.
    """
    # Hot: it takes long to ask for awaitables.
    if not isinstance(mapped, tuple) and inspect.isawaitable(mapped):
        if inspect.iscoroutine(mapped):
            mapped.close()  # Otherwise it would warn that nobody awaited it.
        raise TypeError("mapping: expected a plain function, not an async one")
    _require_pair(mapped)
    return mapped


def _require_pair(mapped: object) -> None:
    if not isinstance(mapped, tuple):
        shown = reprlib.repr(mapped)
        raise TypeError(f"mapping: expected a pair of journal and content type, not {shown}")


async def _targets(mapping: Mapping[Any], items: Sequence[Any], start: int) -> list[Target]:
    """Return the targets of items, or a single one if it's the same for all."""
    targets: list[Any] = []
    done = 0
    try:
        # Hot: what was mapped before an exception is in the list nevertheless.
        targets.extend(map(mapping, items))
        # Most batches go to one journal.
        if isinstance(targets[0], tuple) and targets.count(targets[0]) == len(targets):
            return targets[:1]
        if all(issubclass(kind, tuple) for kind in set(map(type, targets))):
            return targets
        for done, target in enumerate(targets):
            if not isinstance(target, tuple):
                targets[done] = await awaited_target(target)
    except BaseException as error:
        mapped = len(targets) == len(items)
        for unused in targets[done + 1 if mapped else 0 :]:
            if inspect.iscoroutine(unused):
                unused.close()  # Otherwise it would warn that nobody awaited it.
        if isinstance(error, Exception):
            raise _noted(error, start + (done if mapped else len(targets))) from None
        raise
    return targets


async def _encode_rows(
    rows: Rows, indices: range | list[int], route: Route[Any], pace: Turns
) -> list[Encoded]:
    """Encode rows of one journal in slices, and check that stamping and framing won't fail."""
    encoded: list[Encoded] = []
    async for start, stop in Slices(len(indices), pace):
        part = indices[start:stop]
        try:
            encoded.append(_encode(rows, part, route))
        except Exception as error:  # noqa: BLE001 - it's raised.
            raise await _first_error(error, rows, part, route, pace) from None
    return encoded


async def _first_error(
    error: Exception,
    rows: Rows,
    indices: range | list[int],
    route: Route[Any],
    pace: Turns,
) -> Exception:
    """Return the error of the first row that can't be encoded; a note tells the row."""
    while len(indices) > 1:
        await pace.rest()
        half = indices[: len(indices) // 2]
        try:
            _encode(rows, half, route)
        except Exception as earlier:  # noqa: BLE001 - it's raised.
            indices, error = half, earlier
        else:
            indices = indices[len(half) :]
    try:
        _encode(rows, indices, route)
    except Exception as last:  # noqa: BLE001 - it's raised.
        return _noted(last, indices[0])
    return error  # It didn't happen again: the row is unknown.


def _encode(rows: Rows, indices: range | list[int], route: Route[Any]) -> Encoded:
    encoded = rows.encode(indices)
    route.check(encoded)
    return encoded


def _check_journals(targets: Iterable[Target]) -> None:
    """Raise unless targets are of different journals, whose names are valid."""
    content_types: dict[str, str] = {}
    for journal, content_type in targets:
        check_journal(journal)
        other = content_types.setdefault(journal, content_type)
        if other != content_type:
            raise ValidationError(f"{journal} is of content type {other!r} and {content_type!r}")


@functools.lru_cache(maxsize=1024)
def check_journal(journal: str) -> None:
    """Raise unless the name of a journal is valid."""
    within("Request", pb.validate, pb.AppendRequest(journal=encodable(journal)))


@functools.lru_cache(maxsize=1024)
def has_validate(kind: Any) -> bool:
    """Whether messages of a type have a `validate()` to call."""
    bases: tuple[type, ...] = kind.__mro__
    for base in bases:
        defined = vars(base).get("validate")
        if defined is not None:
            # Models of pydantic have a deprecated class method of that name.
            return base.__module__.partition(".")[0] != "pydantic" and inspect.isfunction(defined)
    return False
