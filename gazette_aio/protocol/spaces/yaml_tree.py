"""YAML documents parsed into trees with line numbers; tags never create objects.

Scalars resolve as in the tools of brokers, from which YAML libraries differ in details.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 200
"""Greatest nesting of a document."""
MAX_BYTES: Final = 64 << 20
"""Greatest size of a document."""
_FREE_EXPANSION: Final = 100_000
_MAX_EXPANSION_RATIO: Final = 10

_TRUE: Final = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE: Final = frozenset(
    ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"]
)
_NULL: Final = frozenset(["", "~", "null", "Null", "NULL"])
_SPECIAL_FLOATS: Final = frozenset(
    f"{sign}.{name}" for sign in ("", "+", "-") for name in ("inf", "Inf", "INF")
) | {".nan", ".NaN", ".NAN"}
_INTEGER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9A-Fa-f]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]*)", re.ASCII
)
_FLOAT: Final = re.compile(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+][0-9]+)?", re.ASCII)
_DOT_FLOAT: Final = re.compile(r"\.[0-9]+(?:[eE][-+]?[0-9]+)?", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"(?:[Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?",
    re.ASCII,
)
_MAX_NUMBER_LENGTH: Final = 400

_PREFIX: Final = "tag:yaml.org,2002:"
_STRING_TAGS: Final = frozenset(["!", f"{_PREFIX}str"])
_PLAIN_TAGS: Final = frozenset(_PREFIX + name for name in ("bool", "float", "int", "null"))
_COLLECTION_TAGS: Final = frozenset(_PREFIX + name for name in ("map", "seq"))


@dataclasses.dataclass(slots=True)
class Scalar:
    """A scalar. Plain scalars may resolve to other types than strings."""

    line: int
    text: str
    is_plain: bool


@dataclasses.dataclass(slots=True)
class Sequence:
    """A list."""

    line: int
    items: list[Tree] = dataclasses.field(default_factory=list["Tree"])


@dataclasses.dataclass(slots=True)
class Mapping:
    """A mapping: pairs in order, possibly with repeated keys."""

    line: int
    pairs: list[tuple[Tree, Tree]] = dataclasses.field(default_factory=list[tuple["Tree", "Tree"]])


Tree: TypeAlias = Scalar | Sequence | Mapping


class YAMLError(Exception):
    """A document isn't valid. The readers convert this error to a ValidationError."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text
        super().__init__(line, text)


def resolve(text: str) -> bool | int | float | str | None:
    """Return the value of a plain scalar; timestamps stay text."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _SPECIAL_FLOATS:
        return float(text.lower().replace(".", ""))
    if not text[:1].isascii() or text[0] not in "+-.0123456789" or len(text) > _MAX_NUMBER_LENGTH:
        return text
    if text[0] == ".":
        return float(text) if _DOT_FLOAT.fullmatch(text) else text
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(plain):
        digits = plain.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        value = int(digits, 8 if octal else 0)
        value = -value if plain[0] == "-" else value
        if -(1 << 63) <= value < 1 << 64:
            return value
    return float(plain) if _FLOAT.fullmatch(plain) else text


def is_string(text: str) -> bool:
    """Tell whether a plain scalar of this text is a string: no other type and no timestamp."""
    return isinstance(resolve(text), str) and not _TIMESTAMP.fullmatch(text)


def compose(text: str) -> Tree | None:
    """Parse one document; an empty document is None.

    Raises:
        YAMLError: The document isn't valid, is too large, or is nested too deeply.
    """
    import yaml  # noqa: PLC0415

    if len(text) > MAX_BYTES:
        raise YAMLError(1, f"document of more than {MAX_BYTES} bytes")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer().compose(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise YAMLError(line, error.problem or error.context or "not YAML") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YAMLError(1, str(error).partition("\n")[0]) from None


@dataclasses.dataclass(slots=True)
class _Open:
    """A collection before its end."""

    line: int
    anchor: str | None
    is_mapping: bool
    items: list[Tree]
    size: int = 1


class _Composer:
    """Builds the tree of a document from its events, without recursion."""

    def __init__(self) -> None:
        # The anchor of an open collection is None.
        self._anchors: dict[str, tuple[Tree, int] | None] = {}
        self._open: list[_Open] = []
        self._root: Tree | None = None
        self._events = 0
        self._expanded = 0

    def compose(self, events: Iterator[Any]) -> Tree | None:
        import yaml  # noqa: PLC0415

        documents = 0
        for event in events:
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            self._events += 1
            match event:
                case yaml.ScalarEvent():
                    self._add(_scalar(event, line), 1, event.anchor, line)
                case yaml.AliasEvent():
                    self._alias(str(event.anchor), line)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._begin(event, line)
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._end()
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise YAMLError(line, "expected a single document")
                case _:
                    pass
        return self._root

    def _alias(self, anchor: str, line: int) -> None:
        if (aliased := self._anchors.get(anchor)) is None:
            raise YAMLError(line, f"unknown or recursive anchor {anchor!r}")
        self._add(*aliased, None, line)

    def _add(self, tree: Tree, size: int, anchor: str | None, line: int) -> None:
        # Invariant: each use of an alias counts its whole expansion.
        self._expanded += size
        if self._expanded > _FREE_EXPANSION + _MAX_EXPANSION_RATIO * self._events:
            raise YAMLError(line, "document contains excessive aliasing")
        if anchor is not None:
            self._anchors[anchor] = tree, size
        if self._open:
            self._open[-1].items.append(tree)
            self._open[-1].size += size
        else:
            self._root = tree

    def _begin(self, event: Any, line: int) -> None:
        import yaml  # noqa: PLC0415

        if len(self._open) >= MAX_DEPTH:
            raise YAMLError(line, f"nested more than {MAX_DEPTH} deep")
        if event.tag is not None and event.tag not in _COLLECTION_TAGS:
            raise YAMLError(line, f"tag {event.tag} is not allowed")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Open(line, event.anchor, is_mapping, []))

    def _end(self) -> None:
        ended = self._open.pop()
        tree: Tree
        if ended.is_mapping:
            pairs = zip(ended.items[::2], ended.items[1::2], strict=True)
            tree = Mapping(ended.line, list(pairs))
        else:
            tree = Sequence(ended.line, ended.items)
        # The items were counted before.
        self._expanded -= ended.size - 1
        self._add(tree, ended.size, ended.anchor, ended.line)


def _scalar(event: Any, line: int) -> Scalar:
    tag, is_plain = event.tag, event.style is None or event.style == ""
    if tag is None:
        return Scalar(line, event.value, is_plain)
    if tag in _STRING_TAGS:
        return Scalar(line, event.value, is_plain=False)
    if tag in _PLAIN_TAGS:
        return Scalar(line, event.value, is_plain=True)
    raise YAMLError(line, f"tag {tag} is not allowed")
