"""Messages of the sources of a shard, each of which has a task that reads it."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.listing.calls import outlasted
from gazette_aio.client.retry import backoff
from gazette_aio.client.rpc.route_cache import NoopDispatchRouter
from gazette_aio.consumer.transactions.explain import explained, failure_of
from gazette_aio.consumer.transactions.intake import Arrival, Intake, IntakeEngine
from gazette_aio.message import Envelope
from gazette_aio.message.reading.envelopes import EnvelopeMaker
from gazette_aio.message.reading.sources import fetch_specs
from gazette_aio.message.uuid import OUTSIDE_TXN, ProducerID
from gazette_aio.protocol.errors import (
    GazetteError,
    OffsetJumpError,
    ReplayError,
    UnrecognizedContentTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.consumer.transactions.intake import Content, Envelopes
    from gazette_aio.consumer.transactions.message_errors import MessageErrors
    from gazette_aio.message.core import Batch
    from gazette_aio.message.envelopes.content import ContentReplay, Refusal
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.envelopes.outputs import BadMessages, Made
    from gazette_aio.message.reading.formats import JournalFormats
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

_logger = logging.getLogger(__name__)

_NOBODY: Final = ProducerID(bytes(6))


def reads_directly(client: JournalClient) -> bool:
    """Return whether a client fetches fragments itself: it does if it keeps routes of journals."""
    return not isinstance(client.router, NoopDispatchRouter)


def offsets_to_read(spec: ShardSpec, checkpoint: Checkpoint) -> dict[str, int]:
    """Return the offset to read each source from: of the checkpoint, but no less than its least."""
    sources = checkpoint.sources
    return {
        source.journal: max(
            sources[source.journal].read_through if source.journal in sources else 0,
            source.min_offset,
        )
        for source in spec.sources
    }


class _Maker(EnvelopeMaker[Any]):
    """Makes envelopes of all messages. One that can't be read is alone, and not decoded."""

    def __init__(
        self, journal_format: JournalFormat[Any], bad: BadMessages, errors: MessageErrors
    ) -> None:
        super().__init__(journal_format, bad)
        self._errors = errors

    def make(self, batch: Batch, start: int) -> tuple[list[Made[Envelopes]], int]:
        """Return envelopes of the next messages of a batch."""
        envelopes, error = self.envelopes(batch, start)
        made = start + len(envelopes)
        outputs: list[Made[Envelopes]] = [(envelopes, made)] if envelopes else []
        if error is not None:
            bad = self.encoded(batch, made, made + 1)
            made += 1
            self._errors.undecodable(bad[0], error)
            outputs.append((bad, made))
        return outputs, made

    def refuse(self, refusal: Refusal) -> Sequence[Envelopes]:
        """Return bytes that stand for a message, without any UUID."""
        if refusal.begin >= refusal.end:
            raise refusal.cause
        bad = Envelope[Any](
            self._format.journal,
            refusal.begin,
            refusal.end,
            0,
            OUTSIDE_TXN,
            _NOBODY,
            None,
            self._format.origin,
            UUID(int=0),
        )
        self._errors.undecodable(bad, refusal.cause)
        return [[bad]]


class _Engine(IntakeEngine):
    """Contents of the sources, and their states."""

    def __init__(self, spec: ShardSpec, checkpoint: Checkpoint, errors: MessageErrors) -> None:
        super().__init__(spec, checkpoint)
        self._errors = errors

    def maker_of(self, journal_format: JournalFormat[Any]) -> _Maker:
        """Return the maker of envelopes of a journal."""
        return _Maker(journal_format, self.bad, self._errors)


class _Source(Arrival):
    """A journal that is read, a chunk at a time."""

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self.wants: asyncio.Event = asyncio.Event()
        """Set while all of its content is handled."""
        self.wants.set()

    def feed(self) -> bool:
        """Have the next chunk fed, once it's read."""
        self.wants.set()
        return False


@dataclass(slots=True)
class _Again:
    """Content that is read again, up to `end`."""

    client: JournalClient
    journal: str
    reader: RetryReader
    through: int
    end: int

    async def next(self) -> bytes:
        """Return the next content, or none at the end.

        Raises:
            ReplayError: Content can't be read, or isn't there.
        """
        try:
            chunk = await next_chunk(self.client, self.journal, self.reader)
        except OffsetJumpError as jump:
            raise self._missing(jump.offset) from jump
        except GazetteError as error:
            raise ReplayError(f"replay reader: {error}") from error
        if chunk:
            self.through = self.reader.offset
        elif self.through < self.end:
            # Wire: a broker doesn't report a hole if all the rest of the range lies in it.
            raise self._missing(self.end)
        else:
            await self.reader.aclose()
        return chunk

    def _missing(self, end: int) -> ReplayError:
        return ReplayError(f"replay reader: no content from {self.through} to {end}")


async def next_chunk(client: JournalClient, journal: str, reader: RetryReader) -> bytes:
    """Return the next content of a reader of a journal's part, or none at its end.

    A suspended journal is resumed: nobody else may append for long, and the shard would consume
    nothing meanwhile.

    Cancellation: safe.
    """
    while True:
        try:
            return await anext(reader, b"")
        except pb.SuspendedError:
            await client.append(journal, timeout=math.inf)


class SourceIntake(Intake):
    """Intake of the framework's own reading. See `Intake`.

    Args:
        client: Client to read with.
        spec: Spec of the shard.
        checkpoint: Checkpoint to read from.
        formats: Formats of the sources.
        errors: Told of messages that can't be read.
        wake: Called when there's input.
    """

    takes_turns = True

    def __init__(
        self,
        client: JournalClient,
        spec: ShardSpec,
        checkpoint: Checkpoint,
        formats: JournalFormats[Any],
        *,
        errors: MessageErrors,
        wake: Callable[[], object],
    ) -> None:
        super().__init__(_Engine(spec, checkpoint, errors), wake)
        self.offsets: dict[str, int] = offsets_to_read(spec, checkpoint)
        """Offset to begin to read each source at."""
        self._client = client
        self._formats = formats
        self._is_direct = reads_directly(client)
        self._again: _Again | None = None
        self._tasks = {journal: OwnedTask() for journal in self.offsets}
        self._opening = OwnedTask()

    def start(self) -> None:
        """Begin to read."""
        if self.offsets:
            self._opening.start(self._open(), "gazette shard sources")

    # Tasks that read.

    async def _open(self) -> None:
        names = list(self.offsets)
        try:
            specs = await outlasted(self._client, lambda: fetch_specs(self._client, names))
        except Exception as error:  # noqa: BLE001 - delivered.
            self._put(explained("sources", error))
            return
        name, sources = "", list[_Source]()
        try:
            for name, spec in zip(names, specs, strict=True):
                content = self._engine.begin(self._formats.of(name, spec), self.offsets[name])
                sources.append(_Source(content))
        except UnrecognizedContentTypeError as error:
            self._put(explained(f"source {name}", error.__cause__ or error))
            return
        except BaseException as error:  # noqa: BLE001 - delivered.
            self._put(explained(f"adapter() of {name}", failure_of(error, "it was cancelled")))
            return
        for source in sources:
            name = source.content.journal
            self._tasks[name].start(self._read(source), f"gazette shard source {name}")

    async def _read(self, source: _Source) -> None:
        content, wants = source.content, source.wants
        name = content.journal
        reader = self._reader(name, content.offset)
        refusals = 0
        try:
            while True:
                try:
                    chunk = await anext(reader)
                except pb.SuspendedError:
                    # Brokers suspend idle journals. Nothing is missed: an append resumes them.
                    if not refusals:
                        _logger.info("source journal is suspended", extra={"journal": name})
                    await asyncio.sleep(backoff(refusals))
                    refusals += 1
                    continue
                except OffsetJumpError as jump:
                    await wants.wait()
                    extra = {"journal": name, "from": content.offset, "to": jump.offset}
                    _logger.warning("source journal offset jump", extra=extra)
                    content.jump(jump.offset)
                    continue
                refusals = 0
                await wants.wait()
                content.feed(chunk, reader.offset - len(chunk))
                wants.clear()
                del chunk  # Idle shards retain no content.
                self._put(source)
        except BaseException as error:  # noqa: BLE001 - delivered.
            failure = failure_of(error, "it was cancelled")
            await wants.wait()
            self._put(explained(f"reading {name} at offset {content.offset}", failure))
        finally:
            await reader.aclose()

    def _reader(self, journal: str, offset: int, end_offset: int = 0) -> RetryReader:
        request = pb.ReadRequest(
            journal=journal,
            offset=offset,
            end_offset=end_offset,
            block=True,
            do_not_proxy=self._is_direct,
        )
        return self._client.read(request, timeout=math.inf)

    async def _feed_again(self, content: Content, replay: ContentReplay) -> bool:
        if span := replay.open():
            reader = self._reader(content.journal, *span)
            self._again = _Again(self._client, content.journal, reader, *span)
        again = self._again
        assert again is not None, "the replay was begun"
        if chunk := await again.next():
            replay.feed(chunk, again.through - len(chunk))
        else:
            self._again = None
        return bool(chunk)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._opening.aclose()
        for task in self._tasks.values():
            task.cancel()
        try:
            for task in self._tasks.values():
                await task.aclose()
        finally:
            if self._again is not None:
                await self._again.reader.aclose()
