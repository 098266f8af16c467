"""Journal specs: algebra, permissions, replication, and labels for selectors."""

from __future__ import annotations

from typing import Final

from gazette_aio.protocol._generated.broker_pb2 import JournalSpec, LabelSet
from gazette_aio.protocol.labels import with_name_label
from gazette_aio.protocol.spaces.algebra import SpecAlgebra

_READABLE: Final = frozenset({JournalSpec.NOT_SPECIFIED, JournalSpec.O_RDONLY, JournalSpec.O_RDWR})
_WRITABLE: Final = frozenset({JournalSpec.NOT_SPECIFIED, JournalSpec.O_WRONLY, JournalSpec.O_RDWR})

_ALGEBRA: Final = SpecAlgebra[JournalSpec](
    "replication",
    "fragment.length",
    "fragment.compression_codec",
    "fragment.stores",
    "fragment.refresh_interval",
    "fragment.retention",
    "fragment.flush_interval",
    "fragment.path_postfix_template",
    "flags",
    "max_append_rate",
)


def may_read(flags: int) -> bool:
    """Tell whether journal flags permit reads."""
    return flags in _READABLE


def may_write(flags: int) -> bool:
    """Tell whether journal flags permit appends."""
    return flags in _WRITABLE


def desired_replication(spec: JournalSpec, max_replication: int | None = None) -> int:
    """Return the number of brokers to assign a journal to.

    Args:
        spec: Spec of the journal.
        max_replication: Limit of all journals, if there is one.
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
    """Return the labels of a journal and its derived label `name`, for selectors to match."""
    return with_name_label(spec.name, spec.labels)


def union_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return `lhs` with its unset fields taken from `rhs`; name and suspension stay."""
    return _ALGEBRA.union(lhs, rhs)


def intersect_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return the fields which are equal in both, with the name of `lhs` and no suspension."""
    out = _ALGEBRA.intersect(lhs, rhs)
    out.ClearField("suspend")
    return out


def subtract_journal_specs(lhs: JournalSpec, rhs: JournalSpec) -> JournalSpec:
    """Return the fields of `lhs` which differ from `rhs`; name and suspension stay."""
    return _ALGEBRA.subtract(lhs, rhs)
