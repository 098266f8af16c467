"""What tests of programs which use Gazette need: brokers as a fixture, a process, a script."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_aio.testing.process import BrokerProcess
    from gazette_aio.testing.specs import create_journals, journal_spec
    from gazette_aio.testing.stub_broker import StubBroker

__all__ = ["BrokerProcess", "StubBroker", "create_journals", "journal_spec"]

# Imported when first used: pytest loads the plugin, and so this package, in every run.
_MODULES = {
    "BrokerProcess": "gazette_aio.testing.process",
    "StubBroker": "gazette_aio.testing.stub_broker",
    "create_journals": "gazette_aio.testing.specs",
    "journal_spec": "gazette_aio.testing.specs",
}


if not TYPE_CHECKING:  # Type checkers would take any name for one of ours.

    def __getattr__(name: str) -> Any:
        if (module := _MODULES.get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
