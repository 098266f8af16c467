"""Hints of a recovery log: their form as JSON, and the segments that they name.

Hints are stored in Etcd as JSON that is neither protobuf's JSON form nor its text: names are those
of the fields, all integers are numbers, empty scalars are left out, and lists never are.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import DecodeError, Message

from gazette_aio.consumer.recoverylog.segments import Segment, SegmentSet, gap_between, join
from gazette_aio.protocol.errors import RecoveryError, ValidationError
from gazette_aio.protocol.recoverylog import FSMHints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor

# The encoder of other implementations escapes these.
_ESCAPES: Final = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_hints(hints: FSMHints) -> bytes:
    """Return hints in the form in which Etcd stores them."""
    members = ",".join(f'"{name}":{text}' for name, text in _members(hints))
    return f"{{{members}}}".translate(_ESCAPES).encode()


def decode_hints(data: bytes) -> FSMHints:
    """Decode hints as Etcd stores them: JSON, or protobuf as of early releases.

    Raises:
        ValidationError: They are neither.
    """
    if not data:
        raise ValidationError("hints are empty")
    try:
        if data[:1] != b"{":
            return FSMHints.FromString(data)
        hints = FSMHints()
        _from_json(json.loads(data), hints)
    except (DecodeError, ValueError, TypeError, RecursionError) as error:
        raise ValidationError(f"decoding hints: {error}") from error
    return hints


def live_log_segments(hints: FSMHints) -> tuple[list[int], SegmentSet]:
    """Return the live fnodes of hints, and the segments of their operations.

    Raises:
        ValidationError: A segment is invalid.
        RecoveryError: Fnodes are out of order, or the segments can't be of one history.
    """
    fnodes: list[int] = []
    segments = SegmentSet()
    for node in hints.live_nodes:
        if not node.segments or node.segments[0].first_seq_no != node.fnode:
            found = [segment.first_seq_no for segment in node.segments]
            raise RecoveryError(
                f"expected Fnode to match Segment FirstSeqNo: {node.fnode} vs {found}"
            )
        if fnodes and node.fnode <= fnodes[-1]:
            raise RecoveryError(f"expected monotonic Fnode ordering: {fnodes[-1]} vs {node.fnode}")
        fnodes.append(node.fnode)
        for segment in node.segments:
            segments.add(Segment.from_proto(segment, hints.log))
    logs = [segment.log for segment in segments]
    if logs and logs[-1] != hints.log:
        raise RecoveryError(
            f"expected hints.Log {hints.log} to equal the last Segment Log {logs[-1]}"
        )
    return fnodes, segments


def shrink_hints(hints: FSMHints, budget_bytes: int) -> int:
    """Join segments of hints across their smallest gaps, until Etcd's form is short enough.

    Playback then reads these gaps, too.

    Args:
        hints: Hints to modify.
        budget_bytes: Greatest length of the encoded hints.

    Returns:
        Length of the encoded hints, which exceeds the budget if there are too many files.
    """
    while (size := len(encode_hints(hints))) > budget_bytes:
        nodes = [
            [Segment.from_proto(segment, hints.log) for segment in node.segments]
            for node in hints.live_nodes
        ]
        gaps = sorted(
            (gap, index, second)
            for index, segments in enumerate(nodes)
            for second in range(1, len(segments))
            if (gap := gap_between(segments[second - 1], segments[second])) is not None
        )
        if not gaps:
            break
        excess = size - budget_bytes
        closed: set[tuple[int, int]] = set()
        for _, index, second in gaps:
            if excess <= 0:
                break
            closed.add((index, second))
            excess -= len(json.dumps(_to_json(hints.live_nodes[index].segments[second])))
        for index in {index for index, _ in closed}:
            kept: list[Segment] = []
            for number, segment in enumerate(nodes[index]):
                if (index, number) in closed:
                    kept[-1] = join(kept[-1], segment)
                else:
                    kept.append(segment)
            del hints.live_nodes[index].segments[:]
            hints.live_nodes[index].segments.extend(item.to_proto(hints.log) for item in kept)
    return size


def _members(hints: FSMHints) -> Iterator[tuple[str, str]]:
    # One file after the other: to encode all at once would be one long step of the interpreter,
    # during which no other thread runs.
    for name, is_repeated in _fields(hints.DESCRIPTOR):
        value = getattr(hints, name)
        if is_repeated:
            items = ",".join(_encode(_to_json(item)) for item in value)
            yield name, f"[{items}]" if items else "null"
        elif value:
            yield name, _encode(value)


def _to_json(message: Message) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, is_repeated in _fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if is_repeated:
            members[name] = [_to_json(item) for item in value] or None
        elif value:
            members[name] = value
    return members


@functools.cache
def _fields(descriptor: Descriptor) -> list[tuple[str, bool]]:
    """Return the names of fields, and whether they are repeated."""
    return [(field.name, field.is_repeated) for field in descriptor.fields]


def _from_json(document: Any, message: Message) -> None:
    if type(document) is not dict:
        raise TypeError(f"expected an object, not {document!r:.100}")
    members = cast("dict[str, Any]", document)
    for field in message.DESCRIPTOR.fields:
        value = members.get(field.name)
        if value is None:
            continue
        is_text = field.cpp_type == field.CPPTYPE_STRING
        expected = list if field.is_repeated else str if is_text else int
        if type(value) is not expected:
            raise TypeError(f"{field.name}: expected {expected.__name__}, not {value!r:.100}")
        if not field.is_repeated:
            setattr(message, field.name, value)
            continue
        items = getattr(message, field.name)
        for item in cast("list[Any]", value):
            _from_json(item, items.add())
