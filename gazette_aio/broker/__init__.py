"""Embedded broker: serves journals from one process and one directory, as a cluster does."""

from __future__ import annotations

from gazette_aio.broker.control.control import BrokerControl as BrokerControl
from gazette_aio.broker.embedded import EmbeddedBroker as EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock as ManualClock
from gazette_aio.broker.host.options import BrokerOptions as BrokerOptions
from gazette_aio.broker.serve import serve as serve
