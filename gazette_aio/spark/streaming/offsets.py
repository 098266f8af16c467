"""Positions of a streaming query, as Spark keeps them in its checkpoint.

    {"base": {JOURNAL: OFFSET, ...},     begin of the first batch, in the end of that batch
     "c": {JOURNAL: REVISION, ...},      revisions at which journals were created, where known
     "h": {JOURNAL: OFFSET, ...},        write heads of journals which have unread content
     "init": true,                       in the begin of the first batch
     "j": {JOURNAL: OFFSET, ...},        offsets up to which journals are read
     "s": {JOURNAL: STATE, ...},         states of producers, from `RangeState.to_json()`
     "t": MILLISECONDS,                  time of the batch, if batches have a least size
     "v": 1}

Theory of operation. Spark asks for the begin of the first batch, but writes only the ends of
batches to its checkpoint. If the first batch is planned again after a crash, Spark passes another
begin. The end of the batch thus includes its begin, which `begin_of()` prefers. As the two texts
differ, Spark runs the first batch at once, even without content, and the begin is kept.

Spark compares texts. Equal positions have equal JSON, key by key, and without new content
`end_text()` returns the object which Spark passed. Write heads and the time aren't positions: they
are kept so that a restarted query knows the unread content of a deleted journal, and how long a
small batch has waited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

from gazette_aio.message.ranges.committed import RangeState, prune
from gazette_aio.message.ranges.states import is_offset
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.spark.options.values import EARLIEST
from gazette_aio.spark.planning.journal_ranges import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from gazette_aio.spark.options.values import Positions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo

VERSION: Final = 1

_KEYS: Final = {"base", "c", "h", "init", "j", "s", "t", "v"}

_TextT = TypeVar("_TextT", str, Mapping[str, Any])


class BatchRange(NamedTuple):
    """Range of a journal in a batch."""

    journal: str
    begin: int
    end: int
    revision: int
    """Revision at which the journal was created; or 0 if it's unknown."""
    is_new: bool
    """Whether the journal appeared while the query ran, and is read from its first byte."""
    state: RangeState | None
    """State of producers at the begin, if messages are sequenced."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Positions of a query in journals.

    Args:
        journals: Offset up to which each journal was read.
        revisions: Revisions at which journals were created, where known.
        states: States of producers at these offsets; or None if messages aren't sequenced. Journals
            without known producers may be missing.
        base: Begin of the first batch, if this is its end.
        is_initial: Whether this is the begin of the first batch.
        heads: Known write heads of journals. Heads up to which journals were read don't count.
        time_ms: Time at which the batch was planned, in milliseconds since 1970; or None.
    """

    journals: dict[str, int] = field(default_factory=dict[str, int])
    revisions: dict[str, int] = field(default_factory=dict[str, int])
    states: dict[str, RangeState] | None = None
    base: dict[str, int] | None = None
    is_initial: bool = False
    heads: dict[str, int] = field(default_factory=dict[str, int])
    time_ms: int | None = None

    @classmethod
    def initial(
        cls, journals: Iterable[JournalInfo], starting: Positions, *, committed: bool
    ) -> Self:
        """Return the begin of a new query.

        Args:
            journals: Journals of the query.
            starting: Value of the option `startingOffsets`.
            committed: Whether messages are sequenced.

        Raises:
            ConfigurationError: An offset is out of bounds.
        """
        listed = list(journals)
        return cls(
            {one.name: resolve(one, starting, "startingOffsets", EARLIEST) for one in listed},
            {one.name: one.create_revision for one in listed if one.create_revision},
            {} if committed else None,
            is_initial=True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the positions as JSON with ordered keys: equal positions have equal texts."""
        found: dict[str, Any] = {}
        if self.base is not None:
            found["base"] = _sorted(self.base)
        if self.revisions:
            found["c"] = _sorted(self.revisions)
        if unread := {
            name: head for name, head in self.heads.items() if head > self.journals.get(name, head)
        }:
            found["h"] = _sorted(unread)
        if self.is_initial:
            found["init"] = True
        found["j"] = _sorted(self.journals)
        if self.states is not None:
            found["s"] = {
                name: state.to_json()
                for name, state in sorted(self.states.items())
                if state.producers
            }
        if self.time_ms is not None:
            found["t"] = self.time_ms
        found["v"] = VERSION
        return found

    def to_text(self) -> str:
        """Return `to_json()` as Spark writes it."""
        return json.dumps(self.to_json())

    @classmethod
    def parse(cls, value: str | Mapping[str, Any]) -> Self:
        """Return the positions of `to_json()` or `to_text()`.

        Raises:
            ValidationError: The JSON isn't valid, or its version is unknown.
        """
        try:
            top = cast("object", json.loads(value)) if isinstance(value, str) else value
            if not isinstance(top, Mapping):
                raise TypeError("it isn't an object")
            return cls._parse(cast("Mapping[str, Any]", top))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValidationError(f"not offsets of a query: {error}") from error

    @classmethod
    def _parse(cls, top: Mapping[str, Any]) -> Self:
        version = top.get("v")
        if type(version) is not int or version != VERSION:
            raise ValueError(f"version {version!r:.40} is unknown")
        if not top.keys() <= _KEYS:
            raise ValueError(f"key {min(top.keys() - _KEYS)!r:.40} is unknown")
        journals = _parse_numbers(top.get("j"), "j")
        revisions = _parse_numbers(top.get("c", {}), "c")
        heads = _parse_numbers(top.get("h", {}), "h")
        base = _parse_numbers(top["base"], "base") if "base" in top else None
        is_initial = "init" in top
        if is_initial and (top["init"] is not True or base is not None):
            raise ValueError("'init' contradicts other keys")
        states = _parse_states(top["s"], journals) if "s" in top else None
        time_ms = top.get("t")
        if time_ms is not None and not is_offset(time_ms):
            raise ValueError("'t' isn't a time")
        if not (revisions.keys() | heads.keys() | (base or {}).keys()) <= journals.keys():
            raise ValueError("a journal isn't in 'j'")
        return cls(journals, revisions, states, base, is_initial, heads, time_ms)

    def sequence(self, *, committed: bool) -> Self:
        """Return these positions for a query which does or doesn't sequence messages.

        Raises:
            ConfigurationError: The query sequences messages, but the states of producers are
                missing.
        """
        if not committed:
            return replace(self, states=None)
        if self.states is None:
            if any(self.journals.values()) and not self.is_initial:
                raise ConfigurationError(
                    "isolation can't be changed to read-committed: the checkpoint has no states of "
                    "producers, nor has one of PySpark before 4.2 whose last run was of a single "
                    "batch, so start with a new one"
                )
            return replace(self, states={})
        return self

    def end_at(self, states: Mapping[str, RangeState], horizon: timedelta | int) -> Self:
        """Return these positions as the end of a batch whose messages were sequenced.

        Args:
            states: State of each sequenced journal at the end of the batch.
            horizon: Age at which `prune()` forgets producers: nanoseconds, or a timedelta.
        """
        pruned = {name: prune(state, horizon) for name, state in states.items()}
        return replace(
            self,
            journals={**self.journals, **{name: state.offset for name, state in pruned.items()}},
            states={**(self.states or {}), **pruned},
        )


def end_text(start: Offsets, end: Offsets, given: _TextT) -> _TextT | dict[str, Any]:
    """Return the end of a batch for Spark, which is `given` without new content.

    Args:
        start: Begin of the batch.
        end: End of the batch.
        given: Object of `start` which Spark passed.
    """
    found = end.to_json()
    if start.is_initial:
        return found
    begins = replace(start, base=None, heads={}, time_ms=None).to_json()
    return given if replace(end, heads={}, time_ms=None).to_json() == begins else found


def begin_of(start: Offsets, end: Offsets) -> Offsets:
    """Return the begin of a batch from the begin and the end which Spark passed."""
    if not start.is_initial or end.base is None:
        return start
    kept = {name: end.revisions[name] for name in end.base if name in end.revisions}
    return replace(start, journals=end.base, revisions=kept)


def batch_ranges(start: Offsets, end: Offsets) -> list[BatchRange]:
    """Return the ranges of a batch in the order of journals' names.

    Journals which aren't in `start`, or which were recreated, are read from their first byte.

    Args:
        start: Begin of the batch which Spark passed.
        end: End of the batch.
    """
    start = begin_of(start, end)
    ranges: list[BatchRange] = []
    for name, offset in sorted(end.journals.items()):
        revision = end.revisions.get(name, 0)
        is_new = name not in start.journals or is_recreated(start, name, revision, offset)
        begin = 0 if is_new else start.journals[name]
        if begin >= offset:
            continue
        state = None
        if end.states is not None:
            known = None if is_new else (start.states or {}).get(name)
            state = known or RangeState(begin)
        ranges.append(BatchRange(name, begin, offset, revision, is_new, state))
    return ranges


def is_recreated(offsets: Offsets, name: str, revision: int, head: int) -> bool:
    """Return whether a journal was recreated since it was read up to `offsets`.

    Args:
        offsets: Positions which include the journal.
        name: Name of the journal.
        revision: Revision at which the journal was created; or 0 if it's unknown.
        head: Write head of the journal, or the end of a batch.
    """
    known = offsets.revisions.get(name, 0)
    if known and revision:
        return known != revision
    return head < offsets.journals[name]


def _sorted(numbers: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(numbers.items()))


def _parse_numbers(value: object, key: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise TypeError(f"'{key}' isn't an object")
    numbers = cast("Mapping[object, object]", value)
    for name, number in numbers.items():
        if not (isinstance(name, str) and name and is_offset(number)):
            raise ValueError(f"'{key}' has no number for {name!r:.200}")
    return cast("dict[str, int]", dict(numbers))


def _parse_states(value: object, journals: Mapping[str, int]) -> dict[str, RangeState]:
    if not isinstance(value, Mapping):
        raise TypeError("'s' isn't an object")
    states: dict[str, RangeState] = {}
    for name, entry in cast("Mapping[str, object]", value).items():
        state = RangeState.from_json(entry)
        if state.offset > journals.get(name, -1):
            raise ValueError(f"'s' is ahead of {name!r:.200}")
        states[name] = state
    return states
