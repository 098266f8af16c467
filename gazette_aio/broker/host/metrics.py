"""Counters of a broker, with the names that operators know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from gazette_aio.serving.calls import CallCounts

if TYPE_CHECKING:
    from collections.abc import Iterator


class BrokerMetrics(CallCounts):
    """Counters, each a plain number."""

    spool_commits = 0
    spool_commit_bytes = 0
    spool_rollbacks = 0
    spool_rollback_bytes = 0
    spool_completed = 0
    spool_persisted = 0
    store_put_bytes = 0
    store_list_items = 0
    store_health_checks = 0

    def snapshot(self) -> dict[str, object]:
        """Return all counters as a dictionary of plain values."""
        return {
            "gazette_journal_server_started_totals": dict(self.started),
            "gazette_journal_server_completed_totals": {
                f"{operation},{status}": count
                for (operation, status), count in sorted(self.completed.items())
            },
            "gazette_spool_commits_total": self.spool_commits,
            "gazette_spool_commit_bytes_total": self.spool_commit_bytes,
            "gazette_spool_rollbacks_total": self.spool_rollbacks,
            "gazette_spool_rollback_bytes_total": self.spool_rollback_bytes,
            "gazette_spool_completed_total": self.spool_completed,
            "gazette_spool_persisted_total": self.spool_persisted,
            "gazette_store_put_bytes_total": self.store_put_bytes,
            "gazette_store_list_items_count": self.store_list_items,
            "gazette_store_health_check_total": self.store_health_checks,
        }


class Family(NamedTuple):
    """A metric: its name, and the labels of its values."""

    name: str
    about: str
    labels: tuple[str, ...] = ()
    is_gauge: bool = False


FAMILIES: Final = (
    Family("gazette_journal_server_started_totals", "RPCs begun.", ("operation",)),
    Family("gazette_journal_server_completed_totals", "RPCs ended.", ("operation", "status")),
    Family("gazette_spool_commits_total", "Committed appends."),
    Family("gazette_spool_commit_bytes_total", "Bytes of committed appends."),
    Family("gazette_spool_rollbacks_total", "Appends rolled back with content."),
    Family("gazette_spool_rollback_bytes_total", "Bytes of appends rolled back."),
    Family("gazette_spool_completed_total", "Fragments completed."),
    Family("gazette_spool_persisted_total", "Fragments persisted to stores."),
    Family("gazette_store_put_bytes_total", "Bytes written to stores."),
    Family("gazette_store_list_items_count", "Files listed in stores."),
    Family("gazette_store_health_check_total", "Health checks of stores."),
    Family("gazette_failing_stores", "Stores, or the data directory, that fail.", is_gauge=True),
    Family("gazette_write_head", "Offset at which a journal ends.", ("journal",), is_gauge=True),
)
"""Metrics of a broker, with their labels."""


def families_of(
    stats: Mapping[str, object],
) -> Iterator[tuple[Family, list[tuple[tuple[str, ...], int]]]]:
    """Yield the metrics among counters, each with its values by the values of its labels.

    Args:
        stats: A number, or numbers by the values of labels (joined by commas), by name. Without
            labels, what a mapping has is counted. Other names are left out.
    """
    for family in FAMILIES:
        value = stats.get(family.name)
        if isinstance(value, Mapping) and not family.labels:
            yield family, [((), len(cast("Mapping[str, object]", value)))]
        elif isinstance(value, Mapping):
            numbers = cast("Mapping[str, int]", value)
            splits = len(family.labels) - 1
            yield family, [(tuple(key.split(",", splits)), n) for key, n in numbers.items()]
        elif isinstance(value, int):
            yield family, [((), value)]
