"""Authorization of changes."""

from __future__ import annotations

import gazette_aio.protocol as pb
from gazette_aio.protocol.labels import with_id_label
from gazette_aio.serving.rpc_error import RpcError


def is_unconfined(claims: pb.Claims) -> bool:
    """Return whether claims are of any shard."""
    return not claims.selector.include.labels and not claims.selector.exclude.labels


def check_authorized(claims: pb.Claims, shard: str, labels: pb.LabelSet | None = None) -> None:
    """Check that a caller may change a shard.

    Args:
        claims: Claims of the caller.
        shard: ID of the shard.
        labels: Labels of its spec; None if there is none.

    Raises:
        RpcError: The caller may not.
    """
    if not pb.selector_matches(claims.selector, with_id_label(shard, labels or pb.LabelSet())):
        raise not_authorized(shard)


def is_hidden(claims: pb.Claims, shard: str, labels: pb.LabelSet) -> bool:
    """Return whether a shard is to look like a missing one, as its labels don't match.

    Of a selector that wouldn't match a missing shard either, the refusal of both is the same.
    """
    if pb.selector_matches(claims.selector, with_id_label(shard, labels)):
        return False
    return pb.selector_matches(claims.selector, with_id_label(shard, pb.LabelSet()))


def not_authorized(shard: str) -> RpcError:
    """Return the refusal of a change of a shard."""
    return RpcError(f"not authorized to {shard}", "UNAUTHENTICATED")
