"""Label sets: look-up, changes in place, and algebra.

A label set is sorted and unique on (name, value). A name has one or more values, or the empty value
alone, which only marks that the label exists. In selectors a label may match values by prefix,
which text forms spell as the suffix `:prefix` of the name.
"""

from __future__ import annotations

import functools
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.broker_pb2 import Label, LabelSet
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.journal import PATH_SYMBOLS, validate_token
from gazette_aio.protocol.well_known import META_ID, META_NAME, SINGLE_VALUE_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_LABEL_NAME_LENGTH: Final = 64
MIN_LABEL_NAME_LENGTH: Final = 2
MAX_LABEL_VALUE_LENGTH: Final = 1024

PREFIX_SUFFIX: Final = ":prefix"
"""Suffix of the name of a prefix label, in text forms."""

_by_name = attrgetter("name")


def label_set(*names_and_values: str) -> LabelSet:
    """Build a label set of alternating names and values, in any order.

    Example:
        >>> label_set("env", "prod", "name:prefix", "logs/").labels[1].prefix
        True

    Raises:
        ValidationError: A name or value isn't valid, or the number of arguments is odd.
    """
    if len(names_and_values) % 2:
        raise ValidationError("expected an even number of Name/Value arguments")
    built = LabelSet()
    for name, value in zip(names_and_values[::2], names_and_values[1::2], strict=True):
        add_value(built, name, value)
    validate_label_set(built, allow_prefix=True)
    return built


def values_of(labels: LabelSet, name: str) -> list[str] | None:
    """Return the values of `name` in order, or None if the set has no such label."""
    return [label.value for label in labels.labels if label.name == name] or None


def value_of(labels: LabelSet, name: str) -> str:
    """Return the first value of `name`, or the empty string if the set has no such label."""
    for label in labels.labels:
        if label.name == name:
            return label.value
    return ""


def set_value(labels: LabelSet, name: str, value: str) -> None:
    """Replace all values of `name` by `value`."""
    label = _new_label(name, value)
    others = [other for other in labels.labels if other.name != label.name]
    at = sum(other.name < label.name for other in others)
    _assign(labels, (*others[:at], label, *others[at:]))


def add_value(labels: LabelSet, name: str, value: str) -> None:
    """Add `value` to the values of `name`, unless the value is present."""
    label = _new_label(name, value)
    key = (label.name, value)
    present = labels.labels
    at = len(present)
    # Sets are mostly built in order, thus the search begins at the end.
    while at and (present[at - 1].name, present[at - 1].value) >= key:
        at -= 1
    if at < len(present) and present[at] == label:
        return
    present.insert(at, label)


def remove_label(labels: LabelSet, name: str) -> None:
    """Remove all values of `name`."""
    kept = [label for label in labels.labels if label.name != name]
    if len(kept) != len(labels.labels):
        _assign(labels, kept)


def union_label_sets(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return the labels of `lhs`, and the labels of `rhs` whose names aren't in `lhs`."""
    return LabelSet(labels=[label for left, right in _join(lhs, rhs) for label in left or right])


def intersect_label_sets(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return the labels of `lhs` whose names have equal values in `rhs`."""
    return LabelSet(
        labels=[label for left, right in _join(lhs, rhs) if _equal(left, right) for label in left]
    )


def subtract_label_set(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return the labels of `lhs` whose names don't have equal values in `rhs`."""
    return LabelSet(
        labels=[
            label for left, right in _join(lhs, rhs) if not _equal(left, right) for label in left
        ]
    )


def with_name_label(name: str, labels: LabelSet) -> LabelSet:
    """Return `labels` with the derived label `name`, by which selectors match a journal."""
    return union_label_sets(LabelSet(labels=[Label(name=META_NAME, value=name)]), labels)


def with_id_label(shard: str, labels: LabelSet) -> LabelSet:
    """Return `labels` with the derived label `id`, by which selectors match a shard."""
    return union_label_sets(LabelSet(labels=[Label(name=META_ID, value=shard)]), labels)


def validate_label(label: Label, *, allow_prefix: bool = False) -> None:
    """Check a label.

    Raises:
        ValidationError: The label isn't valid.
    """
    _validate_name_and_value(label.name, label.value)
    if label.prefix and not allow_prefix:
        raise ValidationError("Prefix may not be set outside of a LabelSelector")


# Errors aren't cached, so that an entry has at most 2 KiB.
@functools.lru_cache(maxsize=2048)
def _validate_name_and_value(name: str, value: str) -> None:
    within(
        "Name",
        validate_token,
        name,
        min_length=MIN_LABEL_NAME_LENGTH,
        max_length=MAX_LABEL_NAME_LENGTH,
    )
    within(
        "Value",
        validate_token,
        value,
        min_length=0,
        max_length=MAX_LABEL_VALUE_LENGTH,
        symbols=PATH_SYMBOLS,
    )


def validate_label_set(labels: LabelSet, *, allow_prefix: bool = False) -> None:
    """Check that the labels of a set are valid, sorted and unique.

    Raises:
        ValidationError: A label isn't valid, or is out of order.
    """
    previous: Label | None = None
    for index, label in enumerate(labels.labels):
        try:
            validate_label(label, allow_prefix=allow_prefix)
        except ValidationError as error:
            raise error.extend(f"Labels[{index}]") from None
        if previous is not None and previous.name >= label.name:
            _check_order(index, previous, label)
        previous = label


def _check_order(index: int, previous: Label, label: Label) -> None:
    if previous.name > label.name:
        raise ValidationError(
            f"Labels not in unique, sorted order "
            f"(index {index}; label name {label.name} <= {previous.name})"
        )
    if previous.value >= label.value:
        raise ValidationError(
            f"Labels not in unique, sorted order (index {index}; "
            f"label {label.name} value {label.value} <= {previous.value})"
        )
    if not previous.value:
        raise ValidationError(
            f"Label has empty & non-empty values "
            f"(index {index}; label {label.name} value {label.value})"
        )


def validate_single_value_labels(labels: LabelSet) -> None:
    """Check that labels of `SINGLE_VALUE_LABELS` have one value each.

    Raises:
        ValidationError: A label has several values.
    """
    previous = ""
    for index, label in enumerate(labels.labels):
        name = label.name
        if index and name == previous and name in SINGLE_VALUE_LABELS:
            raise ValidationError(
                f"expected single-value Label has multiple values "
                f"(index {index}; label {name} value {label.value})"
            )
        previous = name


def _new_label(name: str, value: str) -> Label:
    if not (isinstance(name, str) and isinstance(value, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a label has a name and a value of type str, not {name!r} and {value!r}")
    bare = name.removesuffix(PREFIX_SUFFIX)
    return Label(name=bare, value=value, prefix=len(bare) != len(name))


def _assign(labels: LabelSet, content: Iterable[Label]) -> None:
    built = LabelSet(labels=content)
    labels.CopyFrom(built)


def _join(lhs: LabelSet, rhs: LabelSet) -> Iterator[tuple[list[Label], list[Label]]]:
    """Yield the labels of each name in `lhs` and in `rhs`; one of the lists may be empty.

    The result of unsorted sets is unsorted, which validation detects.
    """
    left, right = _groups(lhs), _groups(rhs)
    at = 0
    for group in left:
        while at < len(right) and right[at][0].name < group[0].name:
            yield [], right[at]
            at += 1
        if at < len(right) and right[at][0].name == group[0].name:
            yield group, right[at]
            at += 1
        else:
            yield group, []
    for group in right[at:]:
        yield [], group


def _groups(labels: LabelSet) -> list[list[Label]]:
    return [list(group) for _, group in groupby(labels.labels, _by_name)]


def _equal(lhs: list[Label], rhs: list[Label]) -> bool:
    # Prefix flags aren't compared.
    return [label.value for label in lhs] == [label.value for label in rhs]
