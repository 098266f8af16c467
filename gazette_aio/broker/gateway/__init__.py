"""HTTP gateway: journals over plain HTTP, a JSON form of two RPCs, and diagnostics.

The library behind it is imported when a gateway binds its address, not before.
"""

from __future__ import annotations

from gazette_aio.broker.gateway.gateway import HttpGateway

__all__ = ["HttpGateway"]
