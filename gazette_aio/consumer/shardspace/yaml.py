"""Shard spaces as YAML."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.shardspace.space import Set, Shard
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.protocol.go.text import duration_proto
from gazette_aio.protocol.spaces.reader import read_document, read_labels
from gazette_aio.protocol.spaces.writer import MappingWriter, write_document, write_label

if TYPE_CHECKING:
    from gazette_aio.protocol.spaces.reader import TreeReader
    from gazette_aio.protocol.spaces.yaml_tree import Mapping

_SET_KEYS: Final = frozenset({"common", "shards"})
_SPEC_KEYS: Final = frozenset(ShardSpec.DESCRIPTOR.fields_by_name)
_COMMON_KEYS: Final = _SPEC_KEYS | {"delete"}
_SHARD_KEYS: Final = _SPEC_KEYS | {"comment", "delete", "revision"}
_SOURCE_KEYS: Final = frozenset({"journal", "min_offset"})


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


def _read_set(reader: TreeReader) -> Set:
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


def _read_delete(fields: dict[str, TreeReader]) -> bool | None:
    delete = fields.pop("delete", None)
    return None if delete is None else delete.flag()


def _read_shard(reader: TreeReader, *, delete: bool | None) -> Shard:
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


def _read_spec(fields: dict[str, TreeReader], spec: ShardSpec) -> None:
    for name, value in fields.items():
        match name:
            case "id" | "recovery_log_prefix" | "hint_prefix":
                setattr(spec, name, value.text())
            case "sources":
                spec.sources.extend(
                    sorted(map(_read_source, value.items()), key=attrgetter("journal"))
                )
            case "labels":
                spec.labels.labels.extend(read_labels(value))
            case "disable" | "disable_wait_for_ack":
                setattr(spec, name, value.flag() or False)
            case "hint_backups":
                spec.hint_backups = value.integer(32)
            case "max_txn_duration" | "min_txn_duration":
                if nanoseconds := value.duration():
                    getattr(spec, name).CopyFrom(duration_proto(nanoseconds))
            case _:
                setattr(spec, name, value.integer(32, signed=False))


def _read_source(reader: TreeReader) -> ShardSpec.Source:
    fields = reader.fields(_SOURCE_KEYS)
    source = ShardSpec.Source()
    if "journal" in fields:
        source.journal = fields["journal"].text()
    if "min_offset" in fields:
        source.min_offset = fields["min_offset"].integer(64)
    return source


def dump_shard_space(space: Set) -> str:
    """Write a set of shard specs as YAML."""
    common, writer = MappingWriter(), MappingWriter()
    _write_spec(common, space.common)
    writer.add("common", common.mapping)
    writer.items("shards", map(_write_shard, space.shards))
    return write_document(writer.mapping)


def _write_shard(shard: Shard) -> Mapping:
    writer = MappingWriter()
    writer.text("comment", shard.comment)
    writer.flag("delete", value=shard.delete)
    writer.text("id", shard.id)
    _write_spec(writer, shard.spec)
    writer.integer("revision", shard.revision)
    return writer.mapping


def _write_spec(writer: MappingWriter, spec: ShardSpec) -> None:
    if spec.sources:
        writer.items("sources", map(_write_source, spec.sources))
    writer.text("recovery_log_prefix", spec.recovery_log_prefix)
    writer.text("hint_prefix", spec.hint_prefix)
    writer.integer("hint_backups", spec.hint_backups)
    writer.duration("max_txn_duration", spec.max_txn_duration)
    writer.duration("min_txn_duration", spec.min_txn_duration)
    writer.flag("disable", value=spec.disable or None)
    writer.integer("hot_standbys", spec.hot_standbys)
    if spec.labels.labels:
        writer.items("labels", map(write_label, spec.labels.labels))
    writer.flag("disable_wait_for_ack", value=spec.disable_wait_for_ack or None)
    writer.integer("ring_buffer_size", spec.ring_buffer_size)
    writer.integer("read_channel_size", spec.read_channel_size)


def _write_source(source: ShardSpec.Source) -> Mapping:
    writer = MappingWriter()
    writer.text("journal", source.journal)
    writer.integer("min_offset", source.min_offset)
    return writer.mapping
