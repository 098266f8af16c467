"""Runs of messages of one producer, whose envelopes are built when they're needed.

Most messages of a journal are pending ones of a transaction: consecutive, of one producer, with the
same flags, and with rising clocks. Or they're of small transactions of one producer, one after the
other. They're read, sequenced and decoded as a whole, and only the messages that are delivered get
envelopes.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, compress, islice, repeat
from operator import attrgetter, lt
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.uuid import ACK_TXN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_aio.message.envelopes.origin import Origin
    from gazette_aio.message.framing import Frames
    from gazette_aio.message.uuid import Flags, ProducerID

_begin_of, _end_of = attrgetter("begin"), attrgetter("end")


class Stamp(NamedTuple):
    """What the messages of a run have in common."""

    journal: str
    origin: Origin | None
    producer: ProducerID


class _Run(Sequence[Envelope[Any]]):
    """Messages that are looked up by the range of their indices."""

    __slots__ = ()

    @abstractmethod
    def _within(self, begin: int, end: int) -> Iterator[Envelope[Any]]:
        """Return the messages from index `begin` up to `end`."""

    @overload
    def __getitem__(self, index: int) -> Envelope[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Envelope[Any]]: ...
    def __getitem__(self, index: int | slice) -> Envelope[Any] | list[Envelope[Any]]:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            return list(self._within(begin, end)) if step == 1 else list(self)[index]
        at = range(len(self))[index]
        return next(self._within(at, at + 1))


class ProducerRun(_Run):
    """Base of consecutive messages of one producer.

    Each access builds new envelopes.

    Args:
        stamp: What they have in common.
        frames: Their frames; at least one.
        clocks: Their clocks.
        has_acks: Whether any is an acknowledgement.
    """

    __slots__ = ("_begins", "_frames", "clocks", "has_acks", "stamp")

    def __init__(self, stamp: Stamp, frames: Frames, clocks: list[int], *, has_acks: bool) -> None:
        self.stamp: Stamp = stamp
        """What the messages have in common."""
        self.clocks: list[int] = clocks
        """Clocks of the messages."""
        self.has_acks: bool = has_acks
        """Whether any is an acknowledgement."""
        self._frames = frames
        self._begins = [frames.begin, *frames.ends]

    @abstractmethod
    def _flags_of(self, begin: int, end: int) -> Iterable[Flags]:
        """Return the flags of the messages from index `begin` up to `end`."""

    @property
    def begin(self) -> int:
        """Offset of the first message."""
        return self._frames.begin

    @property
    def end(self) -> int:
        """Offset after the last message."""
        return self._frames.ends[-1]

    def offset_at(self, index: int) -> int:
        """Return the offset at which a message begins; of `len()`, the offset after the last."""
        return self._begins[index]

    @property
    def is_rising(self) -> bool:
        """Whether each clock is larger than the one before."""
        return all(map(lt, self.clocks, islice(self.clocks, 1, None)))

    def __len__(self) -> int:
        return len(self.clocks)

    def _within(self, begin: int, end: int) -> Iterator[Envelope[Any]]:
        return self._build(begin, end, self._frames.payloads[begin:end])

    def __iter__(self) -> Iterator[Envelope[Any]]:
        return self._within(0, len(self))

    def decode(
        self,
        begin: int,
        end: int,
        decode: Callable[[bytes], Any],
        add_all: Callable[[Iterable[Envelope[Any]]], object],
    ) -> tuple[int, Exception] | None:
        """Decode the messages from index `begin` up to `end`, and pass their envelopes on.

        Acknowledgements are left out.

        Returns:
            Index and error of the first message that can't be decoded, where decoding stops; or
            None.
        """
        payloads = self._frames.payloads[begin:end]
        kept: list[bool] | None = None
        if self.has_acks:
            kept = [flags != ACK_TXN for flags in self._flags_of(begin, end)]
            payloads = list(compress(payloads, kept))
        messages: list[Any] = []
        bad: tuple[int, Exception] | None = None
        try:
            messages.extend(map(decode, payloads))
            # An adapter may raise StopIteration, which map() takes for the end.
            for payload in payloads[len(messages) :]:
                messages.append(decode(payload))  # noqa: PERF401 - keeps those before an error.
        except Exception as error:  # noqa: BLE001 - returned with its index.
            indices = range(begin, end) if kept is None else [*compress(range(begin, end), kept)]
            bad = indices[len(messages)], error
        add_all(self._build(begin, end, messages, kept))
        return bad

    def _build(
        self, begin: int, end: int, messages: list[Any], kept: list[bool] | None = None
    ) -> Iterator[Envelope[Any]]:
        """Build the envelopes of messages, which are those from index `begin` on that are kept."""
        journal, origin, producer = self.stamp
        begins: Iterable[int] = self._begins[begin:end]
        ends: Iterable[int] = self._frames.ends[begin:end]
        clocks: Iterable[int] = self.clocks[begin:end]
        flags = self._flags_of(begin, end)
        if kept is not None:
            begins, ends, clocks = (
                compress(begins, kept),
                compress(ends, kept),
                compress(clocks, kept),
            )
            flags = compress(flags, kept)
        # Hot: without a line of Python for each envelope.
        return map(
            Envelope,
            repeat(journal),
            begins,
            ends,
            clocks,
            flags,
            repeat(producer),
            messages,
            repeat(origin),
        )

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} of {self.stamp.journal} [{self.begin}, {self.end}) {len(self)}>"


class UniformRun(ProducerRun):
    """Consecutive messages of one producer, with the same flags.

    Args:
        stamp: What they have in common.
        flags: Their flags.
        frames: Their frames; at least one.
        clocks: Their clocks.
    """

    __slots__ = ("flags",)

    def __init__(self, stamp: Stamp, flags: Flags, frames: Frames, clocks: list[int]) -> None:
        super().__init__(stamp, frames, clocks, has_acks=flags == ACK_TXN)
        self.flags: Flags = flags
        """Flags of the messages."""

    def _flags_of(self, begin: int, end: int) -> Iterable[Flags]:
        return repeat(self.flags, end - begin)


class TransactionsRun(ProducerRun):
    """Consecutive messages of transactions of one producer, the last of which ends with the run.

    The first transaction may begin before the run.

    Args:
        stamp: What the messages have in common.
        flags: Their flags: CONTINUE_TXN or ACK_TXN, as the last ones are.
        frames: Their frames; at least one.
        clocks: Their clocks.
    """

    __slots__ = ("_flags",)

    def __init__(self, stamp: Stamp, flags: list[Flags], frames: Frames, clocks: list[int]) -> None:
        super().__init__(stamp, frames, clocks, has_acks=True)
        self._flags = flags

    def _flags_of(self, begin: int, end: int) -> Iterable[Flags]:
        return self._flags[begin:end]


class JoinedRuns(_Run):
    """Messages of several runs, one after the other.

    Args:
        parts: The runs, none of which is empty.
    """

    __slots__ = ("_parts", "_starts")

    def __init__(self, parts: list[Sequence[Envelope[Any]]]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(map(len, parts))]  # And the end of the last run.

    def __len__(self) -> int:
        return self._starts[-1]

    def _within(self, begin: int, end: int) -> Iterator[Envelope[Any]]:
        runs = (part[first:last] for part, first, last in self.within(begin, end))
        return chain.from_iterable(runs)

    def __iter__(self) -> Iterator[Envelope[Any]]:
        return chain.from_iterable(self._parts)

    def offset_at(self, index: int) -> int:
        """Return the offset at which a message begins."""
        at = bisect_right(self._starts, index) - 1
        return offset_at(self._parts[at], index - self._starts[at])

    def within(self, begin: int, end: int) -> Iterator[tuple[Sequence[Envelope[Any]], int, int]]:
        """Yield each run that has messages between two indices, and the indices within the run."""
        for at in range(bisect_right(self._starts, begin) - 1, len(self._parts)):
            part, start = self._parts[at], self._starts[at]
            if start >= end:
                break
            yield part, max(begin - start, 0), min(end - start, len(part))


def offset_at(rows: Sequence[Envelope[Any]], index: int) -> int:
    """Return the offset at which a message begins, without building its envelope."""
    return (
        rows.offset_at(index) if isinstance(rows, ProducerRun | JoinedRuns) else rows[index].begin
    )


def bytes_between(rows: Sequence[Envelope[Any]], begin: int, end: int) -> int:
    """Return the bytes of messages from index `begin` up to `end`."""
    if isinstance(rows, JoinedRuns):
        return sum(bytes_between(*part) for part in rows.within(begin, end))
    if isinstance(rows, ProducerRun):
        return rows.offset_at(end) - rows.offset_at(begin)
    some = rows[begin:end]
    size: int = sum(map(_end_of, some)) - sum(map(_begin_of, some))
    return size
