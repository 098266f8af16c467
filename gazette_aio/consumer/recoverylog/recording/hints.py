"""Hints of a recorder: offsets of its operations, and a check before anybody stores them."""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.consumer.recoverylog.fsm import FSM
from gazette_aio.consumer.recoverylog.hints import shrink_hints

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.consumer.recoverylog.live_nodes import LiveNodes
    from gazette_aio.protocol.recoverylog import FSMHints

_logger = logging.getLogger(__name__)


class CommittedOffsets:
    """Offsets of committed operations by their positions, and a call when enough is committed.

    A recorder counts positions from the head of the log at its opening. They differ from offsets if
    others have appended to the log since, or an append was committed twice: its last commit counts,
    and playback passes over the other one.

    Args:
        log: Recovery log.
        position: Position of the first operation, which is the head of the log.
        first_seq_no: Sequence number of the first operation.
    """

    def __init__(self, log: str, position: int, first_seq_no: int) -> None:
        self._log = log
        self._head = position
        self._first_seq_no = first_seq_no
        self._on_growth: tuple[int, Callable[[], object]] | None = None
        self._positions = [position]
        self._shifts = [0]
        """Numbers to add to positions, from the one of the same index on."""

    def call_at(self, position: int, call: Callable[[], object]) -> None:
        """Have a function called once operations up to `position` are committed.

        It replaces the function of an earlier call.
        """
        self._on_growth = position, call

    def add(self, position: int, begin: int, end: int) -> None:
        """Note that operations from `position` on were committed at `begin`.

        Calls are made in the order of positions, by the event loop.

        Raises:
            DataLossError: The commit begins before the end of an earlier one.
        """
        if begin < self._head:
            text = f"commit of {self._log} at {begin} is before its head {self._head}"
            raise pb.DataLossError(text, journal=self._log, offset=begin)
        self._head = end
        shift = begin - position
        if shift != self._shifts[-1]:
            if position == self._positions[-1]:
                self._shifts[-1] = shift
            else:
                self._positions.append(position)
                self._shifts.append(shift)
        growth = self._on_growth
        if growth is not None and position + (end - begin) >= growth[0]:
            self._on_growth = None
            growth[1]()

    def resolve(self, hints: FSMHints) -> None:
        """Replace positions in hints by offsets. All operations of the hints are committed.

        Any thread may call it: what the event loop adds meanwhile is of later operations.
        """
        for node in hints.live_nodes:
            for segment in node.segments:
                if segment.first_seq_no >= self._first_seq_no:
                    segment.first_offset = self._offset_of(segment.first_offset)
                if segment.last_seq_no >= self._first_seq_no:
                    # The end of an operation belongs to it, rather than to the next one.
                    segment.last_offset = self._offset_of(segment.last_offset - 1) + 1

    def _offset_of(self, position: int) -> int:
        return position + self._shifts[bisect_right(self._positions, position) - 1]

    def __repr__(self) -> str:
        return f"<CommittedOffsets of {len(self._shifts)} ranges>"


def committed_hints(
    log: str, live: LiveNodes, offsets: CommittedOffsets, budget_bytes: int
) -> FSMHints:
    """Return hints of files, which are short, and which playback takes.

    Args:
        log: The log that the hints are for.
        live: The files. All operations that made them are committed.
        offsets: Offsets of these operations.
        budget_bytes: Length of the encoded hints to stay within, if possible.

    Raises:
        RecoveryError: Playback refuses the hints.
    """
    hints = live.build_hints(log)
    offsets.resolve(hints)
    size = shrink_hints(hints, budget_bytes)
    if size > budget_bytes:
        _logger.warning(
            "hints of %s have %d bytes, as %d files are live",
            hints.log,
            size,
            len(hints.live_nodes),
            extra={"journal": hints.log},
        )
    try:
        FSM(hints)
    except pb.GazetteError as error:
        raise pb.RecoveryError(f"hints of {hints.log} can't be played: {error}") from error
    return hints
