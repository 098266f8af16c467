"""Selectors: text form, and matching against a naive model."""

from __future__ import annotations

import re
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.selector import compile_selector, with_name_prefixes
from tests.protocol.support import error_of, labels, listed

NAMES = ["aa", "aa-b", "bb", "in", "not", "notin", "env/é", "日本"]
VALUES = ["", "1", "a", "ab", "a/b", "a/", "b=c", "x%20y", "½"]


def parts(names: list[str] = NAMES, values: list[str] = VALUES) -> st.SearchStrategy[pb.LabelSet]:
    """Return one part of valid selectors."""
    single = st.tuples(st.just(""), st.booleans()).map(lambda label: [label])
    several = st.lists(
        st.tuples(st.sampled_from([value for value in values if value]), st.booleans()),
        min_size=1,
        unique_by=lambda label: label[0],
    )
    return st.dictionaries(st.sampled_from(names), single | several, max_size=4).map(
        lambda by_name: labels(
            [
                [name, value, True] if is_prefix else [name, value]
                for name, listed_values in sorted(by_name.items())
                for value, is_prefix in sorted(listed_values)
            ]
        )
    )


def build(include: pb.LabelSet, exclude: pb.LabelSet) -> pb.LabelSelector:
    selector = pb.LabelSelector()
    if include.labels:
        selector.include.CopyFrom(include)
    if exclude.labels:
        selector.exclude.CopyFrom(exclude)
    return selector


selectors = st.builds(build, parts(), parts())


@given(selectors)
def test_text_round_trips(selector):
    pb.validate(selector)
    text = pb.format_label_selector(selector)
    assert pb.parse_label_selector(text) == selector
    assert pb.format_label_selector(pb.parse_label_selector(text)) == text


def matches_naively(selector: pb.LabelSelector, label_set: pb.LabelSet) -> bool:
    def name_matches(part: pb.LabelSet, name: str) -> bool:
        return any(
            wanted.value in ("", label.value)
            or (wanted.prefix and label.value.startswith(wanted.value))
            for wanted in part.labels
            for label in label_set.labels
            if wanted.name == label.name == name
        )

    included = {label.name for label in selector.include.labels}
    excluded = {label.name for label in selector.exclude.labels}
    return all(name_matches(selector.include, name) for name in included) and not any(
        name_matches(selector.exclude, name) for name in excluded
    )


few = ["aa", "bb", "cc"]
label_sets = st.lists(st.tuples(st.sampled_from(few), st.sampled_from(VALUES)), max_size=6).map(
    lambda pairs: labels([[*pair] for pair in sorted(set(pairs))])
)


@given(st.builds(build, parts(few), parts(few)), label_sets)
def test_matching_is_that_of_the_definition(selector, label_set):
    expected = matches_naively(selector, label_set)
    assert pb.selector_matches(selector, label_set) == expected
    compiled = compile_selector(selector)
    assert compiled(label_set) == expected
    assert (
        compiled.matches_pairs([(label.name, label.value) for label in label_set.labels])
        == expected
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("foo in(a)", "foo=a"),
        ("foo in (a,)", "foo=a"),
        ("foo in ( a , b )", "foo in (a,b)"),
        ("foo=a,foo=b", "foo in (a,b)"),
        ("foo in (a),bar notin (x,y),baz,!qux", "baz,foo=a,bar notin (x,y),!qux"),
        ("foo===bar", "foo==bar"),
    ],
)
def test_canonical_text(text: str, canonical: str):
    assert pb.format_label_selector(pb.parse_label_selector(text)) == canonical


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "foo in (,a)",
            "Include: Label has empty & non-empty values (index 1; label foo value a)",
        ),
        ("foo\n", 'could not match "foo\\n" to a label selector expression'),
        ("foo=bar\n", 'could not match "foo=bar\\n" to a label selector expression'),
        *(
            (text, f'could not match "{text}" to a label selector expression')
            for text in ("foo  in (a)", "foo ! =bar", "f=bar", "foo:pre=1")
        ),
        ("foo,,bar", 'could not match ",bar" to a label selector expression'),
        ("foo=bar, ", 'could not match " " to a label selector expression'),
    ],
)
def test_errors(text: str, error: str):
    if "could not match" in error:
        error += ": write label=value, label in (a,b), name:prefix=a/, or several with commas"
    assert error_of(pb.parse_label_selector, text) == error


def test_each_caller_gets_a_selector_of_its_own():
    first = pb.parse_label_selector("foo=bar")
    pb.add_value(first.include, "more", "")
    assert pb.format_label_selector(pb.parse_label_selector("foo=bar")) == "foo=bar"


def test_prefixes_of_listings():
    selector = pb.parse_label_selector("prefix in (a/, b/), name=c, prefix != a/b/")
    applied = with_name_prefixes(selector)
    assert listed(applied.include) == [["name", "a/", True], ["name", "b/", True], ["name", "c"]]
    assert listed(applied.exclude) == [["name", "a/b/", True]]
    # The selector which was given stays as it is.
    assert pb.values_of(selector.include, "prefix") == ["a/", "b/"]


def test_word_characters_are_letters_and_numbers():
    word = re.compile(r"\w")
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        expected = unicodedata.category(char)[0] in "LN" or char == "_"
        assert (word.match(char) is not None) == expected, hex(code)


def test_parsing_takes_linear_time():
    count = 20_000
    descending = ",".join(f"name-{count - index:06}" for index in range(count))
    listing = ",".join(f"list-{index:06} in (a, b)" for index in range(count // 4))
    began = time.process_time()
    assert len(pb.parse_label_selector(descending).include.labels) == count
    assert len(pb.parse_label_selector(listing).include.labels) == count // 2
    assert error_of(pb.parse_label_selector, "a" * 100_000 + " b") is not None
    assert time.process_time() - began < 3
