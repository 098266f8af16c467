"""Compare what was read back with the CSV file itself, and show it."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import matplotlib as mpl
from rich.table import Table

from examples.flights.data import COLUMNS, MISSING, Flight, open_csv

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 5


@dataclasses.dataclass
class Figures:
    """The figures of one carrier."""

    flights: int = 0
    known_delays: int = 0
    delay_sum: int = 0
    """Minutes of arrival delay in all, of the flights of which it's known."""

    def add(self, arr_delay: int | None) -> None:
        """Count one flight."""
        self.flights += 1
        if arr_delay is not None:
            self.known_delays += 1
            self.delay_sum += arr_delay


class Tally:
    """What came back from the journals: figures of each carrier, and how often each row did."""

    def __init__(self, total: int) -> None:
        self.carriers: defaultdict[str, Figures] = defaultdict(Figures)
        self.times_seen = bytearray(total)
        self.unexpected: list[int] = []

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        self.carriers[flight.carrier].add(flight.arr_delay)
        if 0 <= flight.row < len(self.times_seen):
            self.times_seen[flight.row] = min(self.times_seen[flight.row] + 1, 255)
        else:
            self.unexpected.append(flight.row)


def figures_of_csv(limit: int | None = None) -> dict[str, Figures]:
    """Return the figures of each carrier, straight from the first `limit` rows of the file."""
    carrier, arr_delay = COLUMNS.index("carrier"), COLUMNS.index("arr_delay")
    figures: defaultdict[str, Figures] = defaultdict(Figures)
    with open_csv() as rows:
        for row in itertools.islice(rows, limit):
            delay = row[arr_delay]
            figures[row[carrier]].add(None if delay == MISSING else int(delay))
    return dict(figures)


def differences(expected: dict[str, Figures], tally: Tally) -> list[str]:
    """Return what is wrong with `tally`, one sentence each; nothing when all is well."""
    found: list[str] = []
    missing = [row for row, times in enumerate(tally.times_seen) if times == 0]
    repeated = [row for row, times in enumerate(tally.times_seen) if times > 1]
    for rows, what in [
        (missing, "missing"),
        (repeated, "there more than once"),
        (tally.unexpected, "not of the file"),
    ]:
        if rows:
            shown = ", ".join(map(str, rows[:_SHOWN])) + (", …" if len(rows) > _SHOWN else "")
            found.append(f"{len(rows):,} rows are {what}: {shown}")
    for carrier in sorted(expected.keys() | tally.carriers.keys()):
        ours, theirs = tally.carriers.get(carrier, Figures()), expected.get(carrier, Figures())
        if ours != theirs:
            found.append(f"carrier {carrier}: read {ours}, but the file has {theirs}")
    return found


def table(expected: dict[str, Figures], tally: Tally) -> Table:
    """Return the figures of each carrier as a table."""
    result = Table("carrier", box=None, header_style="bold", pad_edge=False)
    for title in ("flights", "known arr_delay", "sum of arr_delay", "same as CSV"):
        result.add_column(title, justify="right")
    for carrier, figures in sorted(tally.carriers.items()):
        cells = (figures.flights, figures.known_delays, figures.delay_sum)
        same = "yes" if figures == expected.get(carrier) else "NO"
        result.add_row(carrier, *(f"{cell:,}" for cell in cells), same)
    sums = [
        sum(getattr(figures, field.name) for figures in tally.carriers.values())
        for field in dataclasses.fields(Figures)
    ]
    result.add_row("all", *(f"{cell:,}" for cell in sums), "", style="bold")
    return result


def draw_chart(tally: Tally, path: Path) -> None:
    """Draw flights and mean arrival delay of each carrier into a PNG file."""
    mpl.use("Agg")
    # Imported behind the choice of a backend which needs no display.
    from matplotlib import pyplot as plt  # noqa: PLC0415

    carriers = sorted(tally.carriers, key=lambda name: -tally.carriers[name].flights)
    rows = [tally.carriers[name] for name in carriers]
    means = [row.delay_sum / row.known_delays if row.known_delays else 0.0 for row in rows]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    upper.bar(carriers, [row.flights for row in rows], color="#35618f")
    upper.set_ylabel("flights")
    upper.set_title("Flights from New York City in 2013, by carrier")
    colors = ["#b5473c" if mean > 0 else "#3c8f5a" for mean in means]
    lower.bar(carriers, means, color=colors)
    lower.axhline(0, color="black", linewidth=0.8)
    lower.set_ylabel("mean arrival delay (minutes)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
