"""Counters of a broker in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.broker.host.metrics import families_of

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def metrics_text(stats: Mapping[str, object]) -> str:
    """Return counters as text.

    Args:
        stats: A number, or numbers by the values of labels (joined by commas), by name.
    """
    lines: list[str] = []
    for family, samples in families_of(stats):
        lines.append(f"# HELP {family.name} {family.about}")
        lines.append(f"# TYPE {family.name} {'gauge' if family.is_gauge else 'counter'}")
        for values, number in samples:
            pairs = ",".join(
                f'{label}="{text.translate(_ESCAPES)}"'
                for label, text in zip(family.labels, values, strict=True)
            )
            lines.append(f"{family.name}{f'{{{pairs}}}' if pairs else ''} {number}")
    return "\n".join(lines) + "\n"
