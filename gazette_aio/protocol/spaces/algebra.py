"""Union, intersection and difference of specs, field by field."""

from __future__ import annotations

from copy import deepcopy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gazette_aio.protocol.labels import (
    intersect_label_sets,
    subtract_label_set,
    union_label_sets,
)

if TYPE_CHECKING:
    from gazette_aio.protocol._generated.broker_pb2 import LabelSet

_Spec = TypeVar("_Spec", bound=Message)


class SpecAlgebra(Generic[_Spec]):
    """Algebra of one type of spec, which has a field `labels`.

    A zero value, an empty list and an empty duration are unset fields. Fields outside of the
    algebra, such as the name, stay those of the left operand.

    Args:
        fields: Fields of the algebra besides `labels`, such as `flags` or `fragment.length`.
    """

    def __init__(self, *fields: str) -> None:
        self._values = attrgetter(*fields)
        self._paths = tuple(field.rpartition(".") for field in fields)
        self._roots = frozenset(field.partition(".")[0] for field in fields)

    def union(self, lhs: _Spec, rhs: _Spec) -> _Spec:
        """Return `lhs`, with its unset fields taken from `rhs`."""
        values = [left or right for left, right in self._pairs(lhs, rhs)]
        return self._rebuild(lhs, union_label_sets(_labels(lhs), _labels(rhs)), values)

    def intersect(self, lhs: _Spec, rhs: _Spec) -> _Spec:
        """Return `lhs` without the fields which differ in `rhs`."""
        values = [left if left == right else None for left, right in self._pairs(lhs, rhs)]
        return self._rebuild(lhs, intersect_label_sets(_labels(lhs), _labels(rhs)), values)

    def subtract(self, lhs: _Spec, rhs: _Spec) -> _Spec:
        """Return `lhs` without the fields which are equal in `rhs`."""
        values = [None if left == right else left for left, right in self._pairs(lhs, rhs)]
        return self._rebuild(lhs, subtract_label_set(_labels(lhs), _labels(rhs)), values)

    def _pairs(self, lhs: _Spec, rhs: _Spec) -> list[tuple[Any, Any]]:
        # A zero duration, which is a message, is unset like other zero values.
        return [
            (left, right)
            if not isinstance(left, Duration)
            else (_set_duration(left), _set_duration(right))
            for left, right in zip(self._values(lhs), self._values(rhs), strict=True)
        ]

    def _rebuild(self, spec: _Spec, labels: LabelSet, values: list[Any]) -> _Spec:
        out = deepcopy(spec)
        out.ClearField("labels")
        for root in self._roots:
            out.ClearField(root)
        if labels.labels:
            _labels(out).CopyFrom(labels)
        for (outer, _, name), value in zip(self._paths, values, strict=True):
            if value:
                _set(attrgetter(outer)(out) if outer else out, name, value)
        return out


def _labels(spec: Any) -> LabelSet:
    labels: LabelSet = spec.labels
    return labels


def _set_duration(duration: Duration) -> Duration | None:
    return duration if duration.seconds or duration.nanos else None


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, int | str):
        setattr(message, name, value)
    elif isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    else:
        getattr(message, name).extend(value)
