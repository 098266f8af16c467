"""Label selectors: grammar, canonical text, and matching.

A selector matches a label set if every name of its include part matches, and no name of its
exclude part does. A name matches if one of its values matches a value of the set: the empty value
matches any value, and a prefix label matches values which begin with its own.

    TOKEN := [letters, numbers, - _ + / .]{2,} (":prefix")?
    VALUE := [letters, numbers, - _ + / . = %]*

    TOKEN = VALUE     TOKEN == VALUE      includes the value; an empty value requires existence
    TOKEN != VALUE                        excludes the value
    TOKEN in (VALUE, …)                   includes any of the values
    TOKEN not in (VALUE, …)               excludes all of the values; also `notin`
    TOKEN             !TOKEN              requires existence, or absence

Commas separate expressions. Each blank above is a single space or nothing.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from copy import deepcopy
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.broker_pb2 import Label, LabelSelector, LabelSet
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.go.text import quote
from gazette_aio.protocol.labels import (
    PREFIX_SUFFIX,
    add_value,
    remove_label,
    validate_label_set,
    values_of,
)
from gazette_aio.protocol.well_known import META_NAME, META_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOKEN: Final = r" ?([\w\-+/.]{2,}(?::prefix)?)"  # noqa: S105
_VALUE: Final = r" ?([\w\-+/.=%]*)"
_LIST: Final = r" ?\(([^)]+)\)"
_END: Final = r" ?(?:,|\Z)"

# Patterns are tried in this order at the current position.
_EXPRESSIONS: Final = tuple(
    (re.compile(pattern + _END), excludes, is_list)
    for pattern, excludes, is_list in (
        (rf"{_TOKEN} ?==?{_VALUE}", False, False),
        (rf"{_TOKEN} ?!={_VALUE}", True, False),
        (rf"{_TOKEN} in{_LIST}", False, True),
        (rf"{_TOKEN} not ?in{_LIST}", True, True),
        (rf"{_TOKEN}()", False, False),
        (rf" ?!{_TOKEN}()", True, False),
    )
)
_MAX_CACHED_LENGTH: Final = 4096
_OPERATOR: Final = re.compile(r"[=!,: ]")
_LIST_ITEM: Final = re.compile(_VALUE + _END)

_value = itemgetter(1)
_name = itemgetter(0)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse the text form of a selector; the empty text matches everything.

    Raises:
        ValidationError: The text breaks the grammar, or has an invalid name or value.
    """
    # Messages are mutable, thus each caller gets a copy.
    return LabelSelector.FromString(
        _cached_parse(text) if len(text) <= _MAX_CACHED_LENGTH else _parse(text)
    )


_GRAMMAR: Final = ": write label=value, label in (a,b), name:prefix=a/, or several with commas"


def _parse(text: str) -> bytes:
    include, exclude = _Labels(), _Labels()
    at = 0
    while at < len(text):
        for pattern, excludes, is_list in _EXPRESSIONS:
            if (match := pattern.match(text, at)) is None:
                continue
            part = exclude if excludes else include
            values = _parse_list(text, match) if is_list else (match[2],)
            for value in values:
                part.add(match[1], value)
            at = match.end()
            break
        else:
            raise ValidationError(
                f"could not match {quote(text[at:])} to a label selector expression{_GRAMMAR}"
            )
    selector = LabelSelector(include=include.build(), exclude=exclude.build())
    validate_label_selector(selector)
    return selector.SerializeToString()


def is_selector_expression(text: str) -> bool:
    """Tell whether a text that may be a name is a selector: it has an operator, and parses.

    Some texts are both: `tier=hot` is a valid name of a journal.
    """
    if _OPERATOR.search(text) is None:
        return False
    try:
        parse_label_selector(text)
    except ValidationError:
        return False
    return True


_cached_parse = functools.lru_cache(maxsize=512)(_parse)


def _parse_list(text: str, expression: re.Match[str]) -> Iterator[str]:
    begin, end = expression.span(2)
    while begin < end:
        if (match := _LIST_ITEM.match(text, begin, end)) is None:
            raise ValidationError(
                f"parsing {quote(text[expression.start() :])}: could not match "
                f"{quote(text[begin:end])} to a label selector set expression{_GRAMMAR}"
            )
        yield match[1]
        begin = match.end()


class _Labels:
    """Collects labels in any order, as `add_value()` does, but in linear time."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, str], list[bool]] = {}

    def add(self, name: str, value: str) -> None:
        bare = name.removesuffix(PREFIX_SUFFIX)
        is_prefix = len(bare) != len(name)
        prefixes = self._prefixes.setdefault((bare, value), [])
        # Duplicates are dropped. The same label with and without a prefix fails validation later.
        if is_prefix not in prefixes:
            prefixes.append(is_prefix)

    def build(self) -> LabelSet | None:
        if not self._prefixes:
            return None
        return LabelSet(
            labels=[
                Label(name=name, value=value, prefix=is_prefix)
                for (name, value), prefixes in sorted(self._prefixes.items())
                for is_prefix in prefixes
            ]
        )


def validate_label_selector(selector: LabelSelector) -> None:
    """Check both parts of a selector.

    Raises:
        ValidationError: A label isn't valid, or is out of order.
    """
    within("Include", validate_label_set, selector.include, allow_prefix=True)
    within("Exclude", validate_label_set, selector.exclude, allow_prefix=True)


def format_label_selector(selector: LabelSelector) -> str:
    """Return the canonical text of a selector.

    The text parses to an equal selector, unless a value begins with `=`.
    """
    return ",".join((*_format(selector.include, "", ""), *_format(selector.exclude, "!", "not")))


def _format(labels: LabelSet, bang: str, negation: str) -> Iterable[str]:
    pairs = sorted(
        (
            (f"{label.name}{PREFIX_SUFFIX}" if label.prefix else label.name, label.value)
            for label in labels.labels
        ),
        key=_name,
    )
    for name, group in groupby(pairs, _name):
        values = [value for _, value in group]
        if values == [""]:
            yield f"{bang}{name}"
        elif len(values) == 1:
            yield f"{name}{bang}={values[0]}"
        else:
            yield f"{name} {negation}in ({','.join(values)})"


class _Values:
    """Values of a name in one part of a selector."""

    __slots__ = ("any", "exact", "prefixes")

    def __init__(self) -> None:
        self.any = False
        self.exact: set[str] = set()
        self.prefixes: tuple[str, ...] = ()

    def match(self, value: str) -> bool:
        return self.any or value in self.exact or value.startswith(self.prefixes)


class CompiledSelector:
    """A selector prepared to match many label sets.

    Call the object with a `LabelSet`, or `matches_pairs()` with pairs of strings.
    """

    def __init__(self, selector: LabelSelector) -> None:
        include, exclude = _compile(selector.include), _compile(selector.exclude)
        self._by_name = {
            name: (include.get(name), exclude.get(name)) for name in include.keys() | exclude.keys()
        }
        self._wanted = len(include)

    def __call__(self, labels: LabelSet) -> bool:
        """Tell whether `labels` matches."""
        by_name = self._by_name
        if not by_name:
            return True
        # Hot: reading fields of messages is slow, thus values of other names aren't read.
        return self.matches_pairs(
            [(name, label.value) for label in labels.labels if (name := label.name) in by_name]
        )

    def matches_pairs(self, labels: Iterable[tuple[str, str]]) -> bool:
        """Tell whether a label set matches; `labels` are its (name, value) pairs."""
        by_name = self._by_name
        found: set[str] = set()
        for name, value in labels:
            if (values := by_name.get(name)) is None:
                continue
            included, excluded = values
            if excluded is not None and excluded.match(value):
                return False
            if included is not None and included.match(value):
                found.add(name)
        return len(found) == self._wanted


def _compile(labels: LabelSet) -> dict[str, _Values]:
    compiled: dict[str, _Values] = {}
    prefixes: defaultdict[str, list[str]] = defaultdict(list)
    for label in labels.labels:
        if (values := compiled.get(label.name)) is None:
            values = compiled[label.name] = _Values()
        if not label.value:
            values.any = True
        elif label.prefix:
            prefixes[label.name].append(label.value)
        else:
            values.exact.add(label.value)
    for name, listed in prefixes.items():
        compiled[name].prefixes = tuple(listed)
    return compiled


def compile_selector(selector: LabelSelector) -> CompiledSelector:
    """Prepare a selector to match many label sets."""
    return CompiledSelector(selector)


def selector_matches(selector: LabelSelector, labels: LabelSet) -> bool:
    """Tell whether `labels` matches `selector`."""
    return CompiledSelector(selector)(labels)


def with_name_prefixes(selector: LabelSelector) -> LabelSelector:
    """Return a listing selector with the derived label `prefix` rewritten to `name:prefix`."""
    rewritten = deepcopy(selector)
    for part in (rewritten.include, rewritten.exclude):
        if values := values_of(part, META_PREFIX):
            for value in values:
                add_value(part, f"{META_NAME}{PREFIX_SUFFIX}", value)
            remove_label(part, META_PREFIX)
    return rewritten
