"""Groups of consumers: what their keys and values mean."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from gazette_aio.consumer.allocator.model import Assignment, Item, Member, MemberID
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.protocol import ProcessSpec
from gazette_aio.protocol.consumer import (
    ConsumerSpec,
    ReplicaStatus,
    ShardSpec,
    desired_replication,
)
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.validation.consumer import clamp_shard_spec
from gazette_aio.protocol.validation.rules import validate
from gazette_aio.protocol.validation.specs import validate_process_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import KeyValueStore

M = TypeVar("M", ConsumerSpec, ShardSpec, ReplicaStatus)

_SLOT: Final = re.compile("[0-9]{1,9}")
"""Slots up to MAX_SLOT."""


def new_key_space(
    store: KeyValueStore,
    keys: GroupKeys,
    *,
    apply_delay_seconds: float = 0.03,
    max_hot_standbys: int | None = None,
) -> KeySpace[GroupEntry]:
    """Return the key space of a group of consumers, which isn't loaded yet.

    Args:
        store: Store of the group.
        keys: Keys of the group.
        apply_delay_seconds: Time for which changes are gathered before they are applied.
        max_hot_standbys: Most hot standbys of a shard, whatever its spec says; None for no limit.
    """
    return KeySpace(
        store,
        keys.prefix,
        group_decoder(keys, max_hot_standbys),
        apply_delay_seconds=apply_delay_seconds,
    )


def group_decoder(
    keys: GroupKeys, max_hot_standbys: int | None = None
) -> Callable[[KeyValue], GroupEntry]:
    """Return what decodes a key of the group as a member, a shard or an assignment.

    The decoder raises ValidationError for any other key, and for a value that is invalid or
    contradicts its key.
    """

    def decode(raw: KeyValue) -> GroupEntry:
        match keys.split(raw.key):
            case ["members", zone, suffix]:
                return _member(raw, MemberID(zone, suffix))
            case ["items", shard]:
                return _shard(raw, shard, max_hot_standbys)
            case ["assign", shard, zone, suffix, slot] if _SLOT.fullmatch(slot):
                _check_member(zone, suffix)
                status = _decoded(ReplicaStatus, raw)
                return Assignment(raw, status, shard, MemberID(zone, suffix), int(slot))
            case ["members", *_]:
                raise ValidationError("expected (zone, suffix) in member key")
            case ["items", *_]:
                raise ValidationError("expected (id) in item key")
            case _:
                raise ValidationError(
                    "expected (item-id, member-zone, member-suffix, slot) in assignment key"
                )

    return decode


@functools.lru_cache(maxsize=1024)
def _check_member(zone: str, suffix: str) -> None:
    # Clients refuse a listing with such a member.
    validate_process_id(ProcessSpec.ID(zone=zone, suffix=suffix))


def _member(raw: KeyValue, member: MemberID) -> Member:
    spec = _decoded(ConsumerSpec, raw)
    named = spec.process_spec.id
    if named.zone != member.zone:
        raise ValidationError(
            f"ConsumerSpec Zone doesn't match Member Zone ({named.zone} vs {member.zone})"
        )
    if named.suffix != member.suffix:
        raise ValidationError(
            f"ConsumerSpec Suffix doesn't match Member Suffix ({named.suffix} vs {member.suffix})"
        )
    return Member(raw, spec, member)


def _shard(raw: KeyValue, shard: str, max_hot_standbys: int | None) -> Item:
    spec = _decoded(ShardSpec, raw, clamp_shard_spec)
    if spec.id != shard:
        raise ValidationError(f"ShardSpec ID doesn't match Item ID ({spec.id} vs {shard})")
    return Item(raw, spec, shard, desired_replication(spec, max_hot_standbys))


def _decoded(message: type[M], raw: KeyValue, amend: Callable[[M], None] | None = None) -> M:
    try:
        decoded = message.FromString(raw.value)
    except DecodeError as error:
        raise ValidationError(f"value isn't a {message.__name__}: {error}") from None
    if amend is not None:
        amend(decoded)
    validate(decoded)
    return decoded
