"""Tools for tests of programs that use Gazette: brokers, faults, checks of stores and leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use

# Imported at first use: pytest loads the plugin, and thus this package, in every run.
if TYPE_CHECKING:
    from gazette_aio.testing.consumers import ConsumerHarness, consumer_harness
    from gazette_aio.testing.error_store import ErrorStore
    from gazette_aio.testing.fault_proxy import FaultProxy
    from gazette_aio.testing.fault_schedule import Direction, Fault, FaultKind, Faults
    from gazette_aio.testing.gazette import Gazette, Topic
    from gazette_aio.testing.leaks import no_leaks
    from gazette_aio.testing.message_checks import check_adapter, check_framing, check_stream
    from gazette_aio.testing.process import BrokerProcess
    from gazette_aio.testing.specs import create_journals, journal_spec
    from gazette_aio.testing.store_check import check_store
    from gazette_aio.testing.stub_broker import StubBroker
    from gazette_aio.testing.stub_shard import StubShard

__all__ = [
    "BrokerProcess",
    "ConsumerHarness",
    "Direction",
    "ErrorStore",
    "Fault",
    "FaultKind",
    "FaultProxy",
    "Faults",
    "Gazette",
    "StubBroker",
    "StubShard",
    "Topic",
    "check_adapter",
    "check_framing",
    "check_store",
    "check_stream",
    "consumer_harness",
    "create_journals",
    "journal_spec",
    "no_leaks",
]

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
