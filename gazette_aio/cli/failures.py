"""Say what went wrong in one line, and choose the exit code.

Exit codes:
    0: The command did what it was asked to.
    1: The broker, the network or a file refused it.
    2: The command line or an input file is wrong; nothing was sent.
    130: Interrupted (Ctrl-C).
    141: Whoever read our output has gone away.
"""

from __future__ import annotations

import enum

import gazette_aio.protocol as pb


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class InputError(Exception):
    """An input of the command is wrong, and nothing was sent."""


class CommandError(Exception):
    """The command failed, for a reason which its text gives in full."""


class UnreachableError(CommandError):
    """No broker answered within the time allowed.

    Args:
        address: Address of the broker.
        timeout: Seconds for which it was tried.
        reason: What the transport says.
    """

    def __init__(self, address: str, timeout: float, reason: str) -> None:
        text = f"no broker answers at {address} (tried for {timeout:g} s)"
        # The client's own text, when it waited for a connection, says the same.
        because = "" if reason.startswith("no broker answers") else f": {reason}"
        super().__init__(text + because)


_STATUS_TEXTS: dict[int, str] = {
    pb.Status.JOURNAL_NOT_FOUND: "no such journal",
    pb.Status.NOT_ALLOWED: "the journal's flags or suspension don't allow this",
    pb.Status.WRONG_APPEND_OFFSET: "the offset isn't the journal's write head",
    pb.Status.REGISTER_MISMATCH: "the journal's registers don't match",
    pb.Status.SUSPENDED: "the journal is suspended",
    pb.Status.ETCD_TRANSACTION_FAILED: "a revision differs from the one expected; list again",
    pb.Status.INDEX_HAS_GREATER_OFFSET: "stored fragments reach beyond the write head",
}


def explain(error: BaseException) -> str:
    """Return one line which tells a person what went wrong."""
    match error:
        case pb.BrokerStatusError():
            text = _STATUS_TEXTS.get(error.status, "the broker refused")
            journal = f": {error.journal}" if error.journal else ""
            line = f"{text}{journal} ({str(error).rpartition(': ')[2]})"
        case pb.FramingError() | pb.ReadError() if error.journal:
            line = f"{error.journal}: {error}"
        case OSError() if error.strerror:
            name = f"{error.filename}: " if error.filename is not None else ""
            line = f"{name}{error.strerror}"
        case _:
            line = str(error) or type(error).__name__
    return " ".join(line.split())


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of a command which ends with `error`."""
    match error:
        case InputError() | pb.ConfigurationError():
            return ExitCode.USAGE
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case _:
            return ExitCode.FAILED
