"""Preconditions of an append, decided while it holds its journal, before it streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.protocol.journal_spec import may_write

_Suspend = pb.AppendRequest.Suspend
_Level = pb.JournalSpec.Suspend.Level
# Looked up once, since each look-up is a call of Python.
_RESUME, _NO_RESUME = _Suspend.SUSPEND_RESUME, _Suspend.SUSPEND_NO_RESUME
_NOT_SUSPENDED = _Level.NONE
_OK = pb.Status.OK
_DEFAULT_FLUSH_SECONDS = 24 * 3600


class JournalState(NamedTuple):
    """State of a journal that the preconditions depend on."""

    begin: int
    """First offset of the fragment in progress."""
    head: int
    """Offset at which the next append begins."""
    registers_match: bool
    """Whether the registers are as the append requires."""
    index_begin: int
    index_end: int
    last_mod_time: int
    """Modification time of the index's last fragment; zero if it's local or the index is empty."""


@dataclass(frozen=True, slots=True)
class RefuseAppend:
    """Answer with a status."""

    status: pb.Status.ValueType


@dataclass(frozen=True, slots=True)
class RollTo:
    """Begin a fragment at `offset`, and decide again."""

    offset: int


@dataclass(frozen=True, slots=True)
class ChangeSuspension:
    """Write the suspension to the spec, and resolve again."""

    level: pb.JournalSpec.Suspend.Level.ValueType
    offset: int
    roll: bool
    """Whether to complete the fragment in progress."""


@dataclass(frozen=True, slots=True)
class StreamAppend:
    """Receive the content."""

    status: pb.Status.ValueType
    """OK, or the status of the answer if the stream has no content."""
    roll_to: int | None
    """Offset of the fragment that the append begins, or None."""


AppendDecision = RefuseAppend | RollTo | ChangeSuspension | StreamAppend


def decide_append(
    request: pb.AppendRequest,
    spec: pb.JournalSpec,
    state: JournalState,
    *,
    roll_pending: bool,
    now_seconds: float,
) -> AppendDecision:
    """Return the next step of an append that holds its journal.

    Args:
        request: First message of the stream.
        spec: Current spec of the journal, which isn't fully suspended.
        state: State of the journal.
        roll_pending: Whether an earlier decision requested to complete the fragment.
        now_seconds: Current Unix time.
    """
    if not state.registers_match:
        return RefuseAppend(pb.Status.REGISTER_MISMATCH)
    if state.head < spec.suspend.offset:
        return RollTo(spec.suspend.offset)
    furthest = max(state.head, state.index_end)
    if state.head != furthest and request.offset == 0 and may_write(spec.flags):
        return RefuseAppend(pb.Status.INDEX_HAS_GREATER_OFFSET)
    if request.offset not in (0, furthest):
        return RefuseAppend(pb.Status.WRONG_APPEND_OFFSET)
    if request.offset and state.head != furthest:
        return RollTo(furthest)

    status: pb.Status.ValueType = _OK
    suspended = spec.suspend.level != _NOT_SUSPENDED
    match request.suspend:
        case suspend if suspend == _RESUME:
            if suspended:
                return ChangeSuspension(_NOT_SUSPENDED, state.head, roll=False)
        case suspend if suspend == _NO_RESUME:
            if suspended:
                return RefuseAppend(pb.Status.SUSPENDED)
        case _Suspend.SUSPEND_IF_FLUSHED | _Suspend.SUSPEND_NOW:
            if state.index_begin == state.index_end:
                return ChangeSuspension(_Level.FULL, state.head, roll=False)
            now = request.suspend == _Suspend.SUSPEND_NOW
            if not suspended and (now or _is_flushed(spec, state, now_seconds)):
                return ChangeSuspension(_Level.PARTIAL, state.head, roll=True)
            if spec.suspend.level == _Level.PARTIAL:
                status = pb.Status.SUSPENDED
        case _:
            pass

    # The first known write of a journal is a complete fragment, so that it's persisted soon:
    # brokers that lost everything else see by the store that the journal has content.
    roll = roll_pending or state.begin == state.index_begin
    return StreamAppend(status, state.head if roll else None)


def may_have_content(request: pb.AppendRequest, spec: pb.JournalSpec) -> bool:
    """Return whether the stream of `request` may have content."""
    return request.suspend in (_RESUME, _NO_RESUME) and may_write(spec.flags)


def _is_flushed(spec: pb.JournalSpec, state: JournalState, now_seconds: float) -> bool:
    interval = spec.fragment.flush_interval.seconds or _DEFAULT_FLUSH_SECONDS
    return state.last_mod_time != 0 and state.last_mod_time <= int(now_seconds) - interval
