"""First appends of a recorder, by which it finds the head of its log and fences the log off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.consumer.recoverylog.recording.encoder import LogEncoder

if TYPE_CHECKING:
    from gazette_aio.client import AppendService
    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.fsm import FSM


async def begin_recording(service: AppendService, log: str, fsm: FSM, author: Author) -> LogEncoder:
    """Return an encoder at the head of a log, which is fenced off unless playback has done that.

    Raises:
        RecoveryError: The history is fresh, and the log isn't.
        GazetteError: The log can't be appended to.

    Cancellation: aborts — the log may be fenced.
    """
    barrier = await service.start_append(log)
    barrier.release()
    head = (await barrier).commit.end
    if fsm.is_fresh and head:
        raise pb.RecoveryError(
            f"{log} has content up to {head}, which has to be played before recording goes on"
        )
    encoder = LogEncoder(fsm, author, log, head)
    if not fsm.is_fresh and fsm.last_log == log:
        return encoder
    is_fresh = fsm.is_fresh
    encoder.no_op()
    # Wire: only an append with content may change registers.
    request = pb.AppendRequest(journal=log, union_registers=author.fence())
    append = await service.start_append(request)
    append.write(b"".join(encoder.take()))
    append.release()
    commit = (await append).commit
    if is_fresh and commit.begin != head:
        # Race: playback would follow the history of whoever was first.
        raise pb.RecoveryError(f"another process has begun to write to {log}")
    return LogEncoder(fsm, author, log, commit.end)
