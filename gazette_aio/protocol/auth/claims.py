"""Claims of RPCs: capabilities, the claims of each request, and the claims of a context."""

from __future__ import annotations

import contextlib
import dataclasses
from contextvars import ContextVar
from enum import KEEP, IntFlag
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol import service
from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol._generated import consumer_pb2 as pc
from gazette_aio.protocol.errors import AuthorizationError
from gazette_aio.protocol.journal import strip_meta
from gazette_aio.protocol.well_known import META_ID, META_NAME

if TYPE_CHECKING:
    from collections.abc import Generator


class Capability(IntFlag, boundary=KEEP):
    """Permissions of a token. Bits from 1 << 16 are for applications."""

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16
    REPLICATE = 32
    ALL = 0xFFFF_FFFF


REQUIRED_CAPABILITIES: Final = {
    service.LIST: Capability.LIST,
    service.APPLY: Capability.APPLY,
    service.READ: Capability.READ,
    service.APPEND: Capability.APPEND,
    service.REPLICATE: Capability.REPLICATE,
    service.LIST_FRAGMENTS: Capability.READ,
    service.FRAGMENT_STORE_HEALTH: Capability.READ,
    service.SHARD_STAT: Capability.READ,
    service.SHARD_LIST: Capability.LIST,
    service.SHARD_APPLY: Capability.APPLY,
    service.SHARD_GET_HINTS: Capability.READ,
    service.SHARD_UNASSIGN: Capability.APPLY,
}
"""Capability which a caller needs, by the path of the method."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claims:
    """Capabilities of a caller, and the journals or shards for which it has them."""

    capability: Capability
    """Permitted operations; a plain `int` is converted."""
    selector: pb.LabelSelector = dataclasses.field(default_factory=pb.LabelSelector)
    """Permitted journals by their labels and `name`, or shards by their labels and `id`.

    The default matches all.
    """
    expires_at: int | None = None
    """Unix seconds; set by verification."""
    issued_at: int | None = None
    """Unix seconds; set by verification."""
    not_before: int | None = None
    """Unix seconds."""
    issuer: str = ""
    subject: str = ""
    audience: tuple[str, ...] = ()
    token_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capability", Capability(self.capability))

    def cache_key(self) -> tuple[Any, ...]:
        """Return a hashable value that is equal for claims which differ only in their times."""
        return (
            int(self.capability),
            self.selector.SerializeToString(deterministic=True),
            self.not_before,
            self.issuer,
            self.subject,
            self.audience,
            self.token_id,
        )


def check_capability(actual: int, require: int) -> None:
    """Check that a token permits what is required.

    Raises:
        AuthorizationError: A required capability is missing.
    """
    missing = require & ~actual
    if not missing:
        return
    for capability in Capability:
        if missing & capability:
            raise AuthorizationError(
                f"authorization is missing required {capability.name} capability"
            )
    raise AuthorizationError(
        f"authorization is missing required capability (have {actual:b}, but require {require:b})"
    )


def default_claims(request: object) -> Claims:
    """Return the claims which an RPC needs, by its first request.

    Raises:
        TypeError: The object isn't a request of the services of journals or of shards.
    """
    match request:
        case pb.ListRequest() | pc.ListRequest():
            return Claims(Capability.LIST, request.selector)
        case pb.ApplyRequest() | pc.ApplyRequest():
            return Claims(Capability.APPLY)
        case pb.ReadRequest() | pb.FragmentsRequest():
            return Claims(Capability.READ, _named(request.journal))
        case pb.AppendRequest():
            return Claims(Capability.APPEND, _named(request.journal))
        case pb.FragmentStoreHealthRequest():
            return Claims(Capability.READ)
        case pb.ReplicateRequest():
            return Claims(Capability.REPLICATE, _named(request.proposal.journal))
        case pc.StatRequest() | pc.GetHintsRequest():
            return Claims(Capability.READ, _identified(request.shard))
        case pc.UnassignRequest():
            return Claims(Capability.APPLY, _identified(*request.shards))
        case _:
            raise TypeError(f"not a request: {type(request).__name__}")


def _named(journal: str) -> pb.LabelSelector:
    label = pb.Label(name=META_NAME, value=strip_meta(journal))
    return pb.LabelSelector(include=pb.LabelSet(labels=[label]))


def _identified(*shards: str) -> pb.LabelSelector:
    labels = [pb.Label(name=META_ID, value=shard) for shard in sorted(set(shards))]
    return pb.LabelSelector(include=pb.LabelSet(labels=labels))


_current: ContextVar[Claims | None] = ContextVar("gazette_aio_claims", default=None)


@contextlib.contextmanager
def with_claims(claims: Claims | None) -> Generator[Claims | None]:
    """Use `claims` instead of the default for RPCs which begin within the context."""
    token = _current.set(claims)
    try:
        yield claims
    finally:
        _current.reset(token)


def current_claims() -> Claims | None:
    """Return the claims of the innermost `with_claims()`."""
    return _current.get()
