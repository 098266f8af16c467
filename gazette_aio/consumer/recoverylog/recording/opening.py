"""First appends of a recorder, by which it finds the head of its log and fences the log off."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.consumer.recoverylog.recording.encoder import LogEncoder
from gazette_aio.consumer.recoverylog.retries import retry_passing

if TYPE_CHECKING:
    from gazette_aio.client import AppendService, RetryPolicy
    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.fsm import FSM


async def begin_recording(
    service: AppendService,
    log: str,
    fsm: FSM,
    author: Author,
    *,
    fence: bool | None,
    read_through: int | None,
    allow_branch: bool,
) -> LogEncoder:
    """Fence off a log if that's due, and return an encoder at its head.

    The arguments are those of `Recorder.open()`. After an error, the service is closed.

    Raises:
        ConfigurationError: `read_through` is missing.
        RecoveryError: The history is fresh, and the log isn't; or the log has gone on since it was
            played.
        GazetteError: The log can't be appended to.

    Cancellation: aborts — the log may be fenced.
    """
    try:
        return await _begin(
            service,
            log,
            fsm,
            author,
            fence=fence,
            read_through=read_through,
            allow_branch=allow_branch,
        )
    except BaseException:
        service.cancel()
        await finish(service.aclose())
        raise


async def _begin(
    service: AppendService,
    log: str,
    fsm: FSM,
    author: Author,
    *,
    fence: bool | None,
    read_through: int | None,
    allow_branch: bool,
) -> LogEncoder:
    barrier = await service.start_append(log)
    barrier.release()
    head = (await barrier).commit.end
    is_fresh, is_fork = fsm.is_fresh, fsm.last_log != log
    if is_fresh and head and not allow_branch:
        raise pb.RecoveryError(
            f"{log} has content up to {head}, which has to be played before recording goes on"
        )
    if fence is None:
        fence = is_fresh
    if not fence and not is_fork:
        return LogEncoder(fsm, author, log, head)
    is_played = not is_fresh and not is_fork
    if is_played and read_through is None:
        raise pb.ConfigurationError(
            "read_through: the offset up to which the log was played is needed to fence it off"
        )
    if is_played and read_through != head:
        raise _gone_on(log, read_through, head)
    encoder = LogEncoder(fsm, author, log, head)
    encoder.no_op()
    # Wire: only an append with content may change registers.
    request = pb.AppendRequest(journal=log, union_registers=author.fence())
    append = await service.start_append(request)
    append.write(b"".join(encoder.take()))
    append.release()
    commit = (await append).commit
    if is_fresh and commit.begin != head and not allow_branch:
        # Race: playback would follow the history of whoever was first.
        raise pb.RecoveryError(f"another process has begun to write to {log}")
    if is_played and commit.begin != head:
        raise _gone_on(log, read_through, commit.begin)
    return LogEncoder(fsm, author, log, commit.end)


def _gone_on(log: str, read_through: int | None, head: int) -> pb.RecoveryError:
    return pb.RecoveryError(
        f"another process has written to {log}, which was played up to {read_through}, and has "
        f"content up to {head}"
    )


def recorder_policy(base: RetryPolicy, *, is_fence_retried: bool) -> RetryPolicy:
    """Return a policy that holds on to the log, but for what only a new recorder can help."""
    return dataclasses.replace(
        retry_passing(base),
        max_attempts=None,
        max_elapsed=None,
        retry_check_registers=is_fence_retried,
    )
