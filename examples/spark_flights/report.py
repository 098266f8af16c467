"""Compare the delays which Spark published with those of the CSV files, and show them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import matplotlib as mpl
from rich.table import Table

from examples.flights.data import COLUMNS, MISSING, open_csv
from examples.spark_flights.data import (
    POOR_VISIBILITY_MILES,
    RAIN_INCHES,
    STRONG_WIND_MPH,
    Delay,
    open_weather,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KINDS = ("fair", "wind", "rain", "fog", "unknown")
_COLORS = ("#35618f", "#7a9cc0", "#3c8f5a", "#9a9a9a", "#c9b037")
_SHOWN = 5

Window = tuple[str, str, str]
"""Day, airport and kind of weather."""


@dataclasses.dataclass
class Figures:
    """How many flights there were, how many of them left, and by how many minutes late."""

    flights: int = 0
    departed: int = 0
    delay_sum: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.flights + other.flights,
            self.departed + other.departed,
            self.delay_sum + other.delay_sum,
        )

    @property
    def mean(self) -> float:
        """Minutes of delay of a flight which has left."""
        return self.delay_sum / self.departed if self.departed else 0.0


class Tally:
    """What the journal of delays says: the last message of each window holds."""

    def __init__(self) -> None:
        self.windows: dict[Window, Figures] = {}
        self.messages = 0
        self.repeated: list[Window] = []

    def add(self, delay: Delay) -> None:
        """Take in the next message."""
        known = self.windows.get(delay.window, Figures())
        # Only days which have got more flights are published. So what isn't more is there twice.
        if delay.flights <= known.flights:
            self.repeated.append(delay.window)
        self.windows[delay.window] = Figures(delay.flights, delay.departed, delay.delay_sum)
        self.messages += 1

    def by_weather(self) -> dict[str, Figures]:
        """Return the figures of each kind of weather."""
        return {kind: self._sum(kind=kind) for kind in KINDS}

    def by_day(self) -> dict[str, Figures]:
        """Return the figures of each day, in order."""
        days: defaultdict[str, Figures] = defaultdict(Figures)
        for (day, _, _), figures in sorted(self.windows.items()):
            days[day] += figures
        return dict(days)

    def by_airport(self, kind: str) -> dict[str, Figures]:
        """Return the figures of each airport at a kind of weather."""
        airports = sorted({airport for _, airport, _ in self.windows})
        return {airport: self._sum(kind=kind, airport=airport) for airport in airports}

    def _sum(self, *, kind: str, airport: str | None = None) -> Figures:
        found = (
            figures
            for (_, at, weather), figures in self.windows.items()
            if weather == kind and airport in (None, at)
        )
        return sum(found, Figures())


def figures_of_csv(limit: int | None = None) -> dict[Window, Figures]:
    """Return the figures of each window, straight from the CSV files."""
    with open_weather() as hours:
        kinds = {(hour["origin"], hour["time_hour"]): _kind(hour) for hour in hours}
    origin, hour, delay = (COLUMNS.index(name) for name in ("origin", "time_hour", "dep_delay"))
    windows: defaultdict[Window, Figures] = defaultdict(Figures)
    with open_csv() as rows:
        for row in itertools.islice(rows, limit):
            kind = kinds.get((row[origin], row[hour]), "unknown")
            has_left = row[delay] != MISSING
            one = Figures(1, int(has_left), int(row[delay]) if has_left else 0)
            windows[row[hour][:10], row[origin], kind] += one
    return dict(windows)


def _kind(hour: dict[str, str]) -> str:
    if _number(hour["precip"], 0.0) > RAIN_INCHES:
        return "rain"
    if _number(hour["visib"], POOR_VISIBILITY_MILES) < POOR_VISIBILITY_MILES:
        return "fog"
    return "wind" if _number(hour["wind_speed"], 0.0) >= STRONG_WIND_MPH else "fair"


def _number(text: str, default: float) -> float:
    return default if text == MISSING else float(text)


def differences(expected: dict[Window, Figures], tally: Tally) -> list[str]:
    """Return what is wrong with `tally`, one sentence each; nothing when all is well."""
    found: list[str] = []
    if tally.repeated:
        found.append(f"{len(tally.repeated):,} messages are repeated: {_text(tally.repeated)}")
    keys = sorted(expected.keys() | tally.windows.keys())
    if wrong := [key for key in keys if tally.windows.get(key) != expected.get(key)]:
        found.append(f"{len(wrong):,} windows aren't those of the files: {_text(wrong)}")
        key = wrong[0]
        found.append(f"{_text([key])}: read {tally.windows.get(key)}, but the files have"
                     f" {expected.get(key)}")  # fmt: skip
    return found


def _text(windows: Iterable[Window]) -> str:
    texts = [" ".join(window) for window in windows]
    return ", ".join(texts[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")


def table(tally: Tally) -> Table:
    """Return the figures of each kind of weather as a table."""
    result = Table("weather", box=None, header_style="bold", pad_edge=False)
    for title in ("flights", "left", "mean dep_delay"):
        result.add_column(title, justify="right")
    kinds = tally.by_weather()
    for kind, figures in kinds.items():
        result.add_row(kind, *_cells(figures))
    result.add_row("all", *_cells(sum(kinds.values(), Figures())), style="bold")
    return result


def _cells(figures: Figures) -> tuple[str, str, str]:
    return f"{figures.flights:,}", f"{figures.departed:,}", f"{figures.mean:.1f}"


def draw_chart(tally: Tally, path: Path) -> None:
    """Draw mean delays by weather and airport, and by day, into a PNG file."""
    mpl.use("Agg")
    # Imported behind the choice of a backend which needs no display.
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 6), layout="constrained")
    for index, kind in enumerate(KINDS):
        airports = tally.by_airport(kind)
        positions = [place + (index - 2) * 0.16 for place in range(len(airports))]
        means = [figures.mean for figures in airports.values()]
        upper.bar(positions, means, width=0.15, label=kind, color=_COLORS[index])
        upper.set_xticks(range(len(airports)), list(airports))
    upper.set_ylabel("mean departure delay (minutes)")
    upper.set_title("Flights from New York City in 2013, by weather")
    upper.margins(y=0.15)
    upper.legend(ncols=len(KINDS), frameon=False, fontsize="small")
    days = tally.by_day()
    lower.plot(
        [dt.date.fromisoformat(day) for day in days],
        [figures.mean for figures in days.values()],
        color="#b5473c",
        linewidth=0.9,
    )
    lower.set_ylabel("the same, by day")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
