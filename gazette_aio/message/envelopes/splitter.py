"""Splitter of a journal's content into runs of envelopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.message.envelopes.stamps import UNIFORM_RUN
from gazette_aio.message.framing import Frames
from gazette_aio.protocol.errors import FramingError, UnexpectedEOFError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
    from gazette_aio.message.envelopes.uniform_run import ProducerRun
    from gazette_aio.message.framing import Decoder

RUN_LIMIT = 1024
"""Largest number of messages that are processed without a pause."""


class JournalSplitter:
    """Splits the content of one journal into envelopes, and continues behind errors.

    Args:
        decoder: Decoder of the journal's framing.
        builder: Builder of its envelopes.
    """

    def __init__(self, decoder: Decoder, builder: EnvelopeBuilder) -> None:
        self._decoder = decoder
        self._builder = builder
        self._frames: Frames | None = None  # Frames at hand, of which a number were cut off.
        self._cut_off = 0
        self._rest: Frames | None = None  # Of the run cut off last, what isn't built yet.
        self._failed: FramingError | None = None  # Raised by the next call.
        self._ended = False
        self._singly = RUN_LIMIT  # Messages to build before a ProducerRun is tried again.

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self._builder.journal

    @property
    def offset(self) -> int:
        """Offset of the next message."""
        if self._rest is not None:
            return self._rest.begin
        frames = self._frames
        return self._decoder.offset if frames is None else frames.begin_of(self._cut_off)

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take the next content, which begins at offset `begin`.

        Returns:
            The number of discarded bytes of a partial message, if `begin` isn't where the content
            before ended; or 0.
        """
        discarded = 0
        if begin != self._decoder.offset + self._decoder.buffered:
            discarded = self.jump(begin)
        self._ended = False
        self._decoder.feed(chunk)
        return discarded

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes discarded."""
        return self._decoder.jump(offset)

    def end(self) -> None:
        """Declare the end of content."""
        if not self._ended:
            self._ended = True
            self._decoder.end()

    def next_run(self) -> Sequence[Envelope[Any]]:
        """Return the next envelopes, in the order of the journal; empty if more content is needed.

        They're a list or a ProducerRun.

        Raises:
            FramingError: Bytes from `begin` to `end` of the error were skipped. If its kind is
                `unexpected_eof`, content ended within a message, and each call raises it again.
        """
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        frames, self._rest = self._rest or self._cut_run(), None
        if frames is None:
            return []
        if len(frames.ends) >= UNIFORM_RUN:
            builder = self._builder
            run: ProducerRun | None = builder.uniform_run(frames)
            uniform = 0 if run is None else len(run)
            if uniform < len(frames.ends):
                run = builder.transactions_run(frames, uniform) or run
            if run is not None:
                self._singly = UNIFORM_RUN
                self._keep_rest(frames, len(run))
                return run
            # Such messages may follow soon, unless they don't for a while.
            if self._singly < len(frames.ends):
                self._keep_rest(frames, self._singly)
                frames = frames.slice(0, self._singly)
            self._singly = min(self._singly * 2, RUN_LIMIT)
        envelopes, bad = self._builder.build(frames)
        if bad is not None:
            position, error = bad
            self._keep_rest(frames, position + 1)
            begin, end = frames.begin_of(position), frames.ends[position]
            failed = framing_error(error, self.journal, begin, end, bad.kind)
            failed.__cause__ = error
            if not envelopes:
                raise failed
            self._failed = failed
        return envelopes

    def _keep_rest(self, frames: Frames, start: int) -> None:
        """Keep frames from `start` on for the next run, before those kept already."""
        if start < len(frames.ends):
            rest, later = frames.slice(start), self._rest
            if later is not None:
                rest = Frames(rest.begin, rest.payloads + later.payloads, rest.ends + later.ends)
            self._rest = rest

    def _cut_run(self) -> Frames | None:
        """Return the next frames, at most RUN_LIMIT."""
        frames, start = self._frames, self._cut_off
        if frames is None:
            try:
                frames = self._decoder.frames()
            except FramingError as error:
                begin, end, cls = error.begin, error.end, type(error)
                raise framing_error(error, self.journal, begin, end, error.kind, cls) from error
            except UnexpectedEOFError as error:
                offset = self._decoder.offset
                kind = "unexpected_eof"
                raise framing_error(error, self.journal, offset, offset, kind) from error
            if frames is None or len(frames.ends) <= RUN_LIMIT:
                return frames
        stop = start + RUN_LIMIT
        if stop < len(frames.ends):
            self._frames, self._cut_off = frames, stop
        else:
            self._frames, self._cut_off = None, 0
        return frames.slice(start, stop)


def framing_error(  # noqa: PLR0917
    error: Exception,
    journal: str,
    begin: int,
    end: int,
    kind: str,
    cls: type[FramingError] = FramingError,
) -> FramingError:
    """Return the error of the bytes `[begin, end)` of `journal`, whose reason is `error`."""
    text = f"{journal} at offset {begin}: {error}"
    return cls(text, journal=journal, begin=begin, end=end, kind=kind)
