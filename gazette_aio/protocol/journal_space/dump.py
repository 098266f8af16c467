"""Journal spaces written as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.spaces.writer import (
    MappingWriter,
    text_scalar,
    write_document,
    write_label,
)

if TYPE_CHECKING:
    from gazette_aio.protocol.journal_space.space import Node
    from gazette_aio.protocol.spaces.yaml_tree import Mapping


def dump_journal_space(node: Node) -> str:
    """Write a tree of journal specs as YAML."""
    return write_document(_node(node))


def _node(node: Node) -> Mapping:
    spec = node.spec
    writer = MappingWriter()
    writer.text("comment", node.comment)
    writer.flag("delete", value=node.delete)
    writer.text("name", spec.name)
    writer.integer("replication", spec.replication)
    if spec.labels.labels:
        writer.items("labels", map(write_label, spec.labels.labels))
    fragment = _fragment(spec.fragment, has_no_stores=node.has_no_stores)
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
        writer.items("children", map(_node, node.children))
    return writer.mapping


def _fragment(fragment: pb.JournalSpec.Fragment, *, has_no_stores: bool) -> Mapping:
    writer = MappingWriter()
    writer.integer("length", fragment.length)
    writer.enum("compression_codec", pb.CompressionCodec, fragment.compression_codec)
    if fragment.stores or has_no_stores:
        writer.items("stores", map(text_scalar, fragment.stores))
    for name in ("refresh_interval", "retention", "flush_interval"):
        writer.duration(name, getattr(fragment, name))
    writer.text("path_postfix_template", fragment.path_postfix_template)
    return writer.mapping
