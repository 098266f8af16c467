"""Validation rules of shard specs, and of the requests and responses about shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol._generated import consumer_pb2 as pc
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.go.text import clean_path
from gazette_aio.protocol.journal import validate_journal, validate_token
from gazette_aio.protocol.labels import (
    validate_label_set,
    validate_single_value_labels,
    values_of,
)
from gazette_aio.protocol.selector import validate_label_selector
from gazette_aio.protocol.shard_spec import recovery_log
from gazette_aio.protocol.validation import specs
from gazette_aio.protocol.validation.recoverylog import validate_hints
from gazette_aio.protocol.validation.specs import enum_name
from gazette_aio.protocol.well_known import META_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from gazette_aio.protocol.validation.specs import CheckPart

MIN_SHARD_LENGTH: Final = 4
MAX_SHARD_LENGTH: Final = 512

MAX_OF_SHARD: Final = {
    # One transaction of Etcd, of 128 operations, reads the primary's hints and all backups.
    "hint_backups": ("HintBackups", 127),
    "hot_standbys": ("HotStandbys", 127),
    # Others allocate as many messages of about 100 bytes.
    "ring_buffer_size": ("RingBufferSize", 1 << 24),
    "read_channel_size": ("ReadChannelSize", 1 << 24),
}
"""Fields of a shard's spec that become loops or allocations: names in errors, greatest values."""

_CODES: Final = frozenset(pc.ReplicaStatus.Code.values())


def validate_shard_id(shard: str) -> None:
    """Check the ID of a shard.

    Raises:
        ValidationError: The ID isn't valid.
    """
    validate_token(shard, min_length=MIN_SHARD_LENGTH, max_length=MAX_SHARD_LENGTH)


def clamp_shard_spec(spec: pc.ShardSpec) -> None:
    """Reduce numbers of a spec that is already there to what a new one may have."""
    for field, (_, most) in MAX_OF_SHARD.items():
        if getattr(spec, field) > most:
            setattr(spec, field, most)


def validate_shard_spec(spec: pc.ShardSpec) -> None:
    """Check the spec of a shard.

    Raises:
        ValidationError: The spec isn't valid.
    """
    within("Id", validate_shard_id, spec.id)
    _validate_recovery(spec)
    for field, (name, most) in MAX_OF_SHARD.items():
        if (value := getattr(spec, field)) > most:
            raise ValidationError(f"invalid {name} ({value}; expected <= {most})")
    minimum = within("MinTxnDuration", specs.validate_duration, spec.min_txn_duration)
    if minimum < 0:
        raise ValidationError(f"invalid MinTxnDuration ({minimum}; expected >= 0)")
    maximum = within("MaxTxnDuration", specs.validate_duration, spec.max_txn_duration)
    if maximum <= 0:
        raise ValidationError(f"invalid MaxTxnDuration ({maximum}; expected > 0)")
    within("LabelSet", validate_label_set, spec.labels)
    within("LabelSet", validate_single_value_labels, spec.labels)
    if values_of(spec.labels, META_ID) is not None:
        raise ValidationError(f'Labels cannot include label "{META_ID}"')
    previous = ""
    for index, source in enumerate(spec.sources):
        within(f"Sources[{index}]", _validate_source, source)
        if index and source.journal <= previous:
            raise ValidationError(
                f"Sources.Journal not in unique, sorted order "
                f"(index {index}; {source.journal} <= {previous})"
            )
        previous = source.journal


def _validate_recovery(spec: pc.ShardSpec) -> None:
    if spec.recovery_log_prefix:
        within("RecoveryLogPrefix", validate_journal, recovery_log(spec))
        if not spec.hint_prefix.startswith("/") or clean_path(spec.hint_prefix) != spec.hint_prefix:
            raise ValidationError(
                f"HintPrefix is not an absolute, clean, non-directory path ({spec.hint_prefix})"
            )
    elif spec.hint_prefix:
        raise ValidationError(
            f"invalid non-empty HintPrefix with empty RecoveryLogPrefix ({spec.hint_prefix})"
        )
    if spec.hint_backups < 0:
        raise ValidationError(f"invalid HintBackups ({spec.hint_backups}; expected >= 0)")


def _validate_source(source: pc.ShardSpec.Source) -> None:
    within("Journal", validate_journal, source.journal)
    if source.min_offset < 0:
        # Wire: the text excludes 0, but 0 is allowed.
        raise ValidationError(f"invalid MinOffset ({source.min_offset}; expected > 0)")


def _validate_consumer_spec(spec: pc.ConsumerSpec) -> None:
    specs.validate_process_spec(spec.process_spec)


def _validate_replica_status(status: pc.ReplicaStatus) -> None:
    if status.code not in _CODES:
        raise ValidationError(f"invalid code ({status.code})", ("Code",))
    failed = pc.ReplicaStatus.FAILED
    if status.code == failed and not status.errors:
        raise ValidationError("expected non-empty Errors with Code FAILED")
    if status.code != failed and status.errors:
        raise ValidationError("expected Code FAILED with non-empty Errors")


def _validate_stat_request(request: pc.StatRequest) -> None:
    if request.HasField("header"):
        within("Header", specs.validate_header, request.header)
    within("Shard", validate_shard_id, request.shard)
    within("ReadThrough", specs.validate_offsets, request.read_through)


def _validate_list_request(request: pc.ListRequest) -> None:
    within("Selector", validate_label_selector, request.selector)


def _validate_apply_request(request: pc.ApplyRequest) -> None:
    for index, change in enumerate(request.changes):
        within(f"Changes[{index}]", _validate_apply_change, change)


def _validate_apply_change(change: pc.ApplyRequest.Change) -> None:
    specs.validate_change(change, validate_shard_spec, validate_shard_id)
    if change.HasField("primary_hints"):
        if change.delete:
            raise ValidationError("hints may be set only with an upsert, not a delete")
        within("PrimaryHints", validate_hints, change.primary_hints)


def _validate_get_hints_request(request: pc.GetHintsRequest) -> None:
    within("Shard", validate_shard_id, request.shard)


def _validate_unassign_request(request: pc.UnassignRequest) -> None:
    for index, shard in enumerate(request.shards):
        within(f"Shards[{index}]", validate_shard_id, shard)


def _validate_stat_response(response: pc.StatResponse, *, strict: bool) -> None:
    specs.validate_status_and_header(response, strict=strict)
    within("ReadThrough", specs.validate_offsets, response.read_through, strict=strict)
    within("PublishAt", specs.validate_offsets, response.publish_at, strict=strict)


def _validate_list_response(response: pc.ListResponse, *, strict: bool) -> None:
    specs.validate_status_and_header(response, strict=strict)
    for index, shard in enumerate(response.shards):
        within(f"Shards[{index}]", _validate_listed_shard, shard, strict=strict)


def _validate_listed_shard(shard: pc.ListResponse.Shard, *, strict: bool) -> None:
    if strict:
        within("Spec", validate_shard_spec, shard.spec)
    if shard.mod_revision <= 0:
        raise ValidationError(f"invalid ModRevision ({shard.mod_revision}; expected > 0)")
    within("Route", specs.validate_route, shard.route, strict=strict)
    members, statuses = len(shard.route.members), len(shard.status)
    if members != statuses:
        raise ValidationError(
            f"length of Route.Members and Status are not equal ({members} vs {statuses})"
        )
    if strict:
        for index, status in enumerate(shard.status):
            within(f"Status[{index}]", _validate_replica_status, status)


def _validate_get_hints_response(response: pc.GetHintsResponse, *, strict: bool) -> None:
    # Wire: the header isn't checked.
    if strict:
        specs.validate_status(response)
    within("primary hints", _validate_response_hints, response.primary_hints)
    for hints in response.backup_hints:
        within("backup hints", _validate_response_hints, hints)


def _validate_response_hints(response: pc.GetHintsResponse.ResponseHints) -> None:
    if response.HasField("hints"):
        validate_hints(response.hints)


def _validate_unassign_response(response: pc.UnassignResponse, *, strict: bool) -> None:
    if strict:
        specs.validate_status(response)
        if response.status != pc.Status.OK:
            raise ValidationError(f"bad status: {enum_name(pc.Status, response.status)}")


# Invariant: these tables name every message about shards except Checkpoint and its parts, which
# have no rules; a test walks the descriptor.
REQUESTS_AND_PARTS: Final[dict[type[Message], Callable[[Any], None]]] = {
    pc.ApplyRequest: _validate_apply_request,
    pc.ApplyRequest.Change: _validate_apply_change,
    pc.ConsumerSpec: _validate_consumer_spec,
    pc.GetHintsRequest: _validate_get_hints_request,
    pc.GetHintsResponse.ResponseHints: _validate_response_hints,
    pc.ListRequest: _validate_list_request,
    pc.ReplicaStatus: _validate_replica_status,
    pc.ShardSpec: validate_shard_spec,
    pc.ShardSpec.Source: _validate_source,
    pc.StatRequest: _validate_stat_request,
    pc.UnassignRequest: _validate_unassign_request,
}
RESPONSES: Final[dict[type[Message], CheckPart]] = {
    pc.ApplyResponse: specs.validate_status_and_header,
    pc.GetHintsResponse: _validate_get_hints_response,
    pc.ListResponse: _validate_list_response,
    pc.ListResponse.Shard: _validate_listed_shard,
    pc.StatResponse: _validate_stat_response,
    pc.UnassignResponse: _validate_unassign_response,
}
