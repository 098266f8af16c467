"""Typed reading of YAML trees, with errors which name the line and the path of a field."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from gazette_aio.protocol._generated.broker_pb2 import Label
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import parse_duration, quote
from gazette_aio.protocol.spaces.yaml_tree import (
    Mapping,
    Scalar,
    Sequence,
    Tree,
    YAMLError,
    compose,
    resolve,
)
from gazette_aio.protocol.suggestion import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

_MERGE: Final = "<<"
_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")
_MAX_MERGE_DEPTH: Final = 8

_LABEL_KEYS: Final = frozenset({"name", "value", "prefix"})


def read_document(text: str, source: str, read: Callable[[TreeReader], _T]) -> _T | None:
    """Read a YAML document; an empty document is None.

    Args:
        text: The document.
        source: Name of the document in the texts of errors.
        read: Function which reads the root.

    Raises:
        ValidationError: The document isn't valid. The text names source, line and path.
    """
    try:
        tree = compose(text)
        return None if tree is None else read(TreeReader("", tree))
    except YAMLError as error:
        raise ValidationError(f"{source}:{error.line}: {error.text}") from None


def read_labels(reader: TreeReader) -> list[Label]:
    """Read a list of labels, in any order, and return them in the order of label sets.

    Raises:
        YAMLError: The value isn't a list of labels.
    """
    return sorted(map(_read_label, reader.items()), key=attrgetter("name", "value"))


def _read_label(reader: TreeReader) -> Label:
    """Read a label with the keys `name`, `value` and `prefix`.

    Raises:
        YAMLError: The value isn't a label.
    """
    fields = reader.fields(_LABEL_KEYS)
    label = Label()
    if "name" in fields:
        label.name = fields["name"].text()
    if "value" in fields:
        label.value = fields["value"].text()
    if "prefix" in fields:
        label.prefix = fields["prefix"].flag() or False
    return label


def located(path: str, reason: str) -> str:
    """Return the text of an error, with the path of the field if there is one."""
    return f"{path}: {reason}" if path else reason


class TreeReader:
    """A value of a YAML document, and its path.

    Each method reads the value as one type; null reads as the type's unset value.

    Raises:
        YAMLError: From every method, if the value is of another type.
    """

    __slots__ = ("_path", "_tree")

    def __init__(self, path: str, tree: Tree) -> None:
        self._path = path
        self._tree = tree

    @property
    def line(self) -> int:
        """Line of the document, from 1."""
        return self._tree.line

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return isinstance(self._tree, Sequence)

    def fail(self, reason: str) -> NoReturn:
        """Raise an error about this value."""
        raise YAMLError(self._tree.line, located(self._path, reason))

    def _mismatch(self, wanted: str) -> NoReturn:
        match self._tree:
            case Scalar():
                found = quote(self._tree.text[:64])
            case Sequence():
                found = "a list"
            case Mapping():
                found = "a mapping"
        self.fail(f"expected {wanted}, found {found}")

    def _is_null(self) -> bool:
        return isinstance(self._tree, Scalar) and self._tree.is_plain and self._plain() is None

    def _plain(self) -> bool | int | float | str | None:
        """Return the value of the scalar; the value of a quoted scalar is its text."""
        assert isinstance(self._tree, Scalar)
        return resolve(self._tree.text) if self._tree.is_plain else self._tree.text

    def fields(self, known: frozenset[str]) -> dict[str, TreeReader]:
        """Return the members of a mapping, whose keys must be among `known`."""
        if self._is_null():
            return {}
        if not isinstance(self._tree, Mapping):
            self._mismatch("a mapping")
        return self._members(self._tree, known, depth=0)

    def _members(
        self, tree: Mapping, known: frozenset[str], *, depth: int
    ) -> dict[str, TreeReader]:
        members: dict[str, TreeReader] = {}
        merged: list[Mapping] = []
        for key, value in tree.pairs:
            if not isinstance(key, Scalar):
                raise YAMLError(key.line, located(self._path, "expected a name as key"))
            if key.text == _MERGE and key.is_plain:
                merged += TreeReader(self._path, value).merged()
                continue
            path = f"{self._path}.{key.text}" if self._path else key.text
            if key.text not in known:
                TreeReader(path, key).fail(f"unknown key{suggestion(key.text, known)}")
            if key.text in members:
                TreeReader(path, key).fail("repeated key")
            members[key.text] = TreeReader(path, value)
        if merged and depth == _MAX_MERGE_DEPTH:
            self.fail("merged too deeply")
        for other in merged:
            # The mapping's own members override merged members, and earlier merges later ones.
            members = self._members(other, known, depth=depth + 1) | members
        return members

    def merged(self) -> list[Mapping]:
        """Return the mappings which a merge key names."""
        if isinstance(self._tree, Mapping):
            return [self._tree]
        items = self._tree.items if isinstance(self._tree, Sequence) else []
        mappings = [item for item in items if isinstance(item, Mapping)]
        if not mappings or len(mappings) != len(items):
            self._mismatch("mappings to merge")
        return mappings

    def items(self) -> list[TreeReader]:
        """Return the items of a list."""
        if self._is_null():
            return []
        if not isinstance(self._tree, Sequence):
            self._mismatch("a list")
        return [
            TreeReader(f"{self._path}[{index}]", item)
            for index, item in enumerate(self._tree.items)
        ]

    def text(self) -> str:
        """Return a string; other scalars give their text in the document."""
        if self._is_null():
            return ""
        if not isinstance(self._tree, Scalar):
            self._mismatch("a string")
        # An escape can spell half of a surrogate pair, which no message can hold.
        if not self._tree.text.isascii() and _SURROGATE.search(self._tree.text):
            self.fail("text isn't valid Unicode")
        return self._tree.text

    def flag(self) -> bool | None:
        """Return a boolean."""
        if self._is_null():
            return None
        value = self._plain() if isinstance(self._tree, Scalar) else None
        if not isinstance(value, bool):
            self._mismatch("true or false")
        return value

    def integer(self, bits: int, *, signed: bool = True) -> int:
        """Return an integer of up to `bits`; a float without a fraction is an integer too."""
        if self._is_null():
            return 0
        value = self._plain() if isinstance(self._tree, Scalar) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self._mismatch("an integer")
        least, most = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        if not least <= value < most:
            self.fail(f"integer doesn't fit {bits} bits")
        return value

    def duration(self) -> int:
        """Return the nanoseconds of a duration with units, or of a plain integer."""
        if self._is_null():
            return 0
        if not isinstance(self._tree, Scalar):
            self._mismatch("a duration")
        if not isinstance(self._plain(), str):
            return self.integer(64)
        try:
            nanoseconds = parse_duration(self._tree.text)
        except ValidationError as error:
            self.fail(str(error))
        return nanoseconds

    def enum(self, enum: Any, type_name: str, *, number_bits: int = 0) -> int:
        """Return the number of an enum value.

        Args:
            enum: The enum.
            type_name: Name of the enum in the texts of errors.
            number_bits: Greatest size of a number which stands for a value; 0 allows names only.
        """
        if self._is_null():
            return 0
        if not isinstance(self._tree, Scalar):
            self._mismatch(f"the name of a {type_name}")
        if number_bits and not isinstance(self._plain(), str):
            return self.integer(number_bits, signed=False)
        if self._tree.text not in enum.keys():  # noqa: SIM118
            names = " ".join(enum.keys())
            self.fail(f"{quote(self._tree.text)} is not a valid {type_name} (options are {names})")
        return int(enum.Value(self._tree.text))
