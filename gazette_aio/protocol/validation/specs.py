"""Validation rules of specs, headers and routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.fragment import validate_codec
from gazette_aio.protocol.go.text import (
    HOUR,
    MAX_INT64,
    MINUTE,
    SECOND,
    duration_nanoseconds,
    format_duration,
)
from gazette_aio.protocol.journal import split_meta, validate_journal, validate_token
from gazette_aio.protocol.labels import (
    validate_label_set,
    validate_single_value_labels,
    values_of,
)
from gazette_aio.protocol.store import parse_fragment_store
from gazette_aio.protocol.well_known import (
    CONTENT_TYPE,
    MESSAGE_SUBTYPE,
    MESSAGE_TYPE,
    META_NAME,
    META_PREFIX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.duration_pb2 import Duration


class CheckPart(Protocol):
    """Check of a response, or of a part of one; see `validate()` for `strict`."""

    def __call__(self, message: Any, /, *, strict: bool) -> None:
        """Raise a ValidationError if the message isn't valid."""
        ...


MAX_REPLICATION: Final = 5
MIN_FRAGMENT_LENGTH: Final = 1 << 10
MAX_FRAGMENT_LENGTH: Final = 1 << 34
MIN_REFRESH_INTERVAL: Final = SECOND
MAX_REFRESH_INTERVAL: Final = 24 * HOUR
MIN_FLUSH_INTERVAL: Final = MINUTE
MAX_JOURNAL_LIMIT: Final = 1 << 17

_FLAGS: Final = frozenset(pb.JournalSpec.Flag.values())


def enum_name(enum: Any, number: int) -> str:
    """Return the name of an enum value, or an unknown value's number."""
    return str(enum.Name(number)) if number in enum.values() else str(number)


def validate_journal_spec(spec: pb.JournalSpec) -> None:
    """Check the spec of a journal.

    Raises:
        ValidationError: The spec isn't valid.
    """
    within("Name", validate_journal, spec.name)
    if meta := split_meta(spec.name)[1]:
        raise ValidationError(
            f"Name cannot have a metadata path segment ({meta}; expected no segment)"
        )
    if not 1 <= spec.replication <= MAX_REPLICATION:
        raise ValidationError(
            f"invalid Replication ({spec.replication}; "
            f"expected 1 <= Replication <= {MAX_REPLICATION})"
        )
    within("Labels", validate_label_set, spec.labels)
    for name in (META_NAME, META_PREFIX):
        if values_of(spec.labels, name) is not None:
            raise ValidationError(f'Labels cannot include label "{name}"')
    within("Labels", _validate_journal_labels, spec.labels)
    within("Fragment", validate_fragment_spec, spec.fragment)
    if spec.flags not in _FLAGS:
        raise ValidationError(f"invalid combination ({spec.flags})", ("Flags",))
    if spec.max_append_rate < 0:
        raise ValidationError(f"invalid MaxAppendRate ({spec.max_append_rate}; expected >= 0)")
    within("Suspend", validate_suspend, spec.suspend)


def _validate_journal_labels(labels: pb.LabelSet) -> None:
    validate_single_value_labels(labels)
    content_type = values_of(labels, CONTENT_TYPE)
    if content_type is not None:
        try:
            _validate_media_type(content_type[0])
        except ValidationError as error:
            raise ValidationError(f"parsing {CONTENT_TYPE}: {error}") from None
    if values_of(labels, MESSAGE_TYPE) is not None:
        if content_type is None:
            raise ValidationError(f"expected {CONTENT_TYPE} label alongside {MESSAGE_TYPE}")
    elif values_of(labels, MESSAGE_SUBTYPE) is not None:
        raise ValidationError(f"expected {MESSAGE_TYPE} label alongside {MESSAGE_SUBTYPE}")


def _validate_media_type(text: str) -> None:
    """Check a media type. Label values have no semicolons, thus no parameters."""
    head, slash, subtype = text.partition("/")
    token = _media_token(head)
    if not token:
        raise ValidationError("mime: no media type")
    if token != head:
        raise ValidationError("mime: expected slash after first token")
    if slash:
        token = _media_token(subtype)
        if not token:
            raise ValidationError("mime: expected token after slash")
        if token != subtype:
            raise ValidationError("mime: unexpected content after media subtype")


def _media_token(text: str) -> str:
    for at, char in enumerate(text):
        if not "!" <= char <= "~" or char in '()<>@,;:\\"/[]?=':
            return text[:at]
    return text


def validate_fragment_spec(spec: pb.JournalSpec.Fragment) -> None:
    """Check the fragment part of a journal spec.

    Raises:
        ValidationError: The spec isn't valid.
    """
    if not MIN_FRAGMENT_LENGTH <= spec.length <= MAX_FRAGMENT_LENGTH:
        raise ValidationError(
            f"invalid Length ({spec.length}; "
            f"expected {MIN_FRAGMENT_LENGTH} <= length <= {MAX_FRAGMENT_LENGTH})"
        )
    within("CompressionCodec", validate_codec, spec.compression_codec)
    for index, store in enumerate(spec.stores):
        url = within(f"Stores[{index}]", parse_fragment_store, store)
        if (
            index == 0
            and url.scheme == "file"
            and spec.compression_codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        ):
            raise ValidationError(
                f"GZIP_OFFLOAD_DECOMPRESSION is incompatible with file:// stores ({store})"
            )
    refresh = within("RefreshInterval", validate_duration, spec.refresh_interval)
    if not MIN_REFRESH_INTERVAL <= refresh <= MAX_REFRESH_INTERVAL:
        raise ValidationError(
            f"invalid RefreshInterval ({format_duration(refresh)}; "
            f"expected {format_duration(MIN_REFRESH_INTERVAL)} <= interval "
            f"<= {format_duration(MAX_REFRESH_INTERVAL)})"
        )
    within("Retention", validate_duration, spec.retention)
    flush = within("FlushInterval", validate_duration, spec.flush_interval)
    if flush and flush < MIN_FLUSH_INTERVAL:
        raise ValidationError(
            f"invalid FlushInterval ({format_duration(flush)}; "
            f"expected >= {format_duration(MIN_FLUSH_INTERVAL)})"
        )
    within("PathPostfixTemplate", _validate_template, spec.path_postfix_template)


def _validate_template(template: str) -> None:
    """Check that the last action is closed. The rest is the brokers', whose languages differ."""
    _, opening, action = template.rpartition("{{")
    if opening and "}}" not in action:
        raise ValidationError(f"unclosed {opening + action[:100]!r}")


def validate_duration(duration: Duration) -> int:
    """Check that a duration can be represented by all peers, and return its nanoseconds.

    Others can't parse a message with such a duration, nor any list that includes the message.

    Raises:
        ValidationError: The parts don't belong together, or the nanoseconds don't fit 64 bits.
    """
    nanoseconds = duration_nanoseconds(duration)
    seconds, nanos = duration.seconds, duration.nanos
    if (
        abs(nanos) >= SECOND
        or (seconds < 0 < nanos or nanos < 0 < seconds)
        or not -MAX_INT64 <= nanoseconds <= MAX_INT64
    ):
        raise ValidationError(f"invalid duration (seconds {seconds}, nanos {nanos})")
    return nanoseconds


def validate_suspend(suspend: pb.JournalSpec.Suspend) -> None:
    """Check the suspension of a journal.

    Raises:
        ValidationError: The suspension isn't valid.
    """
    level = pb.JournalSpec.Suspend.Level
    if suspend.level not in level.values():
        raise ValidationError(
            f"invalid Level variant ({enum_name(level, suspend.level)})", ("Level",)
        )
    if suspend.offset < 0:
        raise ValidationError(f"invalid Offset ({suspend.offset}; expected >= 0)", ("Offset",))


def validate_process_id(process_id: pb.ProcessSpec.ID) -> None:
    """Check the identity of a process.

    Raises:
        ValidationError: The identity isn't valid.
    """
    within("Zone", validate_token, process_id.zone, min_length=1, max_length=32)
    within("Suffix", validate_token, process_id.suffix, min_length=4, max_length=128)


def validate_process_spec(spec: pb.ProcessSpec) -> None:
    """Check the identity and the endpoint of a process.

    Raises:
        ValidationError: The identity or the endpoint isn't valid.
    """
    within("Id", validate_process_id, spec.id)
    within("Endpoint", parse_endpoint, spec.endpoint)


def validate_broker_spec(spec: pb.BrokerSpec) -> None:
    """Check the spec of a broker.

    Raises:
        ValidationError: The spec isn't valid.
    """
    validate_process_spec(spec.process_spec)
    if spec.journal_limit > MAX_JOURNAL_LIMIT:
        raise ValidationError(
            f"invalid JournalLimit ({spec.journal_limit}; "
            f"expected 0 <= JournalLimit <= {MAX_JOURNAL_LIMIT})"
        )


def process_id_key(process_id: pb.ProcessSpec.ID) -> tuple[str, str]:
    """Return the sort key of a member of a route."""
    return process_id.zone, process_id.suffix


def route_equivalent(lhs: pb.Route, rhs: pb.Route) -> bool:
    """Tell whether two routes have equal primaries and members; endpoints may differ."""
    return lhs.primary == rhs.primary and list(lhs.members) == list(rhs.members)


def validate_route(route: pb.Route, *, strict: bool = True) -> None:
    """Check a route.

    Args:
        route: The route.
        strict: Whether to check names, order and endpoints. Otherwise only the primary and the
            number of endpoints are checked.

    Raises:
        ValidationError: The route isn't valid.
    """
    members = route.members
    if strict:
        previous: pb.ProcessSpec.ID | None = None
        for index, member in enumerate(members):
            within(f"Members[{index}]", validate_process_id, member)
            if previous is not None and process_id_key(previous) >= process_id_key(member):
                raise ValidationError(
                    f"Members not in unique, sorted order (index {index}; "
                    f"{_process_id_text(previous)} <= {_process_id_text(member)})"
                )
            previous = member
    if not -1 <= route.primary < len(members):
        raise ValidationError(
            f"invalid Primary ({route.primary}; expected -1 <= Primary < {len(members)})"
        )
    if len(route.endpoints) not in (0, len(members)):
        raise ValidationError(
            f"len(Endpoints) != 0, and != len(Members) ({len(route.endpoints)} vs {len(members)})"
        )
    if strict:
        for index, endpoint in enumerate(route.endpoints):
            if endpoint:
                within(f"Endpoints[{index}]", parse_endpoint, endpoint)


def _process_id_text(process_id: pb.ProcessSpec.ID) -> str:
    return f"{{Zone:{process_id.zone} Suffix:{process_id.suffix}}}"


def validate_change(
    change: Any, check_spec: Callable[[Any], None], check_name: Callable[[str], None]
) -> None:
    """Check a change of a journal or a shard, by the checks of its spec and of its name.

    Raises:
        ValidationError: The change isn't valid.
    """
    revision = change.expect_mod_revision
    if change.HasField("upsert"):
        if change.delete:
            raise ValidationError("both Upsert and Delete are set (expected exactly one)")
        within("Upsert", check_spec, change.upsert)
        if revision < -1:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected >= 0 or -1)")
    elif change.delete:
        within("Delete", check_name, change.delete)
        if revision < -1 or revision == 0:
            raise ValidationError(f"invalid ExpectModRevision ({revision}; expected > 0 or -1)")
    else:
        raise ValidationError("neither Upsert nor Delete are set (expected exactly one)")


def validate_status(response: Any) -> None:
    """Check that the status of a response is known.

    Raises:
        ValidationError: The status is unknown.
    """
    known = response.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    if response.status not in known:
        raise ValidationError(f"invalid status ({response.status})", ("Status",))


def validate_status_and_header(response: Any, *, strict: bool) -> None:
    """Check the status of a response if `strict`, and its header.

    Raises:
        ValidationError: The status or the header isn't valid.
    """
    if strict:
        validate_status(response)
    within("Header", validate_header, response.header, strict=strict)


def validate_header(header: pb.Header, *, strict: bool = True) -> None:
    """Check a header.

    Args:
        header: The header.
        strict: Whether to check names and the Etcd state too.

    Raises:
        ValidationError: The header isn't valid.
    """
    if strict and (header.process_id.zone or header.process_id.suffix):
        within("ProcessId", validate_process_id, header.process_id)
    within("Route", validate_route, header.route, strict=strict)
    if strict:
        within("Etcd", validate_etcd, header.etcd)


def validate_etcd(etcd: pb.Header.Etcd) -> None:
    """Check the Etcd state of a header.

    Raises:
        ValidationError: The state isn't valid.
    """
    if not etcd.cluster_id:
        raise ValidationError("invalid ClusterId (expected != 0)")
    if not etcd.member_id:
        raise ValidationError("invalid MemberId (expected != 0)")
    if etcd.revision <= 0:
        raise ValidationError(f"invalid Revision ({etcd.revision}; expected 0 < revision)")
    if not etcd.raft_term:
        raise ValidationError("invalid RaftTerm (expected != 0)")


def validate_offsets(offsets: Mapping[str, int], *, strict: bool = True) -> None:
    """Check offsets by journal.

    Args:
        offsets: Offsets by journal.
        strict: Whether to check the names of the journals too.

    Raises:
        ValidationError: A journal or an offset isn't valid.
    """
    for journal, offset in offsets.items():
        context = f"Offsets[{journal}]"
        if strict:
            within(context, validate_journal, journal)
        if offset < 0:
            raise ValidationError(f"invalid offset ({offset}; expected >= 0)", (context,))
