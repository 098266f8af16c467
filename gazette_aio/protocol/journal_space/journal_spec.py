"""Algebra of journal specifications, and what follows from one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol._generated.broker_pb2 import JournalSpec, LabelSet
from gazette_aio.protocol.labels import (
    intersect_label_sets,
    subtract_label_set,
    union_label_sets,
    with_name_label,
)

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

_READABLE: Final = frozenset({JournalSpec.NOT_SPECIFIED, JournalSpec.O_RDONLY, JournalSpec.O_RDWR})
_WRITABLE: Final = frozenset({JournalSpec.NOT_SPECIFIED, JournalSpec.O_WRONLY, JournalSpec.O_RDWR})


def may_read(flags: int) -> bool:
    """Tell whether journal flags permit reads."""
    return flags in _READABLE


def may_write(flags: int) -> bool:
    """Tell whether journal flags permit appends."""
    return flags in _WRITABLE


def desired_replication(spec: JournalSpec, max_replication: int | None = None) -> int:
    """Return the number of brokers which a journal is to be assigned to.

    Args:
        spec: The journal.
        max_replication: Limit for all journals, if there is one.
    """
    match spec.suspend.level:
        case JournalSpec.Suspend.PARTIAL:
            desired = 1
        case JournalSpec.Suspend.FULL:
            desired = 0
        case _:
            desired = spec.replication
    return desired if max_replication is None else min(desired, max_replication)


def label_set_ext(spec: JournalSpec) -> LabelSet:
    """Return the labels of a journal as selectors see them: with its name."""
    return with_name_label(spec.name, spec.labels)


def union_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return `lhs` with what it leaves unset taken from `rhs`; name and suspension stay."""
    other = _fields(rhs)
    return _rebuild(
        lhs,
        union_label_sets(lhs.labels, rhs.labels),
        {name: value or other[name] for name, value in _fields(lhs).items()},
    )


def intersect_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return what both have in common; the name stays that of `lhs`, and there's no suspension."""
    other = _fields(rhs)
    out = _rebuild(
        lhs,
        intersect_label_sets(lhs.labels, rhs.labels),
        {name: value for name, value in _fields(lhs).items() if value == other[name]},
    )
    out.ClearField("suspend")
    return out


def subtract_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return what `lhs` doesn't have in common with `rhs`; name and suspension stay."""
    other = _fields(rhs)
    return _rebuild(
        lhs,
        subtract_label_set(lhs.labels, rhs.labels),
        {name: value for name, value in _fields(lhs).items() if value != other[name]},
    )


def _fields(spec: JournalSpec) -> dict[str, Any]:
    """Return the fields which the algebra covers one by one; a false value is an unset field."""
    fragment = spec.fragment
    return {
        "replication": spec.replication,
        "length": fragment.length,
        "compression_codec": fragment.compression_codec,
        "stores": list(fragment.stores),
        "refresh_interval": _set_duration(fragment.refresh_interval),
        "retention": _set_duration(fragment.retention),
        "flush_interval": _set_duration(fragment.flush_interval),
        "path_postfix_template": fragment.path_postfix_template,
        "flags": spec.flags,
        "max_append_rate": spec.max_append_rate,
    }


def _set_duration(duration: Duration) -> Duration | None:
    return duration if duration.seconds or duration.nanos else None


_OUTSIDE_OF_FRAGMENT: Final = ("replication", "flags", "max_append_rate")


def _rebuild(spec: JournalSpec, labels: LabelSet, fields: dict[str, Any]) -> JournalSpec:
    present = {name: value for name, value in fields.items() if value}
    outer = {name: present.pop(name) for name in _OUTSIDE_OF_FRAGMENT if name in present}
    out = JournalSpec(name=spec.name, **outer)
    if labels.labels:
        out.labels.CopyFrom(labels)
    if present:
        out.fragment.CopyFrom(JournalSpec.Fragment(**present))
    if spec.HasField("suspend"):
        out.suspend.CopyFrom(spec.suspend)
    return out
