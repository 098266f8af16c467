"""Validation rules of requests and responses.

Requests are checked in full before they are sent. Responses can be checked for structure only
(`strict=False`), so that one name that breaks a rule of the client's release doesn't spoil a whole
listing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol._generated import recoverylog_pb2 as recoverylog_pb
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.fragment import validate_fragment
from gazette_aio.protocol.go.text import MAX_INT64, format_duration
from gazette_aio.protocol.journal import (
    MAX_JOURNAL_LENGTH,
    validate_journal,
    validate_path_component,
)
from gazette_aio.protocol.labels import validate_label, validate_label_set, values_of
from gazette_aio.protocol.selector import validate_label_selector
from gazette_aio.protocol.store import parse_fragment_store
from gazette_aio.protocol.url import parse_url, redacted
from gazette_aio.protocol.validation import consumer, recoverylog, specs
from gazette_aio.protocol.validation.specs import enum_name
from gazette_aio.protocol.well_known import META_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from gazette_aio.protocol.validation.specs import CheckPart

_SUSPENDS: Final = frozenset(pb.AppendRequest.Suspend.values())
# Wire: the order decides which field an error names.
_OF_FIRST_MESSAGE: Final = {
    "header": "Header",
    "do_not_proxy": "DoNotProxy",
    "offset": "Offset",
    "check_registers": "CheckRegisters",
    "union_registers": "UnionRegisters",
    "subtract_registers": "SubtractRegisters",
}
"""Fields that no further message of an append may have."""
MAX_PAGE_LIMIT: Final = 10_000
"""Greatest page limit of a listing of fragments."""


def validate(message: Message, *, strict: bool = True, expect_header: bool = False) -> None:
    """Check a message of the protocols of brokers and shards, or hints of a recovery log.

    Args:
        message: The message.
        strict: Whether to check all rules of responses, or only their structure: offsets, and which
            fields go together. Without `strict`, statuses, codecs, names, zones, endpoints and
            labels may be unknown to this release. Requests are always checked in full.
        expect_header: Whether a response must have a header, as the first response of an RPC has.

    Raises:
        ValidationError: The message isn't valid.
        TypeError: There are no rules for this type of message.
    """
    kind = type(message)
    if (check := _REQUESTS_AND_PARTS.get(kind)) is not None:
        check(message)
    elif (check_response := _RESPONSES.get(kind)) is not None:
        check_response(message, strict=strict)
        # Wire: peers send the header of most responses always, even an empty header.
        if expect_header and not message.header.etcd.revision:  # type: ignore[attr-defined]
            raise ValidationError("expected Header")
    else:
        raise TypeError(f"no rules for messages of type {kind.__name__}")


def _text(message: Message) -> str:
    from google.protobuf import text_format  # noqa: PLC0415

    return text_format.MessageToString(message, as_one_line=True)


def _validate_read_request(request: pb.ReadRequest) -> None:
    if request.HasField("header"):
        within("Header", specs.validate_header, request.header)
    within("Journal", validate_journal, request.journal)
    offset, end_offset = request.offset, request.end_offset
    if offset < -1:
        raise ValidationError(f"invalid Offset ({offset}; expected -1 <= Offset <= MaxInt64)")
    if end_offset < 0 or (end_offset and end_offset < offset):
        raise ValidationError(
            f"invalid EndOffset ({end_offset}; expected 0 or Offset <= EndOffset)"
        )


def _validate_append_request(request: pb.AppendRequest) -> None:
    if not request.journal:
        _validate_append_chunk(request)
        return
    if request.HasField("header"):
        within("Header", specs.validate_header, request.header)
    within("Journal", validate_journal, request.journal)
    if request.offset < 0:
        raise ValidationError(f"invalid Offset ({request.offset}; expected >= 0)")
    if request.content:
        raise ValidationError("unexpected Content")
    if request.HasField("check_registers"):
        within("CheckRegisters", validate_label_selector, request.check_registers)
    if request.HasField("union_registers"):
        within("UnionRegisters", validate_label_set, request.union_registers)
    if request.HasField("subtract_registers"):
        within("SubtractRegisters", validate_label_set, request.subtract_registers)
    if request.suspend not in _SUSPENDS:
        raise ValidationError(f"invalid Suspend variant ({request.suspend})", ("Suspend",))


def _validate_append_chunk(request: pb.AppendRequest) -> None:
    present = {field.name for field, _ in request.ListFields()}
    for name, shown in _OF_FIRST_MESSAGE.items():
        if name in present:
            raise ValidationError(f"unexpected {shown}")
    if request.suspend:
        suspend = enum_name(pb.AppendRequest.Suspend, request.suspend)
        raise ValidationError(f"unexpected Suspend ({suspend}; expected SUSPEND_RESUMED)")


def _validate_replicate_request(request: pb.ReplicateRequest) -> None:
    if request.HasField("proposal"):
        _validate_proposal(request)
        return
    if not request.content:
        raise ValidationError("expected Content or Proposal")
    if request.content_delta < 0:
        raise ValidationError(f"invalid ContentDelta ({request.content_delta}; expected >= 0)")
    if request.HasField("header"):
        raise ValidationError(f"unexpected Header with Content ({_text(request.header)})")
    if request.HasField("registers"):
        raise ValidationError(f"unexpected Registers with Content ({_text(request.registers)})")
    if request.acknowledge:
        raise ValidationError("unexpected Acknowledge with Content")
    if request.deprecated_journal:
        raise ValidationError("unexpected DeprecatedJournal with Content")


def _validate_proposal(request: pb.ReplicateRequest) -> None:
    if request.HasField("header"):
        within("Header", specs.validate_header, request.header)
        if not request.acknowledge:
            raise ValidationError("expected Acknowledge with Header")
    within("Proposal", validate_fragment, request.proposal)
    within("Registers", validate_label_set, request.registers)
    if request.content:
        raise ValidationError(f"unexpected Content with Proposal (len {len(request.content)})")
    if request.content_delta:
        raise ValidationError(f"unexpected ContentDelta with Proposal ({request.content_delta})")
    if request.deprecated_journal not in ("", request.proposal.journal):
        raise ValidationError(
            "DeprecatedJournal and Proposal.Journal mismatch "
            f"({request.deprecated_journal} vs {request.proposal.journal})"
        )


def _validate_list_request(request: pb.ListRequest) -> None:
    selector = request.selector
    within("Selector", validate_label_selector, selector)
    for part, labels in (("Include", selector.include), ("Exclude", selector.exclude)):
        for value in values_of(labels, META_PREFIX) or ():
            if not value.endswith("/"):
                raise ValidationError(
                    f"expected trailing '/' ({value})",
                    ("Selector", part, f'Labels["{META_PREFIX}"]'),
                )


def _validate_apply_request(request: pb.ApplyRequest) -> None:
    for index, change in enumerate(request.changes):
        within(f"Changes[{index}]", _validate_apply_change, change)


def _validate_apply_change(change: pb.ApplyRequest.Change) -> None:
    specs.validate_change(change, specs.validate_journal_spec, validate_journal)


def _validate_fragments_request(request: pb.FragmentsRequest) -> None:
    if request.HasField("header"):
        within("Header", specs.validate_header, request.header)
    within("Journal", validate_journal, request.journal)
    begin, end = request.begin_mod_time, request.end_mod_time
    if end and end < begin:
        raise ValidationError(f"invalid EndModTime ({end} must be after {begin})")
    if request.next_page_token < 0:
        raise ValidationError(f"invalid NextPageToken ({request.next_page_token}; must be >= 0)")
    if not 0 <= request.page_limit <= MAX_PAGE_LIMIT:
        raise ValidationError(
            f"invalid PageLimit ({request.page_limit}; must be >= 0 and <= {MAX_PAGE_LIMIT})"
        )
    if request.HasField("signatureTTL"):
        lifetime = within("SignatureTTL", specs.validate_duration, request.signatureTTL)
        if lifetime <= 0:
            raise ValidationError(
                f"invalid SignatureTTL ({format_duration(lifetime)}; must be > 0s)"
            )


def _validate_health_request(request: pb.FragmentStoreHealthRequest) -> None:
    within("FragmentStore", parse_fragment_store, request.fragment_store)
    if request.check_delete_prefix:
        within("CheckDeletePrefix", _validate_delete_prefix, request)


def _validate_delete_prefix(request: pb.FragmentStoreHealthRequest) -> None:
    prefix = request.check_delete_prefix
    if not request.check_delete:
        raise ValidationError("cannot be set when CheckDelete is false")
    if not prefix.endswith("/"):
        raise ValidationError(f"must end in '/' ({prefix})")
    trimmed = prefix[:-1]
    if trimmed == ".." or trimmed.startswith("../"):
        raise ValidationError(f"cannot traverse outside the store ({prefix})")
    validate_path_component(trimmed, min_length=1, max_length=MAX_JOURNAL_LENGTH)


def _validate_some_fragment(fragment: pb.Fragment, *, strict: bool) -> None:
    if strict:
        validate_fragment(fragment)
    elif fragment.begin > fragment.end:
        raise ValidationError(f"expected Begin <= End (have {fragment.begin}, {fragment.end})")


def _validate_read_response(response: pb.ReadResponse, *, strict: bool) -> None:
    if response.content:
        _validate_read_content(response)
        return
    if strict:
        specs.validate_status(response)
    if response.HasField("header"):
        within("Header", specs.validate_header, response.header, strict=strict)
    if response.write_head < 0:
        raise ValidationError(f"invalid WriteHead ({response.write_head}; expected >= 0)")
    if response.HasField("fragment"):
        fragment = response.fragment
        within("Fragment", _validate_some_fragment, fragment, strict=strict)
        if not fragment.begin <= response.offset < fragment.end:
            raise ValidationError(
                f"invalid Offset ({response.offset}; "
                f"expected {fragment.begin} <= offset < {fragment.end})"
            )
        if response.write_head < fragment.end:
            raise ValidationError(
                f"invalid WriteHead ({response.write_head}; expected >= {fragment.end})"
            )
        if response.fragment_url:
            within("FragmentUrl", parse_url, response.fragment_url)
        return
    if response.status == pb.Status.OK and response.offset:
        raise ValidationError(f"unexpected Offset without Fragment or Content ({response.offset})")
    if response.fragment_url:
        url = redacted(response.fragment_url)
        raise ValidationError(f"unexpected FragmentUrl without Fragment ({url})")


def _validate_read_content(response: pb.ReadResponse) -> None:
    if response.offset > MAX_INT64 - len(response.content):
        raise ValidationError(f"invalid Offset of Content ({response.offset})")
    if response.status != pb.Status.OK:
        specs.validate_status(response)
        raise ValidationError(
            f"unexpected Status with Content ({enum_name(pb.Status, response.status)})"
        )
    if response.HasField("header"):
        raise ValidationError(f"unexpected Header with Content ({_text(response.header)})")
    if response.write_head:
        raise ValidationError(f"unexpected WriteHead with Content ({response.write_head})")
    if response.HasField("fragment"):
        raise ValidationError(f"unexpected Fragment with Content ({_text(response.fragment)})")
    if response.fragment_url:
        url = redacted(response.fragment_url)
        raise ValidationError(f"unexpected FragmentUrl with Content ({url})")


def _validate_append_response(response: pb.AppendResponse, *, strict: bool) -> None:
    specs.validate_status_and_header(response, strict=strict)
    has_commit, has_registers = response.HasField("commit"), response.HasField("registers")
    if response.status == pb.Status.OK and not has_commit:
        raise ValidationError("expected Commit")
    if not has_registers and response.status in (pb.Status.OK, pb.Status.REGISTER_MISMATCH):
        raise ValidationError("expected Registers")
    if has_commit:
        within("Commit", _validate_some_fragment, response.commit, strict=strict)
    if has_registers and strict:
        within("Registers", validate_label_set, response.registers)


def _validate_replicate_response(response: pb.ReplicateResponse, *, strict: bool) -> None:
    if strict:
        specs.validate_status(response)
    if response.status == pb.Status.WRONG_ROUTE:
        if not response.HasField("header"):
            raise ValidationError("expected Header")
        within("Header", specs.validate_header, response.header, strict=strict)
    elif response.HasField("header"):
        raise ValidationError(f"unexpected Header ({_text(response.header)})")
    if response.status == pb.Status.PROPOSAL_MISMATCH:
        if not response.HasField("fragment"):
            raise ValidationError("expected Fragment")
        within("Fragment", _validate_some_fragment, response.fragment, strict=strict)
        if not response.HasField("registers"):
            raise ValidationError("expected Registers")
        if strict:
            within("Registers", validate_label_set, response.registers)
    elif response.HasField("fragment"):
        raise ValidationError(f"unexpected Fragment ({_text(response.fragment)})")
    elif response.HasField("registers"):
        raise ValidationError(f"unexpected Registers ({_text(response.registers)})")


def _validate_listing(response: Any, *, strict: bool, field: str, check: CheckPart) -> None:
    """Check a response, and each part of a repeated field."""
    specs.validate_status_and_header(response, strict=strict)
    for index, part in enumerate(getattr(response, field)):
        within(f"{field.capitalize()}[{index}]", check, part, strict=strict)


def _validate_listed_journal(journal: pb.ListResponse.Journal, *, strict: bool) -> None:
    if strict:
        within("Spec", specs.validate_journal_spec, journal.spec)
    if journal.mod_revision <= 0:
        raise ValidationError(f"invalid ModRevision ({journal.mod_revision}; expected > 0)")
    within("Route", specs.validate_route, journal.route, strict=strict)


def _validate_listed_fragment(listed: pb.FragmentsResponse._Fragment, *, strict: bool) -> None:
    within("Spec", _validate_some_fragment, listed.spec, strict=strict)
    if listed.signed_url:
        within("SignedUrl", parse_url, listed.signed_url)


# Invariant: these tables name every message of the broker protocol except SHA1Sum, which has no
# rules; a test walks the descriptor.
_REQUESTS_AND_PARTS: Final[dict[type[Message], Callable[[Any], None]]] = {
    **consumer.REQUESTS_AND_PARTS,
    pb.AppendRequest: _validate_append_request,
    pb.ApplyRequest: _validate_apply_request,
    pb.ApplyRequest.Change: _validate_apply_change,
    pb.BrokerSpec: specs.validate_broker_spec,
    pb.Fragment: validate_fragment,
    pb.FragmentStoreHealthRequest: _validate_health_request,
    pb.FragmentsRequest: _validate_fragments_request,
    pb.Header: specs.validate_header,
    pb.Header.Etcd: specs.validate_etcd,
    pb.JournalSpec: specs.validate_journal_spec,
    pb.JournalSpec.Fragment: specs.validate_fragment_spec,
    pb.JournalSpec.Suspend: specs.validate_suspend,
    recoverylog_pb.FSMHints: recoverylog.validate_hints,
    recoverylog_pb.Segment: recoverylog.validate_segment,
    pb.Label: validate_label,
    pb.LabelSelector: validate_label_selector,
    pb.LabelSet: validate_label_set,
    pb.ListRequest: _validate_list_request,
    pb.ProcessSpec: specs.validate_process_spec,
    pb.ProcessSpec.ID: specs.validate_process_id,
    pb.ReadRequest: _validate_read_request,
    pb.ReplicateRequest: _validate_replicate_request,
    pb.Route: specs.validate_route,
}
_RESPONSES: Final[dict[type[Message], CheckPart]] = {
    **consumer.RESPONSES,
    pb.AppendResponse: _validate_append_response,
    pb.ApplyResponse: specs.validate_status_and_header,
    pb.FragmentStoreHealthResponse: specs.validate_status_and_header,
    pb.FragmentsResponse: partial(
        _validate_listing, field="fragments", check=_validate_listed_fragment
    ),
    pb.FragmentsResponse._Fragment: _validate_listed_fragment,
    pb.ListResponse: partial(_validate_listing, field="journals", check=_validate_listed_journal),
    pb.ListResponse.Journal: _validate_listed_journal,
    pb.ReadResponse: _validate_read_response,
    pb.ReplicateResponse: _validate_replicate_response,
}
