"""Measures of Spark's source and sink by PySpark; `python -m benchmarks --suite spark`.

All of them share one session of two cores, one broker, which is a process of its own, and journals
of the same rows.
"""

from __future__ import annotations

import importlib

from benchmarks.peers import kafka

_MODULES = ("reads", "committed", "sink", "times")


def load() -> None:
    """Register all measures."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")


def load_beside_kafka() -> None:
    """Register the measures beside Spark's source of Kafka, if it can be had."""
    if missing := kafka.missing():
        print(f"no {missing}: measures beside Kafka are left out")
        return
    kafka.download()
    kafka.download_connector()
    importlib.import_module(f"{__name__}.beside_kafka")
