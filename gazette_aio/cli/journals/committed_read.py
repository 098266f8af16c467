"""Committed messages of journals, as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from gazette_aio.message import ReadCommittedIter, raw_adapter

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.cli.journals.multi_read import ReadPlan
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient

    Source = str | pb.LabelSelector


async def print_committed(
    client: JournalClient,
    source: Source,
    plan: ReadPlan,
    *,
    uuid_path: str,
    pretty: bool,
    progress: Progress,
) -> None:
    """Print the committed messages of journals, which are JSON documents, each once.

    Args:
        client: Client to use.
        source: Name of a journal, or a selector.
        plan: How to read.
        uuid_path: Path of members to the UUID of a message.
        pretty: Whether to indent messages.
        progress: Shows bytes.

    Raises:
        GazetteError: A read failed for good, or a message is invalid.

    Cancellation: aborts.
    """
    messages = ReadCommittedIter(
        source,
        raw_adapter(uuid_path),
        client=client,
        block=plan.block,
        skip_acks=True,
        direct=plan.direct,
    )
    async with messages:
        async for envelopes in messages.batches():
            for envelope in envelopes:
                content = bytes(envelope.message or b"")
                sys.stdout.buffer.write((_indented(content) if pretty else content) + b"\n")
            sys.stdout.buffer.flush()
            progress.advance(sum(each.end - each.begin for each in envelopes))


def _indented(content: bytes) -> bytes:
    return json.dumps(json.loads(content), indent=2, ensure_ascii=False).encode()
