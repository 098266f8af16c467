"""Measures of Spark's source and sink by PySpark; `python -m benchmarks --suite spark`.

All of them share one session of two cores, one broker, which is a process of its own, and journals
of the same rows.
"""

from __future__ import annotations

import importlib

_MODULES = ("reads", "committed", "sink", "times")


def load() -> None:
    """Register all measures."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
