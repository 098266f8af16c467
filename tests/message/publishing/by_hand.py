"""Commits by hand, of a Publisher without a `transaction()`."""

from __future__ import annotations

from typing import Any

from gazette_aio.message.publishing.intents import append_intents


async def acknowledge(publisher: Any) -> None:
    """Commit all uncommitted messages."""
    await publisher.flush()
    await append_intents(publisher.appends, publisher.build_ack_intents())
