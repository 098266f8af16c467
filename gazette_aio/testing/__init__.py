"""Tools for tests of programs that use Gazette: brokers, faults, checks of stores and leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use

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

# Imported at first use: pytest loads the plugin, and thus this package, in every run.
_MODULES = {
    "BrokerProcess": "gazette_aio.testing.process",
    "ConsumerHarness": "gazette_aio.testing.consumers",
    "Direction": "gazette_aio.testing.fault_schedule",
    "ErrorStore": "gazette_aio.testing.error_store",
    "Fault": "gazette_aio.testing.fault_schedule",
    "FaultKind": "gazette_aio.testing.fault_schedule",
    "FaultProxy": "gazette_aio.testing.fault_proxy",
    "Faults": "gazette_aio.testing.fault_schedule",
    "Gazette": "gazette_aio.testing.gazette",
    "StubBroker": "gazette_aio.testing.stub_broker",
    "StubShard": "gazette_aio.testing.stub_shard",
    "Topic": "gazette_aio.testing.gazette",
    "check_adapter": "gazette_aio.testing.message_checks",
    "check_framing": "gazette_aio.testing.message_checks",
    "check_store": "gazette_aio.testing.store_check",
    "check_stream": "gazette_aio.testing.message_checks",
    "consumer_harness": "gazette_aio.testing.consumers",
    "create_journals": "gazette_aio.testing.specs",
    "journal_spec": "gazette_aio.testing.specs",
    "no_leaks": "gazette_aio.testing.leaks",
}


if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals(), _MODULES)
