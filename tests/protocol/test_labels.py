"""Label sets: behaviour, and algebra against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.labels import validate_label_set
from tests.protocol.support import error_of, labels, listed

NAMES = ["DDDD", "aa", "aa-b", "ab", "b/c", "env"]
VALUES = ["", "1", "2", "a", "a/b", "é"]


def model_of(label_set: pb.LabelSet) -> dict[str, list[str]]:
    """Return the values by name."""
    model: dict[str, list[str]] = {}
    for label in label_set.labels:
        model.setdefault(label.name, []).append(label.value)
    return model


sets = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8).map(
    lambda pairs: labels([[*pair] for pair in sorted(set(pairs))])
)


@given(sets, sets)
def test_algebra_is_that_of_a_mapping(lhs, rhs):
    left, right = model_of(lhs), model_of(rhs)
    shared = {name for name in left if left[name] == right.get(name)}
    assert model_of(pb.union_label_sets(lhs, rhs)) == right | left
    assert model_of(pb.intersect_label_sets(lhs, rhs)) == {name: left[name] for name in shared}
    assert model_of(pb.subtract_label_set(lhs, rhs)) == {
        name: values for name, values in left.items() if name not in shared
    }
    # Operands stay as they were, and results are in order.
    assert (model_of(lhs), model_of(rhs)) == (left, right)
    for result in (
        pb.union_label_sets(lhs, rhs),
        pb.intersect_label_sets(lhs, rhs),
        pb.subtract_label_set(lhs, rhs),
    ):
        assert listed(result) == sorted(listed(result))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "set", "remove"]),
            st.sampled_from(NAMES),
            st.sampled_from(VALUES),
        )
    )
)
def test_mutations_are_those_of_a_mapping(ops):
    built = pb.LabelSet()
    model: dict[str, set[str]] = {}
    for op, name, value in ops:
        match op:
            case "add":
                pb.add_value(built, name, value)
                model.setdefault(name, set()).add(value)
            case "set":
                pb.set_value(built, name, value)
                model[name] = {value}
            case "remove":
                pb.remove_label(built, name)
                model.pop(name, None)
        flat = sorted((name, value) for name, values in model.items() for value in values)
        assert [(label.name, label.value) for label in built.labels] == flat
    for name in NAMES:
        expected = sorted(model[name]) if name in model else None
        assert pb.values_of(built, name) == expected
        assert pb.value_of(built, name) == (expected[0] if expected else "")


def test_building():
    built = pb.label_set("ccc", "3", "aaa:prefix", "x/", "bbb", "", "ccc", "1")
    assert listed(built) == [["aaa", "x/", True], ["bbb", ""], ["ccc", "1"], ["ccc", "3"]]
    assert pb.label_set() == pb.LabelSet()
    with pytest.raises(pb.ValidationError, match=r"^Labels\[0\].Name: not a valid token"):
        pb.label_set("not valid", "1")
    with pytest.raises(pb.ValidationError, match="empty & non-empty values"):
        pb.label_set("aaa", "", "aaa", "1")
    with pytest.raises(pb.ValidationError, match="even number"):
        pb.label_set("aaa")


def test_the_same_value_with_and_without_a_prefix_is_invalid():
    built = pb.label_set("aaa", "x/")
    pb.add_value(built, "aaa:prefix", "x/")
    error = error_of(validate_label_set, built, allow_prefix=True)
    assert error is not None
    assert "unique, sorted order" in error
    assert error_of(pb.parse_label_selector, "aaa=x/,aaa:prefix=x/") == f"Include: {error}"
