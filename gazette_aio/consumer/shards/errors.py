"""Exceptions of shards.

GazetteError
├── ShardFailedError
├── ResolverError
│   └── ResolverStoppedError
└── HintsError
"""

from __future__ import annotations

from typing import Final

from gazette_aio.protocol.errors import GazetteError

_LONGEST_TEXT: Final = 2048
_CUT: Final = " ...[truncated]"


class ShardFailedError(GazetteError):
    """A replica of a shard failed. Its cause is the error of the step that its text names."""


class ResolverError(GazetteError):
    """A request was proxied to the wrong member, or a shard can't say what it has to wait for."""


class ResolverStoppedError(ResolverError):
    """The member is stopping, and serves no shards any longer."""

    def __init__(self) -> None:
        super().__init__("resolver has stopped serving local shards")

    def __reduce__(self) -> tuple[type[ResolverStoppedError], tuple[()]]:
        return type(self), ()


class HintsError(GazetteError):
    """Hints of a recovery log can't be fetched, stored or used."""


def status_text(error: Exception) -> str:
    """Return the text of an error for the status of a replica, cut to 2,048 characters.

    Surrogates are escaped: a text may quote a message that has some, and statuses are UTF-8.
    """
    text = str(error).encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + _CUT
