"""Times of a query, by filters of its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.filters import Pushdown
from tests.spark.test_planning import filter_of


def utc(milliseconds):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def times_of(filters, **options):
    """Return the times of options which the filters of a query narrow."""
    base = {"brokers": "http://b:1", "prefix": "a/"}
    pushed = Pushdown.of(filters, {})
    assert pushed.unhandled == tuple(filters)
    found = pushed.limit(SourceOptions.parse(base | options, streaming=False))
    return found.starting_timestamp_ms, found.ending_timestamp_ms


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("GreaterThan", utc(2000.5), (2000, None)),
        ("GreaterThanOrEqual", utc(2000), (2000, None)),
        ("LessThan", utc(2000), (None, 2001)),
        ("LessThanOrEqual", utc(2000.5), (None, 2001)),
        ("EqualTo", utc(2000.5), (2000, 2001)),
        ("EqualNullSafe", utc(2000), (2000, 2001)),
        ("EqualNullSafe", None, (None, None)),
        ("In", [utc(3000), utc(2000), None], (2000, 3001)),
        ("In", [utc(3000), 1], (None, None)),
        # What is before 1970 is no time of the options.
        ("GreaterThan", utc(-5), (None, None)),
        ("LessThan", utc(-5), (None, 0)),
        ("LessThan", datetime(2024, 1, 1), (None, None)),  # noqa: DTZ001
        ("StringStartsWith", utc(2000), (None, None)),
    ],
)
def test_filters_narrow_times(kind, value, expected):
    assert times_of([filter_of(kind, "_timestamp", value)]) == expected


def test_filters_narrow_times_of_the_options():
    between = [
        filter_of("GreaterThanOrEqual", "_timestamp", utc(2000)),
        filter_of("LessThan", "_timestamp", utc(4000)),
        filter_of("LessThan", "_timestamp", utc(5000)),
    ]
    assert times_of(between) == (2000, 4001)
    options = {"startingTimestamp": "1000", "endingTimestamp": "3000"}
    assert times_of(between, **options) == (2000, 3000)
    options = {"startingTimestamp": "3000", "endingTimestamp": "9000"}
    assert times_of(between, **options) == (3000, 4001)
    # Other journals begin at their earliest offset.
    options = {"startingTimestamp": '{"one/1": 1000, "one/2": 3000}'}
    assert times_of(between, **options) == ({"one/1": 2000, "one/2": 3000}, 4001)
    assert times_of([], **options) == ({"one/1": 1000, "one/2": 3000}, None)
