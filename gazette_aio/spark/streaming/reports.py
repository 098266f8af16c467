"""Reports on a streaming query, from the progress which Spark reports.

Theory of operation. Spark asks the source for its newest offsets after it planned a batch, and
reports the returned JSON as `latestOffset` of the source, unchanged. So the source adds facts for
monitors: its name, and for each journal whose UUIDs the planner has read ahead, the number of
unread rows, and the time at which the first of them was published.

    {"v": 1, "j": …, "c": …,             positions at the write heads, see `Offsets`
     "source": "gazette prefix=rides/",
     "rows": {JOURNAL: ROWS, ...},        unread messages, where known
     "oldest": {JOURNAL: MILLISECONDS},   when the first unread message was published, where known
     "at": MILLISECONDS}                  when the heads were listed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from gazette_aio.message.ranges.states import is_offset
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.spark.streaming.offsets import Offsets, is_recreated

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME = "gazette"


@dataclass(frozen=True, slots=True)
class WriteHeads:
    """Write heads of a source's journals, and the unread content before them.

    Args:
        offsets: Positions at the write heads.
        source: Name of the source.
        time_ms: Time of the listing, in milliseconds since 1970.
        rows: Numbers of unread messages, without acknowledgements, of journals where it's known.
        oldest_ms: Times at which the first unread messages were published, where known.
    """

    offsets: Offsets
    source: str = _NAME
    time_ms: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    oldest_ms: dict[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Return the JSON which Spark reports as `latestOffset`."""
        return self.offsets.to_json() | {
            "source": self.source,
            "at": self.time_ms,
            "rows": self.rows,
            "oldest": self.oldest_ms,
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Return the heads of `to_json()`.

        Raises:
            ValidationError: The JSON isn't valid, or its version is unknown.
        """
        rest = dict(value)
        source, at = rest.pop("source", _NAME), rest.pop("at", 0)
        rows, oldest = rest.pop("rows", {}), rest.pop("oldest", {})
        offsets = Offsets.parse(rest)
        if not (isinstance(source, str) and is_offset(at)):
            raise ValidationError("not offsets of a query: 'source' or 'at' is malformed")
        return cls(offsets, source, at, _numbers(rows, "rows"), _numbers(oldest, "oldest"))


def _numbers(value: object, key: str) -> dict[str, int]:
    numbers = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else {None: 0}
    if not all(isinstance(name, str) and is_offset(one) for name, one in numbers.items()):
        raise ValidationError(f"not offsets of a query: {key!r} isn't an object of numbers")
    return cast("dict[str, int]", dict(numbers))


@dataclass(frozen=True, slots=True)
class JournalProgress:
    """Progress of a source in a journal: position and lag."""

    offset: int
    """Offset up to which the journal is read."""
    head: int
    """Write head of the journal."""
    bytes: int
    """Bytes which are left to read."""
    rows: int | None
    """Messages which are left to read, without acknowledgements; or None if it's unknown."""
    seconds: float | None
    """Age of the first message which is left to read, by the clock of its UUID; 0 if none is left;
    or None if it's unknown."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of a source of a query. `str()` returns a line for logs."""

    name: str
    """The format, and the option which selects the journals: `gazette prefix=rides/`."""
    batch_rows: int
    """Number of rows of the batch."""
    journals: dict[str, JournalProgress]
    """Progress in each journal, by name."""

    @property
    def bytes(self) -> int:
        """Bytes which are left to read, of all journals."""
        return sum(one.bytes for one in self.journals.values())

    @property
    def rows(self) -> int | None:
        """Messages which are left to read, of all journals; or None if it's unknown of one."""
        known = [one.rows for one in self.journals.values() if one.rows is not None]
        return sum(known) if len(known) == len(self.journals) else None

    @property
    def seconds(self) -> float | None:
        """Age of the oldest message which is left to read; or None if it's unknown of all."""
        known = [one.seconds for one in self.journals.values() if one.seconds is not None]
        return max(known, default=None)

    def __str__(self) -> str:
        left, seconds = self.rows, self.seconds
        behind = [f"{self.bytes} bytes"]
        behind += [] if left is None else [f"{left} rows"]
        behind += [] if seconds is None else [f"{seconds:.1f} s"]
        return f"{self.name}: {self.batch_rows} rows, {', '.join(behind)} behind"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Progress of a query by one batch. `str()` returns a line for logs."""

    query: str
    """Name of the query; or its ID if it has no name."""
    batch: int
    """Number of the batch."""
    sources: tuple[SourceProgress, ...]
    """Progress of its sources of this format."""

    @classmethod
    def of(cls, progress: Mapping[str, Any] | str) -> Self:
        """Return the progress of a query.

        Args:
            progress: `query.lastProgress`, `event.progress` of a listener, or its JSON.

        Raises:
            ValidationError: The progress isn't JSON, or a later version of this package wrote the
                offsets.

        Example:
            print(QueryProgress.of(query.lastProgress))
        """
        found = _parse(progress)
        name = found.get("name") or found.get("id") or ""
        return cls(str(name), int(found.get("batchId") or 0), tuple(sources_of(found)))

    def __str__(self) -> str:
        told = "; ".join(str(source) for source in self.sources)
        return f"query {self.query}, batch {self.batch}: {told or 'no source of Gazette'}"


def sources_of(progress: Mapping[str, Any] | str | None) -> Iterable[SourceProgress]:
    """Yield the progress of the sources of this format which report write heads.

    Raises:
        ValidationError: As `QueryProgress.of()`.
    """
    for source in _parse(progress).get("sources") or ():
        ended, latest = _json_of(source.get("endOffset")), _json_of(source.get("latestOffset"))
        if ended is not None and latest is not None:
            heads = WriteHeads.parse(latest)
            found = _journals_of(Offsets.parse(ended), heads)
            yield SourceProgress(heads.source, int(source.get("numInputRows") or 0), found)


def _journals_of(ended: Offsets, heads: WriteHeads) -> dict[str, JournalProgress]:
    found: dict[str, JournalProgress] = {}
    for name, head in sorted(heads.offsets.journals.items()):
        revision = heads.offsets.revisions.get(name, 0)
        known = name in ended.journals and not is_recreated(ended, name, revision, head)
        offset = ended.journals[name] if known else 0
        rows, seconds = heads.rows.get(name), None
        if offset >= head:
            rows, seconds = 0, 0.0
        elif name in heads.oldest_ms:
            seconds = max(heads.time_ms - heads.oldest_ms[name], 0) / 1000
        found[name] = JournalProgress(offset, head, max(head - offset, 0), rows, seconds)
    return found


def _parse(progress: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(progress, str):
        try:
            parsed: object = json.loads(progress)
        except ValueError as error:
            raise ValidationError(f"not the progress of a query: {error}") from error
        if not isinstance(parsed, Mapping):
            raise ValidationError("not the progress of a query: it isn't an object")
        progress = cast("Mapping[str, Any]", parsed)
    return progress or {}


def _json_of(value: object) -> Mapping[str, Any] | None:
    """Return the JSON of this source's offsets, which Spark reports as text or object; or None."""
    if isinstance(value, str):
        try:
            value = cast("object", json.loads(value))
        except ValueError:
            return None
    if not (isinstance(value, Mapping) and {"v", "j"} <= value.keys()):
        return None
    return cast("Mapping[str, Any]", value)
