"""Counters of a broker in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LABELS: Final = {
    "gazette_journal_server_started_totals": ("operation",),
    "gazette_journal_server_completed_totals": ("operation", "status"),
    "gazette_write_head": ("journal",),
}
_GAUGES: Final = frozenset(("gazette_write_head",))
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def metrics_text(stats: Mapping[str, object]) -> str:
    """Return counters as text.

    Args:
        stats: A number, or numbers by the values of labels (joined by commas), by name.
    """
    lines: list[str] = []
    for name, value in stats.items():
        lines.append(f"# TYPE {name} {'gauge' if name in _GAUGES else 'counter'}")
        if not isinstance(value, Mapping):
            lines.append(f"{name} {value}")
            continue
        labels = _LABELS[name]
        for key, number in cast("Mapping[str, object]", value).items():
            values = key.split(",", len(labels) - 1)
            pairs = ",".join(
                f'{label}="{text.translate(_ESCAPES)}"'
                for label, text in zip(labels, values, strict=True)
            )
            lines.append(f"{name}{{{pairs}}} {number}")
    return "\n".join(lines) + "\n"
