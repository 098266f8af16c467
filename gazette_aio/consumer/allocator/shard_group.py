"""Groups of consumers: what their keys and values mean, and when a replica of a shard is ready."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from gazette_aio.consumer.allocator.model import Assignment, Item, Member, MemberID
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.consumer.keyspace.keys import AssignmentKey, GroupKeys, ItemKey, MemberKey
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
    from collections.abc import Callable, Sequence

    from gazette_aio.consumer.allocator.observed import GroupEntry
    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import KeyValueStore

M = TypeVar("M", ConsumerSpec, ShardSpec, ReplicaStatus)


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

    `decoded` of the result is the ConsumerSpec, ShardSpec or ReplicaStatus. The decoder raises
    ValidationError for any other key, and for a value that is invalid or contradicts its key.
    """

    def decode(raw: KeyValue) -> GroupEntry:
        match keys.parse(raw.key):
            case MemberKey(zone, suffix):
                return _member(raw, MemberID(zone, suffix))
            case ItemKey(shard):
                return _shard(raw, shard, max_hot_standbys)
            case AssignmentKey(shard, zone, suffix, slot):
                _check_member(zone, suffix)
                return Assignment(
                    shard,
                    MemberID(zone, suffix),
                    slot,
                    raw.key,
                    raw.value,
                    _decoded(ReplicaStatus, raw),
                    raw.create_revision,
                    raw.mod_revision,
                    raw.lease,
                )

    return decode


def shard_is_consistent(assignment: Assignment, assignments: Sequence[Assignment]) -> bool:
    """Return whether a replica has caught up, so that other replicas of its shard may go.

    A failed replica counts as caught up only if the primary has failed as well, so that members
    can exit.
    """
    code = _code(assignment)
    if code == ReplicaStatus.FAILED:
        return any(each.slot == 0 and _code(each) == code for each in assignments)
    return code >= ReplicaStatus.STANDBY


def _code(assignment: Assignment) -> int:
    status = assignment.decoded
    return status.code if isinstance(status, ReplicaStatus) else ReplicaStatus.IDLE


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
    return Member(
        member,
        spec.shard_limit,
        spec.exiting,
        raw.key,
        raw.create_revision,
        raw.mod_revision,
        raw.lease,
        spec,
    )


def _shard(raw: KeyValue, shard: str, max_hot_standbys: int | None) -> Item:
    spec = _decoded(ShardSpec, raw, clamp_shard_spec)
    if spec.id != shard:
        raise ValidationError(f"ShardSpec ID doesn't match Item ID ({spec.id} vs {shard})")
    replication = desired_replication(spec, max_hot_standbys)
    return Item(shard, replication, raw.key, raw.create_revision, raw.mod_revision, spec)


def _decoded(message: type[M], raw: KeyValue, amend: Callable[[M], None] | None = None) -> M:
    try:
        decoded = message.FromString(raw.value)
    except DecodeError as error:
        raise ValidationError(f"value isn't a {message.__name__}: {error}") from None
    if amend is not None:
        amend(decoded)
    validate(decoded)
    return decoded
