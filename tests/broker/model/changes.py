"""Changes of journals as steps name them, and the requests which they become."""

from __future__ import annotations

from typing import Any, NamedTuple

import gazette_aio.protocol as pb

STORED = "test/stored"
LOCAL = "test/local"
NAMES = (STORED, LOCAL, "test/third")
FRAGMENT_BYTES = 1024
CODECS = (pb.CompressionCodec.NONE, pb.CompressionCodec.GZIP, pb.CompressionCodec.SNAPPY)
Flag = pb.JournalSpec.Flag


class Change(NamedTuple):
    """One change of an Apply, before the revision of its journal is known."""

    kind: str
    name: str
    revision: str
    codec: int = 0
    flags: int = 0
    suspension: str = "keep"
    flush_seconds: int = 0


def spec_of(change: Change) -> pb.JournalSpec:
    """Return the spec which a change writes, other than its suspension."""
    spec = pb.JournalSpec(
        name=change.name, replication=1, flags=change.flags, labels=pb.label_set("codec", "any")
    )
    spec.fragment.length = FRAGMENT_BYTES
    spec.fragment.compression_codec = pb.CompressionCodec.ValueType(
        change.codec or pb.CompressionCodec.NONE
    )
    spec.fragment.refresh_interval.seconds = 3600
    spec.fragment.retention.SetInParent()
    spec.fragment.flush_interval.SetInParent()
    if change.name == STORED:
        spec.fragment.stores.append("file:///")
    return spec


def suspension_of(level: Any, offset: int) -> pb.JournalSpec.Suspend:
    """Return a suspension."""
    return pb.JournalSpec.Suspend(level=level, offset=offset)


def change_error(change: pb.ApplyRequest.Change) -> str | None:
    """Return a part of the text of the error which an invalid change is."""
    name = change.upsert.name or change.delete
    if change.HasField("upsert") == bool(change.delete):
        return ""
    if not change.HasField("upsert") and change.expect_mod_revision == 0:
        return ""
    if change.expect_mod_revision < -1:
        return ""
    return "" if name in ("/bad", "bad") else None


def label_set_of(text: str) -> pb.LabelSet | None:
    """Return labels of a text such as `a=1,b=2`, None if it's empty."""
    pairs = [pair.split("=") for pair in text.split(",")] if text else []
    made = pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in pairs])
    return made if pairs else None
