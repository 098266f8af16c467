"""Outputs of the messages of one journal, in their order, with errors between them."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gazette_aio.message.envelopes.content import JournalContent, Refusal
from gazette_aio.message.uuid import KNOWN_FLAGS
from gazette_aio.protocol.errors import FramingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message.core import Batch
    from gazette_aio.message.envelopes.origin import JournalFormat

Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)
Made = tuple[Out | FramingError, int]
"""An output, or an error in its turn; and the index in the batch after its messages."""

_logger = logging.getLogger(__name__)


class OutputMaker(Protocol[Out_co]):
    """Makes outputs of the messages of one journal."""

    def make(self, batch: Batch, start: int, /) -> tuple[Sequence[Made[Out_co]], int]:
        """Return outputs of the next messages of a batch, from index `start` on.

        The second result is the index of the message to continue with. Messages that have no
        output are delivered with the outputs before them.
        """
        ...

    def refuse(self, refusal: Refusal, /) -> Sequence[Out_co | FramingError]:
        """Return outputs of bytes that are no message. Calls are in the order of the content."""
        ...


class BadMessages:
    """What becomes of messages that can't be read, in all journals of an iterator.

    Args:
        skip: Whether they are skipped, and counted.
        explain: Returns the error to raise for an error.
    """

    def __init__(
        self, *, skip: bool = False, explain: Callable[[FramingError], FramingError]
    ) -> None:
        self.skipped: int = 0
        """Number of messages that were skipped."""
        self.explain = explain
        """Returns the error to raise for an error."""
        self._skip = skip

    def errors(self, journal: str, refusal: Refusal) -> list[FramingError]:
        """Return the error of a message, unless the message is skipped."""
        error = refusal.error(journal)
        if self._skip:
            self.skipped += 1
            extra = {"journal": journal, "begin": error.begin, "end": error.end}
            _logger.debug("skipped a frame: %s", error, extra=extra)
            return []
        return [self.explain(error)]


class JournalOutputs(JournalContent, Generic[Out]):
    """Content of one journal whose messages become outputs.

    `work()` makes the next outputs, and may run in a thread. `take()` returns one at a time, and
    `settle()` declares it delivered. If a commit needs a replay, `replay` is set after the outputs
    before it are taken.

    Args:
        journal_format: Format of the journal.
        offset: Offset to begin at.
        maker: Makes the outputs.
        options: As for JournalContent.
    """

    def __init__(
        self,
        journal_format: JournalFormat[Any],
        offset: int,
        maker: OutputMaker[Out],
        **options: Any,
    ) -> None:
        super().__init__(journal_format, offset, **options)
        self.maker = maker
        """Makes the outputs."""
        self.batch: Batch | None = None
        """The messages that are being delivered."""
        self.start: int = 0
        """Index of the first message of the output that was taken last."""
        self.stop: int = 0
        """Index after the last message of the output that was taken last."""
        self._made: deque[Made[Out]] = deque()
        self._next = 0  # Index of the next message to make an output of.
        self._settled = 0  # Index of the next message to declare delivered.

    @property
    def is_drained(self) -> bool:
        """Whether all outputs of the processed messages were delivered."""
        return self.batch is None and not self._made and self.replay is None

    def work(self, limit_bytes: int) -> bool:
        """Make the next outputs, if any, after all outputs before were delivered.

        Returns:
            False if more content, or content of `replay`, is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        assert not self._made, "outputs are taken first"
        batch = self.batch
        if batch is not None and self._next == len(batch):
            self.settle(self._next)
            batch = None
        if batch is None:
            found = self.read(limit_bytes)
            if found is None or found == "progress":
                return found is not None
            if isinstance(found, Refusal):
                self._made.extend((output, 0) for output in self.maker.refuse(found))
                return True
            # Race: another thread may make a checkpoint. Nothing is to be settled at any moment.
            self.start = self.stop = self._next = self._settled = 0
            self.batch = batch = found
        made, self._next = self.maker.make(batch, self._next)
        self._made.extend(made)
        return True

    @property
    def next_made(self) -> Out | FramingError | None:
        """What `take()` returns or raises next."""
        return self._made[0][0] if self._made else None

    def take(self) -> Out | None:
        """Return the next output, or None if there is none.

        Raises:
            FramingError: The next output is this error.
        """
        if not self._made:
            return None
        value, stop = self._made.popleft()
        self.start, self.stop = self.stop, stop
        if isinstance(value, FramingError):
            if value.kind == "unexpected_eof":  # Nothing follows: each call raises it again.
                self._made.append((value, stop))
            raise value from value.__cause__
        return value

    def settle_before(self, begin: int | None = None) -> None:
        """Declare what was taken delivered, or only the messages before that at offset `begin`."""
        stop = self.stop
        if begin is not None and self.batch is not None:
            begins, *_ = self.batch.places(self.start, stop, KNOWN_FLAGS)
            stop = self.start + begins.index(begin)
        self.settle(stop)

    def settle(self, stop: int) -> None:
        """Declare messages of the batch delivered, up to index `stop`."""
        batch = self.batch
        if batch is not None and (stop > self._settled or stop == len(batch)):
            self.core.settle(batch, self._settled, stop)
            self._settled = stop
            if stop == len(batch):
                self.batch = None
