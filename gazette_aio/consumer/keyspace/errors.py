"""Exceptions of key-value stores.

StoreError
└── KeyValueStoreError
    ├── CompactedError
    ├── LeaseLostError
    ├── StoreRefusedError
    └── StoreUnavailableError
GazetteError
└── KeySpaceError
"""

from __future__ import annotations

from gazette_aio.protocol.errors import GazetteError, StoreError


class KeyValueStoreError(StoreError):
    """A request to a key-value store failed.

    Args:
        text: Reason.
        code: Name of the gRPC code, such as `UNAVAILABLE`; empty if the failure has none.
        outcome_unknown: Whether a request that writes may have taken effect, or may do so later.
    """

    def __init__(self, text: str, *, code: str = "", outcome_unknown: bool = False) -> None:
        self.code = code
        self.outcome_unknown = outcome_unknown
        super().__init__(text)


class StoreRefusedError(KeyValueStoreError):
    """The store refuses a request, which had no effect. A repeated request fails again."""


class StoreUnavailableError(KeyValueStoreError):
    """The store doesn't answer, or can't serve the request at present."""

    retryable = True


class CompactedError(KeyValueStoreError):
    """A watch or a read asks for revisions that the store has dropped.

    Args:
        revision: Oldest revision that the store still has, 0 if it isn't known.
    """

    def __init__(self, revision: int) -> None:
        self.revision = revision
        oldest = f" (the oldest is {revision})" if revision else ""
        super().__init__(f"required revision is compacted{oldest}")

    def __reduce__(self) -> tuple[type[CompactedError], tuple[int]]:
        return type(self), (self.revision,)


class LeaseLostError(KeyValueStoreError):
    """A lease expired, or was revoked by another process."""


class KeySpaceError(GazetteError):
    """A watch contradicts itself or what is known, so that the key space can't be trusted."""
