"""Batches of messages: their validation, mapping and encoding, before anything is published."""

from __future__ import annotations

import asyncio
import inspect
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, cast

from gazette_aio.message.adapters.base import Adapter, SplitMessages, SplittingAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message.mapping import Mapping, Target
    from gazette_aio.message.routes import Route
    from gazette_aio.message.uuid import Flags

T = TypeVar("T")

Encoded = SplitMessages | list[Any]
"""Some messages of a batch: encoded, or as they are if their adapter can't split them."""

_TURN_SECONDS: Final = 0.001
_FIRST_ROWS: Final = 64
_MAX_ROWS: Final = 4096
_ANY_CLOCK: Final = 1 << 60


class Pace:
    """Sees to it that work on many rows gives way to the event loop."""

    def __init__(self) -> None:
        self._turn_began = perf_counter()

    async def turn(self) -> None:
        """Let the event loop have a turn, if it's time."""
        if perf_counter() - self._turn_began >= _TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn_began = perf_counter()


class _Slices:
    """Async iterator of slices of rows, with turns for the event loop in between.

    Slices grow and shrink to take about a millisecond each.
    """

    def __init__(self, count: int, pace: Pace, min_rows: int) -> None:
        self._count, self._pace, self._min_rows = count, pace, min_rows
        self._rows = max(_FIRST_ROWS, min_rows)
        self._start = self._stop = 0
        self._began = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, int]:
        if self._stop:
            self._adapt()
            await self._pace.turn()
        if self._stop == self._count:
            raise StopAsyncIteration
        self._start = self._stop
        self._stop = min(self._start + self._rows, self._count)
        self._began = thread_time()
        return self._start, self._stop

    def _adapt(self) -> None:
        # Time of this thread alone: others which keep it waiting don't make the work longer.
        seconds = thread_time() - self._began
        if seconds > _TURN_SECONDS:
            self._rows = max(self._rows // 2, self._min_rows)
        elif seconds < _TURN_SECONDS / 3:
            self._rows = min(self._rows * 2, _MAX_ROWS)


class Rows(Protocol):
    """Rows of a batch: messages, or rows of a table."""

    min_slice: int
    """Number of rows below which working on fewer of them saves no time."""

    def __len__(self) -> int: ...

    def validate(self, start: int, stop: int) -> None:
        """Raise if a row isn't valid."""
        ...

    def items(self, start: int, stop: int) -> Sequence[Any]:
        """Return what a mapping chooses the journal of each row by."""
        ...

    def encode(self, indices: range | list[int]) -> Encoded:
        """Return rows encoded."""
        ...


class MessageRows(Generic[T]):
    """Messages as rows.

    Args:
        messages: The messages.
        adapter: Encodes them.
        validate: Raises if a message isn't valid.
        plain: Types of messages which it has found to need no validation.
    """

    min_slice = 1

    def __init__(
        self,
        messages: Sequence[T],
        adapter: Adapter[T],
        validate: Callable[[T], None],
        plain: set[type],
    ) -> None:
        self._messages = messages
        self._adapter = adapter
        self._validate = validate
        self._plain = plain

    def __len__(self) -> int:
        return len(self._messages)

    def validate(self, start: int, stop: int) -> None:
        """Raise what the `validate()` of a message raises."""
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
        """Return messages encoded, or as they are if their adapter can't split them."""
        if isinstance(indices, range):
            messages = self._messages[indices.start : indices.stop]
        else:
            messages = [self._messages[index] for index in indices]
        if not isinstance(self._adapter, SplittingAdapter):
            return list(messages)
        return cast("SplittingAdapter[T]", self._adapter).split(messages)


def _noted(error: Exception, index: int) -> Exception:
    error.add_note(f"It is message {index} of the batch, counted from zero.")
    return error


async def map_rows(
    rows: Rows, mapping: Mapping[Any] | Target, pace: Pace
) -> dict[Target, range | list[int]]:
    """Return the indices of the rows of each journal, in their order.

    Cancellation: safe.

    Raises:
        Exception: What validation or the mapping raises, with a note of the message.
    """
    indices: dict[Target, range | list[int]] = {}
    async for start, stop in _Slices(len(rows), pace, rows.min_slice):
        rows.validate(start, stop)
        if isinstance(mapping, tuple):
            indices[mapping] = range(stop)
            continue
        targets = await _targets(mapping, rows.items(start, stop), start)
        # Hot: most batches go to one journal.
        found = indices.get(targets[0], range(0)) if len(indices) < 2 else None
        if found is not None and len(found) == start and targets.count(targets[0]) == len(targets):
            indices[targets[0]] = range(stop)
            continue
        for index, target in enumerate(targets, start):
            found = indices.get(target)
            if found is None:
                found = indices[target] = []
            elif isinstance(found, range):
                found = indices[target] = list(found)
            found.append(index)
    return indices


async def _targets(mapping: Mapping[Any], items: Sequence[Any], start: int) -> list[Target]:
    targets: list[Any] = []
    done = 0
    try:
        # Hot: what was mapped before an exception is in the list nevertheless.
        targets.extend(map(mapping, items))
        if set(map(type, targets)) == {tuple}:
            return targets
        for done, target in enumerate(targets):
            if not isinstance(target, tuple):
                targets[done] = await target
    except BaseException as error:
        mapped = len(targets) == len(items)
        for unused in targets[done + 1 if mapped else 0 :]:
            if inspect.iscoroutine(unused):
                unused.close()  # Otherwise it would warn that nobody awaited it.
        if isinstance(error, Exception):
            raise _noted(error, start + (done if mapped else len(targets))) from None
        raise
    return targets


async def encode_rows(
    rows: Rows, indices: range | list[int], route: Route[Any], flags: Flags, pace: Pace
) -> list[Encoded]:
    """Return rows encoded, in slices, having tried all which may fail later.

    Args:
        rows: The batch.
        indices: Those of one journal.
        route: That journal.
        flags: Flags which they will have.
        pace: Pace of the work.

    Cancellation: safe.

    Raises:
        Exception: What encoding or framing raises, with a note of the message.
    """
    encoded: list[Encoded] = []
    async for start, stop in _Slices(len(indices), pace, rows.min_slice):
        part = indices[start:stop]
        try:
            encoded.append(_encode(rows, part, route, flags))
        except Exception:
            for index in part:
                try:
                    _encode(rows, range(index, index + 1), route, flags)
                except Exception as error:  # noqa: BLE001 - it's raised.
                    raise _noted(error, index) from None
            raise
    return encoded


def _encode(rows: Rows, indices: range | list[int], route: Route[Any], flags: Flags) -> Encoded:
    encoded = rows.encode(indices)
    if not (route.framing_is_trusted and isinstance(encoded, SplitMessages)):
        # Whatever an adapter or a framing of others may refuse has to be known before anything is
        # published.
        route.stamp(encoded, _ANY_CLOCK, 0, flags)
    return encoded
