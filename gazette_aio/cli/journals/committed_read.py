"""Committed messages of journals, as JSON."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
from typing import TYPE_CHECKING

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.read_offsets import is_checkpoint, parse_offsets
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.message import ReadCommittedIter, SequencerCheckpoint, raw_adapter
from gazette_aio.protocol.shown import shown_json, shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.cli.journals.raw_read import ReadPlan
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient
    from gazette_aio.message import Envelope

    Source = str | pb.LabelSelector
    MessageForm = Callable[[Envelope[bytes]], bytes]
    """Returns the printed form of a message, without the end of its line."""


class CommittedRead:
    """Prints the committed messages of journals, which are JSON documents, each once.

    Args:
        client: Client to use.
        source: Name of a journal, or a selector.
        plan: How to read.
        begin: Where to begin.
        uuid_path: Path of members to the UUID of a message.
        form: Form in which messages are printed.
        progress: Shows bytes.

    Raises:
        ConfigurationError: Options contradict each other.
    """

    def __init__(
        self,
        client: JournalClient,
        source: Source,
        plan: ReadPlan,
        begin: Begin,
        *,
        uuid_path: str,
        form: MessageForm,
        progress: Progress,
    ) -> None:
        self._form = form
        self._count = plan.count
        self._progress = progress
        since = plan.begin_mod_time
        self._messages = ReadCommittedIter(
            source,
            raw_adapter(uuid_path),
            client=client,
            checkpoint=begin.checkpoint,
            start=dt.datetime.fromtimestamp(since, dt.UTC) if since else begin.start,
            block=plan.block,
            skip_acks=True,
            direct=plan.direct,
        )

    async def run(self) -> None:
        """Print messages up to write heads, or the plan's count of them, or forever.

        Raises:
            GazetteError: A read failed for good, or a message is invalid.
            OSError: Writing failed: `checkpoint()` may cover messages that weren't printed.

        Cancellation: aborts — all messages that `checkpoint()` covers are printed.
        """
        async with self._messages as messages:
            if self._count is None:
                async for envelopes in messages.batches():
                    self._print(envelopes)
                return
            # `checkpoint()` would cover the rest of a batch.
            for _ in range(self._count):
                if (envelope := await anext(messages, None)) is None:
                    return
                self._print([envelope])

    def _print(self, envelopes: Sequence[Envelope[bytes]]) -> None:
        for envelope in envelopes:
            sys.stdout.buffer.write(self._form(envelope) + b"\n")
        sys.stdout.buffer.flush()
        self._progress.advance(sum(each.end - each.begin for each in envelopes))

    def checkpoint(self) -> str:
        """Return a line of JSON from which a read resumes after the messages that were printed."""
        return self._messages.checkpoint().to_json() + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Where a read of committed messages begins."""

    checkpoint: SequencerCheckpoint = dataclasses.field(default_factory=SequencerCheckpoint)
    start: dict[str, int] | None = None
    """Offsets of journals that aren't in the checkpoint."""


def parse_begin(text: str, *, source: str) -> Begin:
    """Return where a read begins, from a file of `CommittedRead.checkpoint()` or of offsets.

    Args:
        text: Content of the file.
        source: Name of the file in errors.

    Raises:
        InputError: The file has neither a checkpoint nor offsets.
    """
    if not is_checkpoint(text):
        return Begin(start=parse_offsets(text, source=source))
    try:
        return Begin(SequencerCheckpoint.from_json(text))
    except pb.ValidationError as error:
        raise InputError(f"{source}: {error}") from None


def compact(envelope: Envelope[bytes]) -> bytes:
    """Return a message as it was published."""
    return bytes(envelope.message)


def indented(envelope: Envelope[bytes]) -> bytes:
    """Return a message with indents, for people, or its text if its JSON is invalid."""
    message = compact(envelope)
    try:
        return shown_json(msgspec.json.format(message, indent=2).decode()).encode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return shown_text(message.decode(errors="backslashreplace"), keep="\n\t").encode()


def json_line(envelope: Envelope[bytes]) -> bytes:
    """Return a message with its journal and offsets, in one line. Invalid JSON becomes a string."""
    published = compact(envelope)
    message: msgspec.Raw | str
    try:
        # A message of a framing that isn't of lines may have several.
        message = msgspec.Raw(msgspec.json.format(published, indent=-1))
        published.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = published.decode(errors="replace")
    line = {
        "journal": envelope.journal,
        "begin": envelope.begin,
        "end": envelope.end,
        "message": message,
    }
    return shown_json(msgspec.json.encode(line).decode()).encode()
