"""Embedded broker: serves journals from one process and one directory, as a cluster does."""

from __future__ import annotations

from gazette_aio.broker.control.control import BrokerControl
from gazette_aio.broker.embedded import EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.broker.host.options import BrokerOptions
from gazette_aio.broker.serve import serve

__all__ = ["BrokerControl", "BrokerOptions", "EmbeddedBroker", "ManualClock", "serve"]
