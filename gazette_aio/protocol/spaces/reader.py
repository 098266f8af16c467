"""YAML documents of specs, with errors that name the line and the path of a field.

PyYAML composes a document to nodes, and a field's type in its message decides how its node is read.
Tags never create objects.
"""

from __future__ import annotations

import functools
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import duration_proto, parse_duration, quote
from gazette_aio.protocol.suggestion import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import EnumDescriptor

_T = TypeVar("_T")

_Node: TypeAlias = Any
"""A node of PyYAML, which is imported only for documents."""

MAX_BYTES: Final = 64 << 20
"""Greatest size of a document."""
_FREE_EXPANSION: Final = 100_000
_MAX_EXPANSION_RATIO: Final = 10

_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _TAG + name
    for name in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge", "seq", "map")
)
_TRUE: Final = frozenset({"y", "yes", "true", "on"})
_FALSE: Final = frozenset({"n", "no", "false", "off"})
_INTEGER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9A-Fa-f]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]{,19})", re.ASCII
)
_FLOAT: Final = re.compile(r"[+-]?[0-9]*\.?[0-9]+(?:[eE][+-][0-9]+)?", re.ASCII)
_OCTAL: Final = re.compile(r"^([+-]?)0(?=[0-7])")
_SURROGATE: Final = re.compile("[\\ud800-\\udfff]")

_KINDS: Final = {"sequence": "a list", "mapping": "a mapping"}

_BITS: Final = {
    FieldDescriptor.TYPE_INT32: 32,
    FieldDescriptor.TYPE_INT64: 64,
    FieldDescriptor.TYPE_UINT32: 32,
}
FLAGS: Final = {"protocol.JournalSpec.flags": pb.JournalSpec.Flag.DESCRIPTOR}
"""Integers that are also written by name."""
_NAMED: Final = frozenset({"protocol.CompressionCodec"})
"""Enums that are written only by name."""
PRESENT: Final = frozenset({"protocol.JournalSpec.suspend"})
"""Messages whose presence counts, even if they are empty."""


class DocumentError(Exception):
    """A document isn't valid. `read_document()` converts this error to a ValidationError."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text
        super().__init__(line, text)


def read_document(text: str, source: str, read: Callable[[NodeReader], _T]) -> _T | None:
    """Read a YAML document; an empty document is None.

    Args:
        text: The document.
        source: Name of the document in the texts of errors.
        read: Function which reads the root.

    Raises:
        ValidationError: The document isn't valid. The text names source, line and path.
    """
    try:
        node = _compose(text)
        return None if node is None else read(NodeReader("", node))
    except DocumentError as error:
        line, reason = error.line, error.text
    except RecursionError:
        line, reason = 1, "nested too deeply, or within itself"
    raise ValidationError(f"{source}:{line}: {reason}")


def _compose(text: str) -> _Node | None:
    import yaml  # noqa: PLC0415

    if len(text) > MAX_BYTES:
        raise DocumentError(1, f"document of more than {MAX_BYTES} bytes")
    sizes: dict[_Node, int] = {}
    try:
        node = yaml.compose(text, Loader=_loader())
        if node is not None and _expanded(node, sizes) > (
            _FREE_EXPANSION + _MAX_EXPANSION_RATIO * len(sizes)
        ):
            raise DocumentError(1, "document contains excessive aliasing")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join(filter(None, (error.context, error.problem)))
        raise DocumentError(mark.line + 1 if mark is not None else 1, reason) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise DocumentError(1, str(error).partition("\n")[0]) from None
    return node


@functools.cache
def _loader() -> Any:
    import yaml  # noqa: PLC0415
    from yaml.composer import Composer  # noqa: PLC0415
    from yaml.resolver import Resolver  # noqa: PLC0415

    parser: Any = getattr(getattr(yaml, "cyaml", None), "CParser", None)
    if parser is None:
        return yaml.SafeLoader

    def init(self: Any, stream: str) -> None:
        parser.__init__(self, stream)
        Composer.__init__(self)
        Resolver.__init__(self)

    # libyaml's own composer crashes the process at documents that are nested deeply.
    return type("Loader", (Composer, parser, Resolver), {"__init__": init})


def _expanded(node: _Node, sizes: dict[_Node, int]) -> int:
    """Return the number of nodes with aliases expanded. A node that contains itself recurses."""
    if node not in sizes:
        items = node.value if node.id != "scalar" else ()
        children = [child for pair in items for child in pair] if node.id == "mapping" else items
        sizes[node] = 1 + sum(_expanded(child, sizes) for child in children)
    return sizes[node]


def fill_message(message: Message, fields: dict[str, NodeReader]) -> None:
    """Set fields of a message.

    Args:
        message: The message.
        fields: Values by the names of their fields.

    Raises:
        DocumentError: A value isn't of the type of its field.
    """
    for name, reader in fields.items():
        _fill_field(message, message.DESCRIPTOR.fields_by_name[name], reader)


def _fill_field(message: Message, field: Any, reader: NodeReader) -> None:
    value: Any = getattr(message, field.name)
    if isinstance(value, pb.LabelSet):
        for item in reader.items():
            fill_message(value.labels.add(), item.fields_of(pb.Label))
        value.labels.sort(key=attrgetter("name", "value"))
    elif isinstance(value, Message):
        if field.message_type.full_name == "google.protobuf.Duration":
            if nanoseconds := reader.duration():
                value.MergeFrom(duration_proto(nanoseconds))
            return
        if field.full_name in PRESENT:
            value.SetInParent()
        fill_message(value, reader.fields_of(type(value)))
    elif not isinstance(value, (str, bool, int)):
        for item in reader.items():
            if field.message_type is None:
                value.append(item.text())
            else:
                element: Message = value.add()
                fill_message(element, item.fields_of(type(element)))
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, field.name, reader.text())
    elif field.type == FieldDescriptor.TYPE_BOOL:
        setattr(message, field.name, reader.flag() or False)
    elif (enum := field.enum_type or FLAGS.get(field.full_name)) is not None:
        bits = 0 if enum.full_name in _NAMED else _BITS.get(field.type, 31)
        setattr(message, field.name, reader.enum(enum, bits))
    else:
        signed = field.type != FieldDescriptor.TYPE_UINT32
        setattr(message, field.name, reader.integer(_BITS[field.type], signed=signed))


class NodeReader:
    """A value of a YAML document, and its path.

    Each method reads the value as one type; null reads as the type's unset value.

    Raises:
        DocumentError: From every method, if the value is of another type.
    """

    __slots__ = ("_node", "_path")

    def __init__(self, path: str, node: _Node) -> None:
        self._path = path
        self._node = node
        if node.tag not in _TAGS:
            self._fail(f"tag {node.tag} is not allowed")

    @property
    def line(self) -> int:
        """Line of the document, from 1."""
        return int(self._node.start_mark.line) + 1

    def _fail(self, reason: str) -> NoReturn:
        raise DocumentError(self.line, f"{self._path}: {reason}" if self._path else reason)

    def _mismatch(self, wanted: str) -> NoReturn:
        found = _KINDS.get(self._node.id) or quote(self._node.value[:64])
        self._fail(f"expected {wanted}, found {found}")

    def _is_null(self) -> bool:
        return bool(self._node.tag == f"{_TAG}null")

    def _plain(self) -> str:
        """Return the text of a scalar without quotes; it's empty for all other values."""
        is_plain = self._node.id == "scalar" and self._node.style in (None, "")
        return self._node.value if is_plain else ""

    def fields_of(self, message: type[Message]) -> dict[str, NodeReader]:
        """Return the members of a mapping, which are fields of a message."""
        return self.fields(frozenset(message.DESCRIPTOR.fields_by_name))

    def fields(self, known: frozenset[str]) -> dict[str, NodeReader]:
        """Return the members of a mapping, whose keys must be among `known`."""
        if self._is_null():
            return {}
        if self._node.id != "mapping":
            self._mismatch("a mapping")
        members: dict[str, NodeReader] = {}
        merged: list[NodeReader] = []
        for key, value in self._node.value:
            if key.id != "scalar":
                NodeReader(self._path, key)._fail("expected a name as key")
            if key.tag == f"{_TAG}merge":
                merged += NodeReader(self._path, value)._mappings()
                continue
            path = f"{self._path}.{key.value}" if self._path else key.value
            if key.value not in known:
                NodeReader(path, key)._fail(f"unknown key{suggestion(key.value, known)}")
            if key.value in members:
                NodeReader(path, key)._fail("repeated key")
            members[key.value] = NodeReader(path, value)
        for other in merged:
            # The mapping's own members override merged members, and earlier merges later ones.
            members = other.fields(known) | members
        return members

    def _mappings(self) -> list[NodeReader]:
        """Return the mappings which a merge key names."""
        nodes = self._node.value if self._node.id == "sequence" else [self._node]
        if not nodes or any(node.id != "mapping" for node in nodes):
            self._mismatch("mappings to merge")
        return [NodeReader(self._path, node) for node in nodes]

    def is_empty_list(self) -> bool:
        """Tell whether the value is a list without items, rather than null."""
        return self._node.id == "sequence" and not self._node.value

    def items(self) -> list[NodeReader]:
        """Return the items of a list."""
        if self._is_null():
            return []
        if self._node.id != "sequence":
            self._mismatch("a list")
        return [
            NodeReader(f"{self._path}[{index}]", item)
            for index, item in enumerate(self._node.value)
        ]

    def text(self) -> str:
        """Return a string; other scalars give their text in the document."""
        if self._is_null():
            return ""
        if self._node.id != "scalar":
            self._mismatch("a string")
        text: str = self._node.value
        # An escape can spell half of a surrogate pair, which no message can hold.
        if not text.isascii() and _SURROGATE.search(text):
            self._fail("text isn't valid Unicode")
        return text

    def flag(self) -> bool | None:
        """Return a boolean."""
        if self._is_null():
            return None
        value = self._plain().lower()
        if value not in _TRUE | _FALSE:
            self._mismatch("true or false")
        return value in _TRUE

    def _number(self) -> int | None:
        text = self._plain().replace("_", "")
        if _INTEGER.fullmatch(text):
            return int(_OCTAL.sub(r"\g<1>0o", text), 0)
        if _FLOAT.fullmatch(text) and (value := float(text)).is_integer():
            return int(value)
        return None

    def integer(self, bits: int, *, signed: bool = True) -> int:
        """Return an integer of up to `bits`; a float without a fraction is an integer too."""
        if self._is_null():
            return 0
        if (value := self._number()) is None:
            self._mismatch("an integer")
        least, end = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        if not least <= value < end:
            self._fail(f"integer doesn't fit {bits} bits")
        return value

    def duration(self) -> int:
        """Return the nanoseconds of a duration with units, or of a plain integer."""
        if self._is_null() or self._number() is not None:
            return self.integer(64)
        if self._node.id != "scalar":
            self._mismatch("a duration")
        try:
            return parse_duration(self._node.value)
        except ValidationError as error:
            self._fail(str(error))

    def enum(self, enum: EnumDescriptor, number_bits: int) -> int:
        """Return the number of an enum value.

        Args:
            enum: The enum.
            number_bits: Greatest size of a number which stands for a value; 0 allows names only.
        """
        if self._is_null() or (number_bits and self._number() is not None):
            return self.integer(number_bits, signed=False)
        name = self._node.value if self._node.id == "scalar" else ""
        if (value := enum.values_by_name.get(name)) is None:
            names = (each for each in enum.values_by_name if each != "INVALID")
            self._mismatch(f"one of {' '.join(names)}")
        return int(value.number)
