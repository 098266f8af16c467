"""Journals for tests: specs with suitable defaults, and their creation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.client import JournalClient


def journal_spec(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    stores: Sequence[str] = (),
    length: int = 1 << 24,
    codec: pb.CompressionCodec.ValueType = pb.CompressionCodec.SNAPPY,
) -> pb.JournalSpec:
    """Return the spec of a journal with one replica.

    Args:
        name: Name of the journal.
        labels: Values of labels by name.
        stores: URLs of fragment stores, such as `file:///`; without stores, the broker keeps
            content.
        length: Length of fragments in bytes.
        codec: Compression of stored fragments.

    Example:
        journal_spec("test/journal", labels={"content-type": "application/x-ndjson"})
    """
    spec = pb.JournalSpec(
        name=name,
        replication=1,
        fragment=pb.JournalSpec.Fragment(length=length, compression_codec=codec, stores=stores),
    )
    for label in sorted(labels or {}):
        spec.labels.labels.add(name=label, value=(labels or {})[label])
    spec.fragment.refresh_interval.seconds = 60
    spec.fragment.retention.seconds = 3600
    return spec


async def create_journals(client: JournalClient, *specs: pb.JournalSpec) -> int:
    """Create journals, and return the revision of the change.

    Raises:
        ValidationError: A spec is invalid.
        EtcdTransactionFailedError: A journal exists. None was created.

    Cancellation: aborts — the journals may have been created.
    """
    changes = [pb.ApplyRequest.Change(upsert=spec) for spec in specs]
    response = await client.apply(changes)
    return response.header.etcd.revision
