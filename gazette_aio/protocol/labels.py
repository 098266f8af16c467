"""Label sets: look-up, changes in place, and algebra.

A label set is sorted and unique on (name, value). A name may have several values, or the single
empty value, which says no more than that the label exists. Within selectors a label may match
values by prefix, which a name with the suffix `:prefix` stands for.
"""

from __future__ import annotations

import functools
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.broker_pb2 import Label, LabelSet
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.journal import PATH_SYMBOLS, validate_token
from gazette_aio.protocol.well_known import META_NAME, SINGLE_VALUE_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_LABEL_NAME_LENGTH: Final = 64
MIN_LABEL_NAME_LENGTH: Final = 2
MAX_LABEL_VALUE_LENGTH: Final = 1024

PREFIX_SUFFIX: Final = ":prefix"
"""Suffix of a name in text forms, for a label which matches values by prefix."""

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
    """Return the values of `name` in order, or None if the set doesn't have it."""
    return [label.value for label in labels.labels if label.name == name] or None


def value_of(labels: LabelSet, name: str) -> str:
    """Return the first value of `name`, or the empty string if the set doesn't have it."""
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
    """Add `value` to the values of `name`, unless it's among them."""
    label = _new_label(name, value)
    key = (label.name, value)
    present = labels.labels
    at = len(present)
    # Sets are mostly built in order, so that the search starts at the end.
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


def assign_labels(labels: LabelSet, other: LabelSet | None) -> None:
    """Replace the content of `labels` by that of `other`; None empties it."""
    _assign(labels, other.labels if other is not None else ())


def label_sets_equal(lhs: LabelSet | None, rhs: LabelSet | None) -> bool:
    """Tell whether both sets hold the same labels, prefix flags included."""
    if lhs is None or rhs is None:
        return lhs is rhs
    return lhs == rhs


def union_label_sets(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return all labels of `lhs`, and those of `rhs` with names that `lhs` doesn't have."""
    return LabelSet(labels=[label for left, right in _join(lhs, rhs) for label in left or right])


def intersect_label_sets(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return the labels of names which have equal values in both sets."""
    return LabelSet(
        labels=[label for left, right in _join(lhs, rhs) if _equal(left, right) for label in left]
    )


def subtract_label_set(lhs: LabelSet, rhs: LabelSet) -> LabelSet:
    """Return the labels of `lhs`, but for names which have equal values in both sets."""
    return LabelSet(
        labels=[
            label for left, right in _join(lhs, rhs) if not _equal(left, right) for label in left
        ]
    )


def with_name_label(name: str, labels: LabelSet) -> LabelSet:
    """Return `labels` with the derived label which selectors match the journal `name` by."""
    return union_label_sets(LabelSet(labels=[Label(name=META_NAME, value=name)]), labels)


def validate_label(label: Label, *, allow_prefix: bool = False) -> None:
    """Check one label; only those of selectors may match by prefix.

    Raises:
        ValidationError: The label isn't valid.
    """
    _validate_name_and_value(label.name, label.value)
    if label.prefix and not allow_prefix:
        raise ValidationError("Prefix may not be set outside of a LabelSelector")


# Only valid pairs are cached (errors never are), so that an entry holds 2 KiB at most.
@functools.lru_cache(maxsize=2048)
def _validate_name_and_value(name: str, value: str) -> None:
    try:
        validate_token(name, min_length=MIN_LABEL_NAME_LENGTH, max_length=MAX_LABEL_NAME_LENGTH)
    except ValidationError as error:
        raise error.extend("Name") from None
    try:
        validate_token(value, min_length=0, max_length=MAX_LABEL_VALUE_LENGTH, symbols=PATH_SYMBOLS)
    except ValidationError as error:
        raise error.extend("Value") from None


def validate_label_set(labels: LabelSet, *, allow_prefix: bool = False) -> None:
    """Check the labels of a set, and that they are sorted and unique.

    Raises:
        ValidationError: A label isn't valid, or stands in the wrong place.
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
    """Check that labels which may have one value only don't have more.

    Raises:
        ValidationError: One of `SINGLE_VALUE_LABELS` has several values.
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
    bare = name.removesuffix(PREFIX_SUFFIX)
    return Label(name=bare, value=value, prefix=len(bare) != len(name))


def _assign(labels: LabelSet, content: Iterable[Label]) -> None:
    built = LabelSet(labels=content)
    labels.CopyFrom(built)


def _join(lhs: LabelSet, rhs: LabelSet) -> Iterator[tuple[list[Label], list[Label]]]:
    """Yield the labels of each name in both sets, one of which may have none.

    Sets out of order give a result out of order, which validation then finds.
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
    # Prefix flags don't take part in this comparison.
    return [label.value for label in lhs] == [label.value for label in rhs]
