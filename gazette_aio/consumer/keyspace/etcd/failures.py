"""Failures of Etcd's RPCs: what each means for the request, as an exception.

Pure: it takes the names of gRPC codes, and their texts.
"""

from __future__ import annotations

import re
from typing import Final

from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)

_REFUSED: Final = frozenset(
    {
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
_COMPACTED: Final = "required revision has been compacted"
_BUSY: Final = ("etcdserver: too many requests", "etcdserver: mvcc: database space exceeded")
"""Texts of RESOURCE_EXHAUSTED that pass, as other ones don't."""
_STALE_TOKEN: Final = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
_NO_AUTH: Final = "etcdserver: authentication is not enabled"
# Wire: gRPC's texts of a channel without a connection, and Etcd's before it looks at a request.
_NOT_BEGUN: Final = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "etcdserver: no leader",
    "etcdserver: rpc not supported for learner",
)
_TOO_LARGE: Final = ("request is too large", "received message larger than max")
_VERSION: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.|$)")
_TOO_MANY: Final = "too many operations in txn request"


def failure(code: str, text: str, *, writes: bool) -> KeyValueStoreError:
    """Return the exception of a failed RPC.

    Args:
        code: Name of the gRPC code.
        text: Details of the status.
        writes: Whether the request may change something, so that its outcome may be unknown.
    """
    if _COMPACTED in text:
        return CompactedError(0)
    if text in _BUSY or (code == "UNAVAILABLE" and text.startswith(_NOT_BEGUN)):
        return StoreUnavailableError(text, code=code)
    if code in _REFUSED:
        return StoreRefusedError(text, code=code)
    if code == "DATA_LOSS":
        return KeyValueStoreError(text, code=code, outcome_unknown=writes)
    return StoreUnavailableError(text or code, code=code, outcome_unknown=writes)


def explained(
    error: KeyValueStoreError, *, request_bytes: int, operations: int
) -> KeyValueStoreError:
    """Return the error of a transaction, with its size where Etcd complains about that."""
    text = str(error)
    if any(each in text for each in _TOO_LARGE):
        hint = f"the transaction has {request_bytes} bytes: see --max-request-bytes of Etcd"
    elif _TOO_MANY in text:
        hint = f"the transaction has {operations} operations: see --max-txn-ops of Etcd"
    else:
        return error
    return StoreRefusedError(f"{text} ({hint})", code=error.code)


def is_stale_token(error: KeyValueStoreError) -> bool:
    """Return whether the request was refused, without effect, because it needs a new token."""
    return str(error).startswith(_STALE_TOKEN)


def is_auth_disabled(error: KeyValueStoreError) -> bool:
    """Return whether Etcd issues no tokens because it doesn't ask for users."""
    return str(error) == _NO_AUTH


def may_repeat(error: KeyValueStoreError) -> bool:
    """Return whether the failed request may be repeated: it changed nothing, and may succeed."""
    return isinstance(error, StoreUnavailableError) and not error.outcome_unknown


def too_old(version: str) -> bool:
    """Return whether a server of this version lacks what consumers need: it's before 3.4."""
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) < (3, 4)
