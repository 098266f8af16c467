"""Filters of a query: the journals and the bytes which can have its rows.

Filters are objects of `pyspark.sql.datasource`; all of them hold for every row. They are recognized
by the names of their classes and attributes, without importing Spark.

Filters of a journal's name and labels are decided for whole journals, and thus handled: Spark
needn't evaluate them for rows. Filters of offsets and times only reduce what is read, and aren't
handled. Those of times narrow the times of the options, thus prune fragments as these do.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeGuard, cast

from gazette_aio.spark.planning.journal_ranges import find_cuts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

_JOURNAL: Final = "_journal"
_OFFSETS: Final = ("_begin", "_end")
_TIMESTAMP: Final = "_timestamp"
_END: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}
_EQUAL: Final = ("EqualTo", "EqualNullSafe", "In")
_LOWER_BOUNDS: Final = (*_EQUAL, "GreaterThan", "GreaterThanOrEqual")
_UPPER_BOUNDS: Final = (*_EQUAL, "LessThan", "LessThanOrEqual")

Filter: TypeAlias = Any
"""A filter of `pyspark.sql.datasource`, or an object with the same attributes."""


@dataclass(frozen=True, slots=True)
class Pushdown:
    """Selection of journals and bytes by the filters of a query.

    Args:
        columns: Labels of the string columns of labels. A column has the first value of its label
            in the order of values, or null.
        decided: Filters which are decided for whole journals.
        unhandled: Filters which Spark must evaluate for each row.
        begin: Least begin of rows.
        end: Offset before which rows begin.
        start_ms: Least `_timestamp` of rows, in milliseconds since 1970; None for no limit.
        stop_ms: Time before which all `_timestamp`s of rows are, likewise.
    """

    columns: Mapping[str, str]
    decided: tuple[Filter, ...] = ()
    unhandled: tuple[Filter, ...] = ()
    begin: int = 0
    end: int = _END
    start_ms: int | None = None
    stop_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter], columns: Mapping[str, str]) -> Self:
        """Return the selection of filters. Unknown filters are unhandled.

        Args:
            filters: Filters, all of which hold for each selected row.
            columns: Labels of the string columns of labels.
        """
        decided: list[Filter] = []
        unhandled: list[Filter] = []
        begin, end = 0, _END
        start_ms: int | None = None
        stop_ms: int | None = None
        for item in filters:
            if _is_decidable(item, {_JOURNAL, *columns}):
                decided.append(item)
                continue
            if _kind(item) == "IsNotNull" and _column(item) in _OFFSETS:
                # Offsets are never null.
                continue
            unhandled.append(item)
            low, high = _offset_bounds(item)
            begin, end = max(begin, low), min(end, high)
            start, stop = _time_bounds(item)
            start_ms, stop_ms = _tighter(max, start_ms, start), _tighter(min, stop_ms, stop)
        return cls(columns, tuple(decided), tuple(unhandled), begin, end, start_ms, stop_ms)

    def limit(self, options: SourceOptions) -> SourceOptions:
        """Return options whose times are narrowed to those of selected rows.

        Times of single journals stay times of these journals.
        """
        given, start = options.starting_timestamp_ms, self.start_ms
        starting: int | Mapping[str, int] | None
        if given is None or isinstance(given, int):
            starting = _tighter(max, given, start)
        else:
            starting = {name: max(time, start or 0) for name, time in given.items()}
        ending = _tighter(min, options.ending_timestamp_ms, self.stop_ms)
        return replace(options, starting_timestamp_ms=starting, ending_timestamp_ms=ending)

    def matches(self, journal: JournalInfo) -> bool:
        """Return whether a journal can have selected rows, by its name and labels."""
        labels = dict(journal.labels)
        values: dict[str, str | None] = {
            column: min(labels.get(label, ()), default=None)
            for column, label in self.columns.items()
        }
        values[_JOURNAL] = journal.name
        return all(_evaluate(item, values) for item in self.decided)

    def clip(self, planned: JournalRange, *, committed: bool) -> JournalRange:
        """Return the part of a range which has the selected rows, possibly empty.

        Args:
            planned: The range.
            committed: Whether messages are sequenced. Sequencing needs the messages around them,
                thus the range isn't clipped by offsets; splits can be left out instead.
        """
        _, begin, end = planned
        if not committed:
            begin = max(begin, self.begin)
            end = max(min(end, self.end), begin)
            if not planned.journal.is_divisible:
                cuts = find_cuts(planned)
                begin = max((cut for cut in cuts if cut <= begin), default=planned.begin)
                end = min((cut for cut in cuts if cut >= end), default=planned.end)
            begin = min(begin, planned.end)
            end = min(end, planned.end)
        return planned._replace(begin=begin, end=end)


def _kind(item: Filter) -> str:
    return type(item).__name__


def _column(item: Filter) -> str:
    """Return the column of a filter, or an empty name if it has several or none."""
    match getattr(item, "attribute", None):
        case (str(name),) | [str(name)]:
            return name
        case _:
            return ""


def _is_decidable(item: Filter, columns: set[str]) -> bool:
    """Return whether a filter is known, and compares strings which a journal's rows share."""
    kind = _kind(item)
    if kind == "Not":
        return _is_decidable(item.child, columns)
    if _column(item) not in columns:
        return False
    if kind in ("IsNull", "IsNotNull"):
        return True
    value = getattr(item, "value", None)
    if kind == "In":
        return _is_list(value) and all(one is None or isinstance(one, str) for one in value)
    if kind == "EqualNullSafe":
        return value is None or isinstance(value, str)
    return kind in _COMPARISONS and isinstance(value, str)


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))


def _evaluate(item: Filter, values: Mapping[str, str | None]) -> bool | None:
    """Return whether a filter is true, or None if nulls make the result unknown."""
    kind = _kind(item)
    if kind == "Not":
        holds = _evaluate(item.child, values)
        return None if holds is None else not holds
    value = values[_column(item)]
    match kind:
        case "IsNull":
            return value is None
        case "IsNotNull":
            return value is not None
        case "EqualNullSafe":
            return bool(value == item.value)
        case "In":
            if value is None:
                return None if item.value else False
            return value in item.value or (None if None in item.value else False)
        case _:
            return None if value is None else _COMPARISONS[kind](value, item.value)


def _values(item: Filter) -> list[Any]:
    value = getattr(item, "value", None)
    if _kind(item) == "In":
        return [one for one in value if one is not None] if _is_list(value) else []
    return [value]


def _offset_bounds(item: Filter) -> tuple[int, int]:
    """Return the bounds of the begins of rows for which a filter can be true."""
    kind, column = _kind(item), _column(item)
    values = _values(item)
    if column not in _OFFSETS or not values or not all(type(value) is int for value in values):
        return 0, _END
    lowest, highest = min(cast("list[int]", values)), max(cast("list[int]", values))
    is_begin = column == "_begin"
    match kind:
        case "EqualTo" | "EqualNullSafe" | "In":
            low, high = lowest, highest
        case "GreaterThan":
            low, high = lowest + 1, _END
        case "GreaterThanOrEqual":
            low, high = lowest, _END
        case "LessThan":
            low, high = 0, highest - 1
        case "LessThanOrEqual":
            low, high = 0, highest
        case _:
            return 0, _END
    # A row begins before it ends; its length is unknown.
    return (max(low, 0), max(high + 1, 0)) if is_begin else (0, max(high, 0))


def _time_bounds(item: Filter) -> tuple[int | None, int | None]:
    """Return the bounds of the times of rows for which a filter can be true.

    Returns:
        The least time, and a time after the last, in milliseconds since 1970; None for no limit.
    """
    kind = _kind(item)
    if _column(item) != _TIMESTAMP or kind not in (*_LOWER_BOUNDS, *_UPPER_BOUNDS):
        return None, None
    # Times without a zone are in the session's zone, which is unknown here.
    values = [value for value in _values(item) if isinstance(value, datetime) and value.tzinfo]
    if not values or len(values) != len(_values(item)):
        return None, None
    low, high = ((time - _EPOCH) // _MILLISECOND for time in (min(values), max(values)))
    # Options have no times before 1970.
    start = low if kind in _LOWER_BOUNDS and low > 0 else None
    return start, max(high + 1, 0) if kind in _UPPER_BOUNDS else None


def _tighter(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    """Return one of two limits, or the one which there is."""
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
