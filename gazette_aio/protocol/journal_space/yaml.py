"""Journal spaces as YAML."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import duration_proto
from gazette_aio.protocol.journal_space.space import Node
from gazette_aio.protocol.spaces.reader import TreeReader, read_document, read_labels
from gazette_aio.protocol.spaces.writer import (
    MappingWriter,
    text_scalar,
    write_document,
    write_label,
)

if TYPE_CHECKING:
    from gazette_aio.protocol.spaces.yaml_tree import Mapping

_NODE_KEYS: Final = frozenset(
    {"comment", "delete", "name", "replication", "labels", "fragment", "flags"}
    | {"max_append_rate", "suspend", "revision", "children"}
)
_FRAGMENT_KEYS: Final = frozenset(
    {"length", "compression_codec", "stores", "refresh_interval", "retention", "flush_interval"}
    | {"path_postfix_template"}
)
_SUSPEND_KEYS: Final = frozenset({"level", "offset"})


def load_journal_space(text: str, *, source: str = "<string>", validate: bool = True) -> Node:
    """Read a tree of journal specs, whose children and labels may be in any order.

    Unknown keys, repeated keys, and tags other than those of plain types are errors.

    Args:
        text: YAML document.
        source: Name of the document in the texts of errors.
        validate: Whether to check the shape of the tree too.

    Raises:
        ValidationError: The document isn't valid. The text names source, line and path.
    """
    root = read_document(text, source, _read_node) or Node()
    if validate:
        for node, reason in root.find_errors():
            raise ValidationError(f"{source}:{node.line or 1}: {reason}")
    return root


def _read_node(reader: TreeReader) -> Node:
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
                spec.labels.labels.extend(read_labels(value))
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
                node.children = sorted(map(_read_node, value.items()), key=attrgetter("name"))
    return node


def _read_fragment(reader: TreeReader, fragment: pb.JournalSpec.Fragment) -> bool:
    """Fill in `fragment`, and return whether its list of stores is explicitly empty."""
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


def _read_suspend(reader: TreeReader, spec: pb.JournalSpec) -> None:
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


def dump_journal_space(node: Node) -> str:
    """Write a tree of journal specs as YAML."""
    return write_document(_write_node(node))


def _write_node(node: Node) -> Mapping:
    spec = node.spec
    writer = MappingWriter()
    writer.text("comment", node.comment)
    writer.flag("delete", value=node.delete)
    writer.text("name", spec.name)
    writer.integer("replication", spec.replication)
    if spec.labels.labels:
        writer.items("labels", map(write_label, spec.labels.labels))
    fragment = _write_fragment(spec.fragment, has_no_stores=node.has_no_stores)
    if fragment.pairs:
        writer.add("fragment", fragment)
    writer.enum("flags", pb.JournalSpec.Flag, spec.flags)
    writer.integer("max_append_rate", spec.max_append_rate)
    if spec.HasField("suspend"):
        suspend = MappingWriter()
        suspend.enum("level", pb.JournalSpec.Suspend.Level, spec.suspend.level)
        suspend.integer("offset", spec.suspend.offset)
        writer.add("suspend", suspend.mapping)
    writer.integer("revision", node.revision)
    if node.children:
        writer.items("children", map(_write_node, node.children))
    return writer.mapping


def _write_fragment(fragment: pb.JournalSpec.Fragment, *, has_no_stores: bool) -> Mapping:
    writer = MappingWriter()
    writer.integer("length", fragment.length)
    writer.enum("compression_codec", pb.CompressionCodec, fragment.compression_codec)
    if fragment.stores or has_no_stores:
        writer.items("stores", map(text_scalar, fragment.stores))
    for name in ("refresh_interval", "retention", "flush_interval"):
        writer.duration(name, getattr(fragment, name))
    writer.text("path_postfix_template", fragment.path_postfix_template)
    return writer.mapping
