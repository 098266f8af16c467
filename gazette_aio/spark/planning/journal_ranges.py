"""Ranges of journals: from a listing and options to bytes, and their splits.

Theory of operation. A record belongs to the range which has its first byte. Journals whose records
are lines can thus be cut anywhere: a reader of `[begin, end)` starts with the byte before `begin`,
drops everything through the first newline, and reads beyond `end` until its last record is
complete. Records of other framings can't be found from their middle, so those journals are cut only
where fragments begin or end: a fragment has whole appends, and an append has whole messages. As
records begin there, the byte before isn't read, which would need another fragment.

Ranges include holes between fragments. Only a reader can distinguish a hole which is filled within
a minute from a permanent hole. Holes don't count as bytes to read.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.framing import find_framing
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.options.values import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gazette_aio.spark.options.values import Positions
    from gazette_aio.spark.types import Labels


class FragmentInfo(NamedTuple):
    """A fragment as a broker lists it."""

    begin: int
    end: int
    mod_time: int = 0
    """Time at which the fragment was persisted, in seconds since 1970; or 0 if it's local."""


@dataclass(frozen=True, slots=True)
class JournalInfo:
    """Properties of a journal for planning.

    Args:
        name: Name of the journal.
        head: Write head.
        content_type: Content type, which selects the framing.
        labels: Labels.
        create_revision: Revision at which the journal was created; or 0 if it's unknown.
        fragments: Fragments in any order; or None if they weren't listed.
    """

    name: str
    head: int
    content_type: str = ""
    labels: Labels = ()
    create_revision: int = 0
    fragments: tuple[FragmentInfo, ...] | None = None

    @property
    def is_divisible(self) -> bool:
        """Whether the journal can be cut at any byte."""
        framing = find_framing(self.content_type)
        return framing is not None and framing.is_lines

    @property
    def earliest(self) -> int:
        """Offset of the first existing byte; or 0 if fragments weren't listed."""
        if self.fragments is None:
            return 0
        begin = min((fragment.begin for fragment in self.fragments), default=self.head)
        return min(begin, self.head)


class JournalRange(NamedTuple):
    """A part of a journal to read."""

    journal: JournalInfo
    begin: int
    end: int


class Split(NamedTuple):
    """A part of a range."""

    journal: JournalInfo
    begin: int
    end: int
    size: int
    """Number of bytes without holes."""
    is_aligned: bool
    """Whether a record is known to begin at `begin`, because a fragment begins or ends there."""


def plan_ranges(
    journals: Iterable[JournalInfo],
    starting: Positions = "earliest",
    ending: Positions = "latest",
) -> list[JournalRange]:
    """Return the non-empty ranges of journals.

    A journal which `starting` doesn't name begins at its earliest offset; one which `ending`
    doesn't name ends at its latest offset.

    Raises:
        ConfigurationError: An offset is out of bounds.
    """
    ranges: list[JournalRange] = []
    for journal in journals:
        begin = resolve(journal, starting, "startingOffsets", EARLIEST)
        end = resolve(journal, ending, "endingOffsets", LATEST)
        if begin > end and _is_explicit(starting, journal) and _is_explicit(ending, journal):
            raise ConfigurationError(
                f"endingOffsets of journal {journal.name} is {end}, before startingOffsets {begin}"
            )
        if begin < end:
            ranges.append(JournalRange(journal, begin, end))
    return ranges


def resolve(journal: JournalInfo, positions: Positions, option: str, default: int) -> int:
    """Return an offset of a journal.

    Args:
        journal: The journal.
        positions: Value of the option.
        option: Name of the option, for errors.
        default: Position of journals which `positions` doesn't name.

    Raises:
        ConfigurationError: The offset is out of bounds.
    """
    if isinstance(positions, str):
        offset = EARLIEST if positions == "earliest" else LATEST
    else:
        offset = positions.get(journal.name, default)
    if offset == EARLIEST:
        return journal.earliest
    if offset == LATEST:
        return journal.head
    if not 0 <= offset <= journal.head:
        raise ConfigurationError(
            f"{option} of journal {journal.name} is {offset}, not within [0, {journal.head}]"
        )
    return offset


def check_names(positions: Positions, names: Collection[str], option: str) -> None:
    """Check that the journals of an option are selected.

    Raises:
        ConfigurationError: A journal isn't.
    """
    unknown = [] if isinstance(positions, str) else sorted(positions.keys() - set(names))
    if unknown:
        raise ConfigurationError(f"{option} names journal {unknown[0]}, which isn't selected")


def clip_fragments(fragments: Iterable[FragmentInfo]) -> list[FragmentInfo]:
    """Return fragments in order, each without the content of fragments before it."""
    clipped: list[FragmentInfo] = []
    covered = 0
    for fragment in sorted(fragments):
        if fragment.end > covered:
            clipped.append(fragment._replace(begin=max(fragment.begin, covered)))
            covered = fragment.end
    return clipped


def skip_older(planned: JournalRange, mod_time: int) -> JournalRange:
    """Return a range without its first fragments which were persisted before `mod_time` seconds.

    The result begins with the first local or newer fragment, or after the last one. Holes between
    dropped fragments are dropped too: their content was appended before the next fragment.
    """
    begin = planned.begin
    for fragment in clip_fragments(planned.journal.fragments or ()):
        if fragment.end > begin:
            if fragment.mod_time == 0 or fragment.mod_time >= mod_time:
                break
            begin = fragment.end
    return planned._replace(begin=min(begin, planned.end))


def find_cuts(planned: JournalRange) -> list[int]:
    """Return the offsets inside a range at which fragments begin or end, in order."""
    cuts = {cut for fragment in planned.journal.fragments or () for cut in fragment[:2]}
    return sorted(cut for cut in cuts if planned.begin < cut < planned.end)


def cut_range(planned: JournalRange, wanted: int) -> JournalRange:
    """Return the first part of a range, which ends at or before `wanted`.

    The part isn't empty: it ends after `wanted` if the range can't be cut earlier.
    """
    if planned.journal.is_divisible or wanted >= planned.end:
        return planned._replace(end=min(max(wanted, planned.begin + 1), planned.end))
    cuts = find_cuts(planned)
    at = bisect.bisect_right(cuts, wanted)
    return planned._replace(end=[*cuts, planned.end][max(at - 1, 0)])


def split_range(planned: JournalRange, split_bytes: int, *, anywhere: bool = False) -> list[Split]:
    """Return consecutive parts of a range, which end where fragments end if possible.

    Reading from the middle of a compressed fragment needs the bytes before. An empty range has no
    parts.

    Args:
        planned: The range.
        split_bytes: Limit of the bytes of a part, without holes. A fragment may be larger.
        anywhere: Whether to cut larger fragments.
    """
    journal, begin, end = planned
    if begin >= end:
        return []
    splits: list[Split] = []
    is_aligned, size = begin == 0 or any(begin in one[:2] for one in journal.fragments or ()), 0
    for at, length in _pieces(planned):
        count = -(-length // split_bytes) if anywhere else 1
        for part in range(count):
            cut = at + length * part // count
            cut_end = at + length * (part + 1) // count
            if size and size + cut_end - cut > split_bytes:
                splits.append(Split(journal, begin, cut, size, is_aligned))
                begin, size, is_aligned = cut, 0, part == 0
            size += cut_end - cut
    splits.append(Split(journal, begin, end, size, is_aligned))
    return splits


def join_last(splits: Sequence[Split], limit: int) -> list[Split]:
    """Return splits, the last of which are joined up to `limit` bytes."""
    *rest, last = splits
    while rest and rest[-1].size + last.size <= limit:
        former = rest.pop()
        last = former._replace(end=last.end, size=former.size + last.size)
    return [*rest, last]


def content_bytes(planned: JournalRange) -> int:
    """Return the number of bytes of a range, without holes."""
    return sum(length for _, length in _pieces(planned))


def _is_explicit(positions: Positions, journal: JournalInfo) -> bool:
    return not isinstance(positions, str) and positions.get(journal.name, LATEST) >= 0


def _pieces(planned: JournalRange) -> list[tuple[int, int]]:
    """Return begins and lengths of the content of a range, cut where fragments end."""
    pieces: list[tuple[int, int]] = []
    listed = planned.begin
    for fragment in clip_fragments(planned.journal.fragments or ()):
        begin, end = max(fragment.begin, planned.begin), min(fragment.end, planned.end)
        if begin < end:
            pieces.append((begin, end - begin))
        listed = max(listed, fragment.end)
    if listed < planned.end:
        pieces.append((listed, planned.end - listed))
    return pieces
