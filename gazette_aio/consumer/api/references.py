"""Check of the journals that shards refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.listing.calls import get_journal
from gazette_aio.message.framing.registry import framing_by_content_type
from gazette_aio.protocol.journal import strip_meta

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient
    from gazette_aio.protocol import consumer as pc


async def verify_referenced_journals(
    client: JournalClient, request: pc.ApplyRequest, *, timeout: float | None = None
) -> None:
    """Check that journals of shards to be applied exist, and have suitable content types.

    Sources must have framed messages, and recovery logs the content type of recovery logs. Shards
    to be deleted aren't checked.

    Args:
        client: Client of the journals.
        request: The changes.
        timeout: Seconds to wait for each listing, as of `list_all_journals()`.

    Raises:
        ValidationError: A journal doesn't exist, or has another content type.
        GazetteError: As `list_all_journals()`.

    Cancellation: safe.
    """
    known: dict[str, str] = {}

    async def content_type(shard: str, name: str) -> str:
        key = strip_meta(name)
        if key not in known:
            try:
                listed = await get_journal(client, name, timeout=timeout)
            except pb.JournalNotFoundError:
                raise pb.ValidationError(
                    f"named journal does not exist ({name})", (f"Shard[{shard}]",)
                ) from None
            known[key] = pb.value_of(listed.spec.labels, pb.CONTENT_TYPE)
        return known[key]

    for change in request.changes:
        if not change.HasField("upsert"):
            continue
        shard = change.upsert.id
        for source in change.upsert.sources:
            found = await content_type(shard, source.journal)
            try:
                framing_by_content_type(found)
            except pb.UnrecognizedContentTypeError as error:
                where = f"Shard[{shard}].Sources[{source.journal}] message framing"
                raise pb.ValidationError(str(error), (where,)) from None
        if not (log := pb.consumer.recovery_log(change.upsert)):
            continue
        found = await content_type(shard, log)
        if found != pb.CONTENT_TYPE_RECOVERY_LOG:
            raise pb.ValidationError(
                f"expected {log} to have {pb.CONTENT_TYPE} {pb.CONTENT_TYPE_RECOVERY_LOG} "
                f"but was '{found}'",
                (f"Shard[{shard}]",),
            )
