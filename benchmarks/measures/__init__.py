"""The measures, in order of their output."""

from __future__ import annotations

import importlib

_MODULES = (
    "read_committed",
    "consumer",
    "consumer_idle",
    "consumer_allocation",
    "consumer_loop",
    "arrow",
    "publish",
    "transactions",
    "reads",
    "recoverylog_play",
    "appends",
    "listing",
    "broker",
    "recoverylog",
    "recoverylog_rocksdb",
    "recoverylog_sqlite",
    "imports",
)


def load() -> None:
    """Register all measures."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
