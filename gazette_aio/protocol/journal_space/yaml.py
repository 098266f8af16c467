"""Journal spaces as YAML."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.journal_space.space import Node
from gazette_aio.protocol.spaces.reader import NodeReader, fill_message, read_document
from gazette_aio.protocol.spaces.writer import message_form, write_document

_NODE_KEYS: Final = frozenset(pb.JournalSpec.DESCRIPTOR.fields_by_name) | {
    *("comment", "delete", "revision", "children")
}


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


def _read_node(reader: NodeReader) -> Node:
    fields = reader.fields(_NODE_KEYS)
    node = Node(line=reader.line)
    if (comment := fields.pop("comment", None)) is not None:
        node.comment = comment.text()
    if (delete := fields.pop("delete", None)) is not None:
        node.delete = delete.flag()
    if (revision := fields.pop("revision", None)) is not None:
        node.revision = revision.integer(64)
    if (children := fields.pop("children", None)) is not None:
        node.children = sorted(map(_read_node, children.items()), key=attrgetter("name"))
    if (fragment := fields.get("fragment")) is not None:
        stores = fragment.fields_of(pb.JournalSpec.Fragment).get("stores")
        node.has_no_stores = stores is not None and stores.is_empty_list()
    fill_message(node.spec, fields)
    return node


def dump_journal_space(node: Node) -> str:
    """Write a tree of journal specs as YAML."""
    return write_document(_node_form(node))


def _node_form(node: Node) -> dict[str, Any]:
    spec = message_form(node.spec)
    if node.has_no_stores:
        spec.setdefault("fragment", {}).setdefault("stores", [])
    form = {
        "comment": node.comment or None,
        "delete": node.delete,
        **spec,
        "revision": node.revision or None,
        "children": list(map(_node_form, node.children)) or None,
    }
    return {name: value for name, value in form.items() if value is not None}
