"""The part of a Sequencer which queues as many commits at once as are simple."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.commit_run import CommitRun
from gazette_aio.message.sequencing.producer import Producer
from gazette_aio.message.sequencing.queueing import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelopes.envelope import Envelope


class CommitQueue(MessageQueue):
    """Queues messages, and finds commits which are dequeued as if they were one."""

    def queue_commits(
        self, envelopes: Sequence[Envelope[Any]], start: int = 0, *, transactions: bool = True
    ) -> int:
        """Queue consecutive messages of one journal, as far as commits are found at once.

        It's like `queue_batch()`, but that the commits are dequeued as if they were one, through
        `take()` and `settle()`. What becomes of messages is the same.

        Args:
            envelopes: Messages in the order they were read, all of one journal.
            start: Index of the first one to queue.
            transactions: Whether several transactions are dequeued together, or only messages
                outside of them.

        Returns:
            Index of the next message to queue. There are commits to dequeue if `emitting` is set.

        Raises:
            SequencerStateError: If a commit wasn't fully dequeued.
        """
        queue = partial(self._queue_run, transactions=transactions)
        return self._queue_many(envelopes, start, queue)

    def _queue_run(
        self, envelopes: Sequence[Envelope[Any]], start: int, *, transactions: bool
    ) -> int:
        if not transactions and envelopes[start].flags:
            return self._queue_first_commit(envelopes, start)
        journal = envelopes[start].journal
        producers = self._journals.setdefault(journal, {})
        run = CommitRun(
            envelopes,
            start,
            producers,
            self._high,
            self._low,
            self._capacity,
            transactions=transactions,
        )
        if run.rows:
            self._start_emit(Producer(journal, run.rows[0].producer, 0), replay=False)
            self._cursor = len(run.rows)
            self._rows = self._taken = run.rows
            self._run = run
        elif run.end > start:
            self._apply_run(run)
        else:
            self._queue(envelopes[start])
            return start + 1
        return run.end

    def _apply_run(self, run: CommitRun) -> None:
        """Make a run's states those which count, all of it being processed."""
        self._high, self._low = run.high, run.low
        last = run.envelopes[run.end - 1]
        self._offsets[last.journal] = last.end
        producers = self._journals[last.journal]
        for producer, state in run.states.items():
            known = producers.get(producer)
            is_pending = known in self._pending
            if known is not None and is_pending:
                self._pending.discard(known)
            if state.begin != -1 and (is_pending or known is None or known.begin != state.begin):
                self._pending.add(state)
            producers[producer] = state
        if self._low > self._sweep_at:
            self._sweep()

    def _settle_run(self, run: CommitRun, count: int) -> None:
        """Declare the first `count` messages which a run commits processed."""
        if count < len(run.rows) or run.entered:
            self._process_run(run, count)
        else:
            self._apply_run(run)
        self._settled = count
        if count == len(run.rows):
            self._run = self._emit = self._taken = None
            self._rows = []
            if self._buffer_bytes is not None:
                self._bound_bytes(run.added_bytes)

    def _process_run(self, run: CommitRun, count: int) -> None:
        """Queue messages of a run one by one, until `count` of those it commits are processed."""
        outer, run.entered = self._emit, True
        while run.done < count or (count == len(run.rows) and run.next < run.end):
            if run.emitting is None:
                self._emit = None
                self._queue(run.envelopes[run.next])
                run.next += 1
                run.emitting, run.emitted = self._emit, self._rows
                continue
            state, rows = run.emitting, run.emitted
            part = min(count - run.done, len(rows))
            if part:
                state.min, state.begin = rows[part - 1].clock, rows[part - 1].begin
            if part < len(rows):
                break
            self._offsets[state.journal] = rows[-1].end
            self._close(state)
            run.done += part
            run.emitting = None
        self._emit, self._rows, self._taken = outer, run.rows, run.rows
        self._cursor = len(run.rows)
