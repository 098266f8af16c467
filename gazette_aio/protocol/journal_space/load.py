"""Journal-space trees read from YAML."""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import (
    duration_proto,
    parse_duration,
    quote,
)
from gazette_aio.protocol.journal_space.space import Node
from gazette_aio.protocol.journal_space.yaml_tree import (
    Mapping,
    Scalar,
    Sequence,
    Tree,
    YAMLError,
    compose,
    resolve,
)

_MERGE: Final = "<<"
_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")
_MAX_MERGE_DEPTH: Final = 8

_NODE_KEYS: Final = frozenset(
    {"comment", "delete", "name", "replication", "labels", "fragment", "flags"}
    | {"max_append_rate", "suspend", "revision", "children"}
)
_LABEL_KEYS: Final = frozenset({"name", "value", "prefix"})
_FRAGMENT_KEYS: Final = frozenset(
    {"length", "compression_codec", "stores", "refresh_interval", "retention", "flush_interval"}
    | {"path_postfix_template"}
)
_SUSPEND_KEYS: Final = frozenset({"level", "offset"})


def load_journal_space(text: str, *, source: str = "<string>", validate: bool = True) -> Node:
    """Read a tree of journal specifications.

    Unknown and repeated keys are errors, as are tags of any but the plain types.

    Args:
        text: YAML document.
        source: Name of it within the texts of errors.
        validate: Whether to check the shape of the tree too.

    Raises:
        ValidationError: It isn't valid. The text tells source, line, and path of the field.
    """
    try:
        tree = compose(text)
        root = Node() if tree is None else _read_node(_Reader("", tree))
    except YAMLError as error:
        raise ValidationError(f"{source}:{error.line}: {error.text}") from None
    if validate:
        for (path, node), reason in root.find_errors():
            text = _located(path, str(reason))
            raise ValidationError(f"{source}:{node.line or 1}: {text}")
    return root


def _located(path: str, reason: str) -> str:
    return f"{path}: {reason}" if path else reason


class _Reader:
    """A value of the document, and its path."""

    __slots__ = ("_path", "_tree")

    def __init__(self, path: str, tree: Tree) -> None:
        self._path = path
        self._tree = tree

    @property
    def line(self) -> int:
        return self._tree.line

    @property
    def is_list(self) -> bool:
        return isinstance(self._tree, Sequence)

    def fail(self, reason: str) -> NoReturn:
        raise YAMLError(self._tree.line, _located(self._path, reason))

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
        """Return what the scalar stands for; of a quoted one that's always its text."""
        assert isinstance(self._tree, Scalar)
        return resolve(self._tree.text) if self._tree.is_plain else self._tree.text

    def fields(self, known: frozenset[str]) -> dict[str, _Reader]:
        """Return the members of a mapping, which must be among the known ones."""
        if self._is_null():
            return {}
        if not isinstance(self._tree, Mapping):
            self._mismatch("a mapping")
        return self._members(self._tree, known, depth=0)

    def _members(self, tree: Mapping, known: frozenset[str], *, depth: int) -> dict[str, _Reader]:
        members: dict[str, _Reader] = {}
        merged: list[Mapping] = []
        for key, value in tree.pairs:
            if not isinstance(key, Scalar):
                raise YAMLError(key.line, _located(self._path, "expected a name as key"))
            if key.text == _MERGE and key.is_plain:
                merged += _Reader(self._path, value).merged()
                continue
            path = f"{self._path}.{key.text}" if self._path else key.text
            if key.text not in known:
                _Reader(path, key).fail("unknown key")
            if key.text in members:
                _Reader(path, key).fail("repeated key")
            members[key.text] = _Reader(path, value)
        if merged and depth == _MAX_MERGE_DEPTH:
            self.fail("merged too deeply")
        for other in merged:
            # What stands here holds over what is merged, and an earlier merge over a later one.
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

    def items(self) -> list[_Reader]:
        """Return the items of a list."""
        if self._is_null():
            return []
        if not isinstance(self._tree, Sequence):
            self._mismatch("a list")
        return [
            _Reader(f"{self._path}[{index}]", item) for index, item in enumerate(self._tree.items)
        ]

    def text(self) -> str:
        """Return a string; of another scalar it's the text which stands in the document."""
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
        """Return an integer, which may be spelled as a float without a fraction."""
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
        """Return nanoseconds of a duration with units, or of a plain integer."""
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
        """Return the number of an enum value, given by its name or as up to so many bits."""
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


def _read_node(reader: _Reader) -> Node:
    fields = reader.fields(_NODE_KEYS)
    node = Node(line=reader.line)
    spec = node.spec
    for name, value in fields.items():
        match name:
            case "comment":
                node.comment = value.text()
            case "delete":
                node.delete = value.flag()
            case "name":
                spec.name = value.text()
            case "replication":
                spec.replication = value.integer(32)
            case "labels":
                spec.labels.labels.extend(_read_label(item) for item in value.items())
            case "fragment":
                node.has_no_stores = _read_fragment(value, spec.fragment)
            case "flags":
                spec.flags = value.enum(pb.JournalSpec.Flag, "JournalSpec_Flag", number_bits=32)
            case "max_append_rate":
                spec.max_append_rate = value.integer(64)
            case "suspend":
                _read_suspend(value, spec)
            case "revision":
                node.revision = value.integer(64)
            case _:
                node.children = [_read_node(item) for item in value.items()]
    return node


def _read_label(reader: _Reader) -> pb.Label:
    fields = reader.fields(_LABEL_KEYS)
    label = pb.Label()
    if "name" in fields:
        label.name = fields["name"].text()
    if "value" in fields:
        label.value = fields["value"].text()
    if "prefix" in fields:
        label.prefix = fields["prefix"].flag() or False
    return label


def _read_fragment(reader: _Reader, fragment: pb.JournalSpec.Fragment) -> bool:
    """Fill in `fragment`, and return whether it's explicitly without stores."""
    has_no_stores = False
    for name, value in reader.fields(_FRAGMENT_KEYS).items():
        match name:
            case "length":
                fragment.length = value.integer(64)
            case "compression_codec":
                fragment.compression_codec = pb.CompressionCodec.ValueType(
                    value.enum(pb.CompressionCodec, "CompressionCodec")
                )
            case "stores":
                fragment.stores.extend(item.text() for item in value.items())
                has_no_stores = value.is_list and not fragment.stores
            case "path_postfix_template":
                fragment.path_postfix_template = value.text()
            case _:
                if nanoseconds := value.duration():
                    getattr(fragment, name).CopyFrom(duration_proto(nanoseconds))
    return has_no_stores


def _read_suspend(reader: _Reader, spec: pb.JournalSpec) -> None:
    fields = reader.fields(_SUSPEND_KEYS)
    spec.suspend.SetInParent()
    if "level" in fields:
        spec.suspend.level = pb.JournalSpec.Suspend.Level.ValueType(
            fields["level"].enum(
                pb.JournalSpec.Suspend.Level, "JournalSpec_Suspend_Level", number_bits=31
            )
        )
    if "offset" in fields:
        spec.suspend.offset = fields["offset"].integer(64)
