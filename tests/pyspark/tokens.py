"""Tokens for a broker of the tests, in a module which workers import."""

from __future__ import annotations

import time
from datetime import timedelta

import gazette_aio.protocol as pb

KEY = "dGhlIGtleSBvZiB0ZXN0cyBvZiBTcGFyaw=="
"""What the broker checks tokens by."""
OTHER_KEY = "YW5vdGhlciBrZXkgb2YgdGVzdHMgb2YgU3Bhcms="
_CLAIMS = pb.Claims(pb.Capability.LIST | pb.Capability.READ | pb.Capability.APPEND)


def token(key: str = KEY) -> str:
    """Return a token which permits all that a source and a sink do: a token provider."""
    return pb.KeyedAuth(key).sign(_CLAIMS, timedelta(hours=1), time.time())


def wrong_token() -> str:
    """Return a token which the broker doesn't take: a token provider."""
    return token(OTHER_KEY)
