"""Readers of a shard: of its sources, or by a MessageProducer."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.aio.turns import Turns
from gazette_aio.client.listing.calls import outlasted
from gazette_aio.client.retry import backoff
from gazette_aio.client.rpc.route_cache import NoopDispatchRouter
from gazette_aio.consumer.transactions.explain import explained, failure_of
from gazette_aio.consumer.transactions.replays import JournalReplay, ProducerReplay
from gazette_aio.message import Envelope
from gazette_aio.message.envelopes.splitter import JournalSplitter
from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.decoding import EnvelopeDecoder
from gazette_aio.message.reading.sources import fetch_specs
from gazette_aio.message.uuid import OUTSIDE_TXN, ProducerID
from gazette_aio.protocol.errors import (
    FramingError,
    OffsetJumpError,
    UnrecognizedContentTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.channel import MessageChannel
    from gazette_aio.consumer.transactions.message_errors import MessageErrors
    from gazette_aio.consumer.transactions.replays import Replay
    from gazette_aio.message import ReplayRange
    from gazette_aio.message.envelopes.origin import JournalFormat, Origin
    from gazette_aio.message.reading.formats import JournalFormats
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

_logger = logging.getLogger(__name__)


class Readers(Protocol):
    """Fills the channel of a shard with messages, until closed."""

    def start(self) -> None:
        """Begin to read."""
        ...

    def replay(self, span: ReplayRange) -> Replay:
        """Return the messages of a range that was read before."""
        ...

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — reading ends anyway.
        """
        ...


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


class SourceReaders(Owner):
    """Readers of a shard's sources, a task of each.

    Args:
        client: Client to read with.
        offsets: Offset to read each source from.
        formats: Formats of the sources.
        decoders: Decoders of messages, to which those of the sources are added.
        channel: Takes the messages.
        errors: Told of messages whose UUID can't be read.
    """

    def __init__(
        self,
        client: JournalClient,
        offsets: Mapping[str, int],
        formats: JournalFormats[Any],
        decoders: dict[Origin, EnvelopeDecoder[Any]],
        channel: MessageChannel,
        *,
        errors: MessageErrors,
    ) -> None:
        self._client = client
        self._offsets = offsets
        self._formats = formats
        self._decoders = decoders
        self._channel = channel
        self._errors = errors
        self._direct = reads_directly(client)
        self._known: dict[str, JournalFormat[Any]] = {}
        self._tasks = {journal: OwnedTask() for journal in offsets}
        self._opening = OwnedTask()

    def start(self) -> None:
        """Begin to read."""
        if self._offsets:
            self._opening.start(self._open(), "gazette shard sources")

    async def _open(self) -> None:
        names, channel = list(self._offsets), self._channel
        try:
            specs = await outlasted(self._client, lambda: fetch_specs(self._client, names))
        except Exception as error:  # noqa: BLE001 - delivered.
            channel.end(explained("sources", error))
            return
        name = ""
        try:
            for name, spec in zip(names, specs, strict=True):
                self._known[name] = self._formats.of(name, spec)
        except UnrecognizedContentTypeError as error:
            channel.end(explained(f"source {name}", error.__cause__ or error))
            return
        except BaseException as error:  # noqa: BLE001 - delivered.
            channel.end(explained(f"adapter() of {name}", failure_of(error, "it was cancelled")))
            return
        for name, known in self._known.items():
            decoder: EnvelopeDecoder[Any] = EnvelopeDecoder(
                known.adapter, skip_acks=False, start_clock=0
            )
            self._decoders[known.origin] = decoder
            self._tasks[name].start(self._read(name, known), f"gazette shard source {name}")

    def _splitter(self, known: JournalFormat[Any], offset: int) -> JournalSplitter:
        decoder = known.framing.decoder(offset, max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
        builder = EnvelopeBuilder(known.journal, known.adapter, origin=known.origin)
        return JournalSplitter(decoder, builder)

    async def _read(self, name: str, known: JournalFormat[Any]) -> None:
        offset = self._offsets[name]
        splitter, channel = self._splitter(known, offset), self._channel
        request = pb.ReadRequest(journal=name, offset=offset, block=True, do_not_proxy=self._direct)
        reader = self._client.read(request, timeout=math.inf)
        pace = Turns()
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
                    extra = {"journal": name, "from": splitter.offset, "to": jump.offset}
                    _logger.warning("source journal offset jump", extra=extra)
                    splitter.jump(jump.offset)
                    continue
                refusals = 0
                splitter.feed(chunk, reader.offset - len(chunk))
                del chunk  # Idle shards retain no content.
                while run := self._next_run(splitter, known):
                    await channel.send_run(run)
                    await pace.rest()  # The channel may take all that's at hand.
        except Exception as error:  # noqa: BLE001 - delivered.
            channel.end(explained(f"reading {name} at offset {splitter.offset}", error))
        finally:
            await reader.aclose()

    def _next_run(
        self, splitter: JournalSplitter, known: JournalFormat[Any]
    ) -> Sequence[Envelope[Any]]:
        """Return the next messages. One whose UUID can't be read stands for itself, without any."""
        try:
            return splitter.next_run()
        except FramingError as error:
            if error.begin >= error.end:
                raise
            place = known.journal, error.begin, error.end
            nobody = ProducerID(bytes(6))
            bad = Envelope[Any](*place, 0, OUTSIDE_TXN, nobody, None, known.origin, UUID(int=0))
            self._errors.undecodable(bad, _reason(error))
            return [bad]

    def replay(self, span: ReplayRange) -> Replay:
        """Return the messages of a range that was read before."""
        splitter = self._splitter(self._known[span.journal], span.begin)
        return JournalReplay(self._client, span, splitter, direct=self._direct)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._opening.aclose()
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            await task.aclose()


def _reason(error: FramingError) -> Exception:
    """Return the error without the text that tells the place."""
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else error


@dataclass(frozen=True, slots=True)
class ProducedSources:
    """Shard and store that a MessageProducer reads for."""

    hooks: Hooks
    shard: Shard
    store: Store
    checkpoint: Checkpoint


class ProducerReader(Owner):
    """Reading by a MessageProducer.

    Args:
        sources: What it reads for.
        channel: Takes the messages.
        clock: Returns the present time, in seconds.
    """

    def __init__(
        self, sources: ProducedSources, channel: MessageChannel, clock: Callable[[], float]
    ) -> None:
        self._sources = sources
        self._channel = channel
        self._clock = clock
        self._task = OwnedTask()

    def start(self) -> None:
        """Begin to read."""
        self._task.start(self._read(), f"gazette shard {self._sources.shard.id} producer")

    async def _read(self) -> None:
        of = self._sources
        try:
            await of.hooks.read_messages(of.shard, of.store, of.checkpoint, self._channel)
        except BaseException as error:  # noqa: BLE001 - delivered.
            self._channel.end(explained("read_messages()", failure_of(error, "it was cancelled")))
        else:
            self._channel.end()

    def replay(self, span: ReplayRange) -> Replay:
        """Return the messages of a range that was read before."""
        of = self._sources
        messages = of.hooks.replay_range(of.shard, of.store, *span)
        return ProducerReplay(messages, self._clock)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._task.aclose()
