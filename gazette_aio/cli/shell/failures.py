"""Failures of commands: texts of one line, and exit codes.

Exit codes:
    0: The command succeeded.
    1: The broker, the network or a file failed.
    2: The command line or an input file is invalid, or an extra is missing; nothing was sent.
    130: Interrupted (Ctrl-C).
    141: The reader of the output closed the pipe.
"""

from __future__ import annotations

import enum

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer as pc


class ExitCode(enum.IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class InputError(Exception):
    """An input of the command is invalid, and nothing was sent."""


class CommandError(Exception):
    """The command failed. The text is the whole message."""


class WrongServerError(CommandError):
    """The server at an address doesn't know the call: it's another kind of server, or too old.

    Args:
        address: Its address.
        peer: `broker` or `consumer`, as the command expects.
    """

    def __init__(self, address: str, *, peer: str) -> None:
        super().__init__(
            f"the server at {address} isn't a {peer}, or is too old for this command: "
            f"check --{peer}.address"
        )


class UnreachableError(CommandError):
    """No broker, or no member of a consumer, answered in time.

    Args:
        address: Its address.
        timeout: Seconds of attempts.
        reason: Text of the transport.
        peer: `broker` or `consumer`.
    """

    def __init__(self, address: str, timeout: float, reason: str, *, peer: str = "broker") -> None:
        text = f"no {peer} answers at {address} (tried for {timeout:g} s)"
        # The client's text repeats the wait for a connection.
        because = "" if reason.startswith(f"no {peer} answers") else f": {reason}"
        super().__init__(text + because)


_STATUS_TEXTS: dict[int, str] = {
    pb.Status.JOURNAL_NOT_FOUND: "no such journal",
    pb.Status.NO_JOURNAL_PRIMARY_BROKER: "no broker is the journal's primary now",
    pb.Status.INSUFFICIENT_JOURNAL_BROKERS: "too few brokers for the journal's replication",
    pb.Status.OFFSET_NOT_YET_AVAILABLE: "the offset is beyond the journal's write head",
    pb.Status.FRAGMENT_STORE_UNHEALTHY: (
        "the journal's first fragment store can't be used; `journals store-health URL` says why"
    ),
    pb.Status.NOT_ALLOWED: "the journal's flags or suspension don't allow this",
    pb.Status.WRONG_APPEND_OFFSET: "the offset isn't the journal's write head",
    pb.Status.REGISTER_MISMATCH: "the journal's registers don't match",
    pb.Status.SUSPENDED: "the journal is suspended",
    pb.Status.ETCD_TRANSACTION_FAILED: (
        "a journal exists already, or was changed or deleted meanwhile; "
        "`journals apply --dry-run` names it, and `journals list -o yaml` prints its revision"
    ),
    pb.Status.INDEX_HAS_GREATER_OFFSET: "stored fragments end beyond the write head",
}


_SHARD_STATUS_TEXTS: dict[int, str] = {
    pc.Status.SHARD_NOT_FOUND: "no such shard",
    pc.Status.NO_SHARD_PRIMARY: "the shard has no primary now",
    pc.Status.NOT_SHARD_PRIMARY: "this member isn't the shard's primary",
    pc.Status.ETCD_TRANSACTION_FAILED: (
        "a shard exists already, or was changed or deleted meanwhile; "
        "`shards list -o yaml` prints revisions"
    ),
    pc.Status.SHARD_STOPPED: "the shard has stopped, or failed",
}


def explain(error: BaseException) -> str:
    """Return one line that describes an error to a person."""
    match error:
        case pb.BrokerStatusError():
            text = _STATUS_TEXTS.get(error.status, "the broker refused")
            journal = f": {error.journal}" if error.journal else ""
            line = f"{_nothing_applied(error)}{text}{journal} ({error.status_name})"
        case pb.ShardStatusError():
            text = _SHARD_STATUS_TEXTS.get(error.status, "the consumer refused")
            shard = f": {error.shard}" if error.shard else ""
            line = f"{_nothing_applied(error)}{text}{shard} ({error.status_name})"
        case pb.FramingError() | pb.ReadError() if error.journal and error.journal not in str(
            error
        ):
            line = f"{error.journal}: {error}"
        case OSError() if error.strerror:
            name = f"{error.filename}: " if error.filename is not None else ""
            line = f"{name}{error.strerror}"
        case _:
            line = str(error) or type(error).__name__
    return " ".join(line.split())


def _nothing_applied(error: pb.BrokerStatusError | pb.ShardStatusError) -> str:
    kinds = (pb.EtcdTransactionFailedError, pb.ShardEtcdTransactionFailedError)
    return "nothing was applied: " if isinstance(error, kinds) and not error.applied else ""


def lacks_extra(error: BaseException) -> bool:
    """Return whether an error says that an extra of this package has to be installed."""
    kinds = (ImportError, pb.ConfigurationError, pb.StoreError)
    return isinstance(error, kinds) and "pip install 'gazette-aio[" in str(error)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of a command that failed with `error`."""
    match error:
        case _ if lacks_extra(error):
            return ExitCode.USAGE
        case InputError() | pb.ConfigurationError():
            return ExitCode.USAGE
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case _:
            return ExitCode.FAILED
