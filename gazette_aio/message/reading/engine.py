"""Base of engines: contents of journals, and their states, whatever their messages become."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

from gazette_aio.message.core import Journal
from gazette_aio.message.envelopes.content import DEFAULT_PENDING_BYTES
from gazette_aio.message.envelopes.outputs import BadMessages, JournalOutputs, Out
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.options import start_clock
from gazette_aio.message.sequencing.checkpoint import (
    ProducerState,
    SequencerCheckpoint,
    as_nanoseconds,
    warn_of_stale,
)
from gazette_aio.message.uuid import ProducerID
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from gazette_aio.message.core.rules import State
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.envelopes.outputs import OutputMaker
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.protocol.errors import FramingError

_logger = logging.getLogger(__name__)

STEP_BYTES = 256 << 10
"""Content that is split and sequenced at once, unless more is to be decoded at once."""

_REMARKS = (
    "messages have unexpected flags",
    "acknowledgements are older than the last ones: exactly-once semantics are lost",
    "messages outside of transactions discard pending ones of their producers",
)
"""Texts of the core's first remarks. Its last is of producers that a checkpoint forgets."""


class JournalEngine(ABC, Generic[Out]):
    """Makes outputs of the content of any number of journals, which may leave and be read again.

    While `step()` runs in a thread, only other journals may begin, and checkpoints be made.

    Args:
        checkpoint: State to resume from; None to read all messages in journal order, including
            uncommitted ones.
        options: Options of reading.
        step_bytes: Content that is split and sequenced at once.
        max_pending_bytes: Limit of the pending messages that are retained, over all journals.
        max_pending_rows: Limit of their number.
        explain: Returns the error to raise for an error; by default, the same.
    """

    replay_bytes = 1 << 20
    """Approximate content of a replay that one step works on."""

    def __init__(
        self,
        checkpoint: SequencerCheckpoint | None,
        options: ReadOptions,
        *,
        step_bytes: int = STEP_BYTES,
        max_pending_bytes: int = DEFAULT_PENDING_BYTES,
        max_pending_rows: int = sys.maxsize,
        explain: Callable[[FramingError], FramingError] = lambda error: error,
    ) -> None:
        skips = options.get("on_error") == "skip"
        self.bad: BadMessages = BadMessages(skip=skips, explain=explain)
        """What becomes of messages that can't be read."""
        self.pending_bytes: int = 0
        """Bytes of pending messages that are retained."""
        self._step_bytes = step_bytes
        self._max_pending_bytes = max_pending_bytes
        self._max_pending_rows = max_pending_rows
        self._pending_rows = 0
        self._start_clock = start_clock(options)
        self._limits: dict[str, Any] = {
            "max_frame_bytes": options.get("max_frame_bytes", DEFAULT_MAX_FRAME_BYTES),
            "max_pending_bytes": max_pending_bytes,
            "strict": options.get("strict_uuid", False),
            "skip_acks": options.get("skip_acks", False),
            "skip_errors": skips,
        }
        self._is_sequenced = checkpoint is not None
        self._offsets = dict(checkpoint.offsets) if checkpoint else {}
        self._states: dict[str, list[State]] = {}
        for state in checkpoint.producers if checkpoint else ():
            low, high, begin = state.bounds
            known = self._states.setdefault(state.journal, [])
            known.append((state.producer, low, high, begin))
        self._contents: dict[str, JournalOutputs[Out]] = {}
        self._pending: dict[JournalOutputs[Out], tuple[int, int]] = {}  # Bytes, and rows.

    @abstractmethod
    def maker_of(self, journal_format: JournalFormat[Any]) -> OutputMaker[Out]:
        """Return the maker of outputs of a journal."""

    @property
    def skipped(self) -> int:
        """Number of messages and frames that were skipped because they can't be decoded."""
        return self.bad.skipped

    def offsets(self) -> Mapping[str, int]:
        """Return the known offsets by journal."""
        return self._offsets

    def begin(self, journal_format: JournalFormat[Any], offset: int) -> JournalOutputs[Out]:
        """Begin the content of a journal, and keep its known state."""
        journal, maker = journal_format.journal, self.maker_of(journal_format)
        if journal in self._contents:
            self.leave(self._contents[journal])
        states = self._states.get(journal, []) if self._is_sequenced else None
        content = JournalOutputs(journal_format, offset, maker, states=states, **self._limits)
        self._contents[journal] = content
        return content

    def leave(self, content: JournalOutputs[Out]) -> None:
        """Release content of a journal that isn't read any more, but keep its state."""
        # Race: the journal may have begun anew.
        if self._contents.get(content.journal) is content:
            if self._is_sequenced:
                self._save(content.journal)
            self._drop(content.journal)

    def forget(self, journal: str) -> None:
        """Forget the state of a journal, and its undelivered messages."""
        self._drop(journal)
        self._offsets.pop(journal, None)
        self._states.pop(journal, None)

    def _drop(self, journal: str) -> None:
        content = self._contents.pop(journal, None)
        if content is not None:
            self._note_pending(content, 0, 0)

    def rewind(self, content: JournalOutputs[Out]) -> int:
        """Undo the commit that needs a replay, and return the offset to receive content from."""
        assert content.replay is not None, "no replay is next, or in progress"
        offset, _ = content.core.checkpoint(0)
        self.leave(content)
        # Bytes that were refused before the commit aren't refused again.
        return max(offset, content.refused_through)

    def work(self, content: JournalOutputs[Out]) -> bool:
        """Let a journal work, then evict messages beyond the limit.

        Returns:
            False if more content, or content of a replay, is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        worked = content.work(self._step_bytes)
        if self._is_sequenced:
            core = content.core
            if core.remarks != content.remarks:
                self._log_remarks(content)
            self._note_pending(content, core.pending_bytes, core.pending_rows)
            while (
                self.pending_bytes > self._max_pending_bytes
                or self._pending_rows > self._max_pending_rows
            ):
                self._evict()
        return worked

    @staticmethod
    def _log_remarks(content: JournalOutputs[Out]) -> None:
        remarks, before = content.core.remarks, content.remarks
        content.remarks = remarks
        for text, count, known in zip(_REMARKS, remarks, before, strict=False):
            if count > known:
                extra = {"journal": content.journal, "offset": content.offset}
                _logger.error(text, extra={**extra, "messages": count - known})

    def _evict(self) -> None:
        """Evict pending messages of the journal that has most of them."""
        largest = max(self._pending, key=self._pending.__getitem__)
        size, rows = self._pending[largest]
        size_limit = size - max(self.pending_bytes - self._max_pending_bytes, 0)
        rows_limit = rows - max(self._pending_rows - self._max_pending_rows, 0)
        core = largest.core
        core.evict(max(size_limit, 0), max(rows_limit, 0))
        self._note_pending(largest, core.pending_bytes, core.pending_rows)

    def _note_pending(self, content: JournalOutputs[Out], size: int, rows: int) -> None:
        size_before, rows_before = self._pending.pop(content, (0, 0))
        if rows:
            self._pending[content] = size, rows
        self.pending_bytes += size - size_before
        self._pending_rows += rows - rows_before

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return offsets and producer states as of the delivered outputs.

        Raises:
            ConfigurationError: Uncommitted messages are read, which have no checkpoint.
        """
        if not self._is_sequenced:
            raise ConfigurationError("there's no checkpoint of uncommitted messages")
        horizon_ns = as_nanoseconds(prune_horizon)
        for journal in {**self._states, **self._contents}:
            self._save(journal, horizon_ns)
        states = (
            ProducerState.of(journal, ProducerID(producer), (low, high, begin))
            for journal, found in self._states.items()
            for producer, low, high, begin in sorted(found)
        )
        return SequencerCheckpoint(dict(self._offsets), tuple(states))

    def _save(self, journal: str, prune_horizon_ns: int = 0) -> None:
        """Keep the offset and the states of a journal as of its delivered outputs."""
        content = self._contents.get(journal)
        if content is not None:
            core = content.core
        elif prune_horizon_ns:
            core = Journal("frames", self._offsets.get(journal, 0), states=self._states[journal])
        else:
            return
        before = core.checkpoint(0)[1] if prune_horizon_ns else ()
        offset, states = core.checkpoint(prune_horizon_ns)
        kept = {state[0] for state in states}
        for producer, _, _, begin in before:
            if producer not in kept:
                warn_of_stale(journal, producer, begin)
        if content is not None and offset != content.begun:
            self._offsets[journal] = offset
        self._states[journal] = states
