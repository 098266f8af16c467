"""Shard spaces as YAML."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from gazette_aio.consumer.shardspace.space import Set, Shard
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.protocol.spaces.reader import NodeReader, fill_message, read_document
from gazette_aio.protocol.spaces.writer import message_form, write_document

_SET_KEYS: Final = frozenset({"common", "shards"})
_SPEC_KEYS: Final = frozenset(ShardSpec.DESCRIPTOR.fields_by_name)
_COMMON_KEYS: Final = _SPEC_KEYS | {"delete"}
_SHARD_KEYS: Final = _SPEC_KEYS | {"comment", "delete", "revision"}


def load_shard_space(text: str, *, source: str = "<string>") -> Set:
    """Read a set of shard specs, whose sources and labels may be in any order.

    Unknown keys, repeated keys, and tags other than those of plain types are errors. An ID of
    `common` is ignored. A `delete` of `common` is that of the shards that have none; Gazette's own
    tools refuse it.

    Args:
        text: YAML document.
        source: Name of the document in the texts of errors.

    Raises:
        ValidationError: The document isn't valid. The text names source, line and path.
    """
    return read_document(text, source, _read_set) or Set()


def _read_set(reader: NodeReader) -> Set:
    fields = reader.fields(_SET_KEYS)
    out = Set()
    delete: bool | None = None
    if "common" in fields:
        common = fields["common"].fields(_COMMON_KEYS)
        delete = _read_delete(common)
        _read_spec(common, out.common)
        # Wire: other tools accept and ignore it, too.
        out.common.ClearField("id")
    if "shards" in fields:
        out.shards = [_read_shard(item, delete=delete) for item in fields["shards"].items()]
    return out


def _read_delete(fields: dict[str, NodeReader]) -> bool | None:
    delete = fields.pop("delete", None)
    return None if delete is None else delete.flag()


def _read_shard(reader: NodeReader, *, delete: bool | None) -> Shard:
    fields = reader.fields(_SHARD_KEYS)
    shard = Shard()
    if (comment := fields.pop("comment", None)) is not None:
        shard.comment = comment.text()
    own = _read_delete(fields)
    shard.delete = delete if own is None else own
    if (revision := fields.pop("revision", None)) is not None:
        shard.revision = revision.integer(64)
    _read_spec(fields, shard.spec)
    return shard


def _read_spec(fields: dict[str, NodeReader], spec: ShardSpec) -> None:
    fill_message(spec, fields)
    spec.sources.sort(key=attrgetter("journal"))


def dump_shard_space(space: Set) -> str:
    """Write a set of shard specs as YAML."""
    common = message_form(space.common)
    common.pop("id", None)
    return write_document({"common": common, "shards": list(map(_shard_form, space.shards))})


def _shard_form(shard: Shard) -> dict[str, Any]:
    form = {
        "comment": shard.comment or None,
        "delete": shard.delete,
        **message_form(shard.spec),
        "revision": shard.revision or None,
    }
    return {name: value for name, value in form.items() if value is not None}
