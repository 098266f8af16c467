"""Content of a journal which is read again, as its transaction outgrew what's retained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.protocol.errors import FramingError, GazetteError, OffsetJumpError, ReplayError

if TYPE_CHECKING:
    from gazette_aio.client import RetryReader
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.splitter import JournalSplitter


class Replay:
    """Reads content of one journal again.

    Args:
        reader: Reader of the content.
        splitter: Splits it.
        allow_gaps: Go on behind content which isn't there any more.
    """

    def __init__(self, reader: RetryReader, splitter: JournalSplitter, *, allow_gaps: bool) -> None:
        self.reader = reader
        self._splitter = splitter
        self._allow_gaps = allow_gaps
        self._through = reader.offset

    def next_run(self) -> list[Envelope[Any]]:
        """Return the next envelopes of the content at hand; empty if there are none."""
        while True:
            try:
                return self._splitter.next_run()
            except FramingError:
                # It was raised when the frame was first read, and passed over then.
                continue

    async def receive(self) -> bool:
        """Wait for more content, and return False at its end.

        Cancellation: safe.

        Raises:
            ReplayError: It can't be read, or isn't all there.
        """
        reader, splitter = self.reader, self._splitter
        try:
            chunk = await anext(reader)
        except StopAsyncIteration:
            end = reader.request.end_offset
            check_replay_end(reader.offset, self._through, end, allow_gaps=self._allow_gaps)
            return False
        except GazetteError as error:
            if isinstance(error, OffsetJumpError) and self._allow_gaps:
                self._through = reader.offset
                splitter.jump(reader.offset)
                return True
            raise ReplayError(f"replay reader: {error}") from error
        self._through = reader.offset
        splitter.feed(chunk, reader.offset - len(chunk))
        return True


def check_replay_end(offset: int, through: int, end: int, *, allow_gaps: bool) -> None:
    """Raise ReplayError unless all content of a replay was there.

    A partial frame at its end is garbage before an acknowledgement, and was passed over when it was
    first read.

    Args:
        offset: Where its reader ended.
        through: Offset behind the last content which there was.
        end: Offset of the end of the replay.
        allow_gaps: Whether content may be missing.
    """
    if offset < end:
        # Race: who closes a reader needn't be who reads.
        raise ReplayError(f"replay reader: closed at {offset}, ahead of {end}")
    if through < end and not allow_gaps:
        # Wire: a hole isn't told of if all the rest of the content lies in it.
        raise ReplayError(f"replay reader: no content from {through} to {end}")
