"""Error of a store whose shard another process has restored since."""

from __future__ import annotations

from gazette_aio.protocol.errors import FencedError


def fenced() -> FencedError:
    """Return the error of a commit that another process has fenced off."""
    return FencedError("checkpoint fence was updated (ie, by a new primary)")
