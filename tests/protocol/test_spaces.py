"""The parts of journal spaces which shard spaces share."""

from __future__ import annotations

import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.protocol.spaces.algebra import SpecAlgebra
from gazette_aio.protocol.spaces.reader import TreeReader, read_document, read_labels
from gazette_aio.protocol.spaces.writer import MappingWriter, write_document, write_label

SHARDS = SpecAlgebra[ShardSpec]("sources", "hot_standbys", "max_txn_duration", "disable")
MINUTE = pb.duration_proto(60 * 10**9)


def shard(name: str, **fields: object) -> ShardSpec:
    return ShardSpec(id=name, **fields)


def test_the_algebra_covers_any_spec():
    source = ShardSpec.Source(journal="a/b", min_offset=5)
    lhs = shard("one", sources=[source], hot_standbys=2, max_txn_duration=MINUTE)
    rhs = shard("two", sources=[source], hot_standbys=3, disable=True)
    rhs.labels.CopyFrom(pb.label_set("tag", "x"))

    assert SHARDS.intersect(lhs, rhs) == shard("one", sources=[source])
    assert SHARDS.subtract(lhs, rhs) == shard("one", hot_standbys=2, max_txn_duration=MINUTE)
    union = shard("one", sources=[source], hot_standbys=2, max_txn_duration=MINUTE, disable=True)
    union.labels.CopyFrom(rhs.labels)
    assert SHARDS.union(lhs, rhs) == union


def test_an_unset_duration_is_the_same_as_zero():
    zero = shard("one", max_txn_duration=pb.duration_proto(0))
    assert SHARDS.subtract(zero, shard("two")) == shard("one")
    assert SHARDS.union(zero, shard("two", max_txn_duration=MINUTE)).max_txn_duration == MINUTE


def test_documents_round_trip():
    writer = MappingWriter()
    writer.text("id", "on")
    writer.duration("max_txn_duration", MINUTE)
    writer.integer("hot_standbys", 0)
    writer.flag("disable", value=False)
    writer.items("labels", map(write_label, pb.label_set("tag", "", "env:prefix", "p").labels))
    text = write_document(writer.mapping)

    assert text == (
        'id: "on"\nmax_txn_duration: 1m0s\ndisable: false\nlabels:\n'
        '- name: env\n  value: p\n  prefix: true\n- name: tag\n  value: ""\n'
    )

    def read(reader: TreeReader) -> list[object]:
        fields = reader.fields(frozenset({"id", "max_txn_duration", "disable", "labels"}))
        return [
            fields["id"].text(),
            fields["max_txn_duration"].duration(),
            fields["disable"].flag(),
            pb.LabelSet(labels=read_labels(fields["labels"])),
        ]

    expected = ["on", 60 * 10**9, False, pb.label_set("tag", "", "env:prefix", "p")]
    assert read_document(text, "x.yaml", read) == expected
    assert read_document("", "x.yaml", read) is None
    with pytest.raises(
        pb.ValidationError, match=r"^x\.yaml:2: idd: unknown key: did you mean 'id'\?$"
    ):
        read_document("\nidd: x", "x.yaml", read)
