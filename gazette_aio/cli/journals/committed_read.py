"""Committed messages of journals, as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import msgspec

from gazette_aio.message import ReadCommittedIter, raw_adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    import gazette_aio.protocol as pb
    from gazette_aio.cli.journals.multi_read import ReadPlan
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient
    from gazette_aio.message import Envelope

    Source = str | pb.LabelSelector
    MessageForm = Callable[[Envelope[bytes]], bytes]
    """Returns the printed form of a message, without the end of its line."""


async def print_committed(
    client: JournalClient,
    source: Source,
    plan: ReadPlan,
    *,
    uuid_path: str,
    form: MessageForm,
    progress: Progress,
) -> None:
    """Print the committed messages of journals, which are JSON documents, each once.

    Args:
        client: Client to use.
        source: Name of a journal, or a selector.
        plan: How to read.
        uuid_path: Path of members to the UUID of a message.
        form: Form in which messages are printed.
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
                sys.stdout.buffer.write(form(envelope) + b"\n")
            sys.stdout.buffer.flush()
            progress.advance(sum(each.end - each.begin for each in envelopes))


def compact(envelope: Envelope[bytes]) -> bytes:
    """Return a message as it was published."""
    return bytes(envelope.message)


def indented(envelope: Envelope[bytes]) -> bytes:
    """Return a message with indents."""
    return json.dumps(json.loads(compact(envelope)), indent=2, ensure_ascii=False).encode()


def json_line(envelope: Envelope[bytes]) -> bytes:
    """Return a message with its place, in one line."""
    line = {
        "journal": envelope.journal,
        "begin": envelope.begin,
        "end": envelope.end,
        # A message of a framing that isn't of lines may have several.
        "message": msgspec.Raw(msgspec.json.format(compact(envelope), indent=-1)),
    }
    return msgspec.json.encode(line)
