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
import errno

import gazette_aio.protocol as pb


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
            f"check --{peer}.address or ${peer.upper()}_ADDRESS"
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
        if reason.startswith(f"no {peer} answers"):
            # The client's text repeats the wait for a connection, before the reason if it's known.
            reason = reason.partition("): ")[2]
        super().__init__(f"{text}: {reason}" if reason else text)


_COMMANDS: dict[type[BaseException], str] = {
    pb.OffsetNotYetAvailableError: "; `journals fragments` lists them",
    pb.FragmentStoreUnhealthyError: "; `journals store-health URL` says why",
    pb.EtcdTransactionFailedError: (
        "; `journals apply --dry-run` names it, and `journals list -o yaml` prints its revision"
    ),
    pb.ShardEtcdTransactionFailedError: "; `shards list -o yaml` prints revisions",
}
"""Commands that help after an error."""


def explain(error: BaseException) -> str:
    """Return one line that describes an error to a person."""
    match error:
        case pb.StatusError():
            peer = "broker" if isinstance(error, pb.BrokerStatusError) else "consumer"
            text = error.explanation or f"the {peer} refused"
            name = getattr(error, error.subject)
            subject = f": {name}" if name else ""
            command = _COMMANDS.get(type(error), "")
            line = f"{_nothing_applied(error)}{text}{command}{subject} ({error.status_name})"
        case pb.FramingError() | pb.ReadError() if error.journal and error.journal not in str(
            error
        ):
            line = f"{error.journal}: {error}"
        case OSError() if error.strerror:
            name = f"{error.filename}: " if error.filename is not None else ""
            if error.errno == errno.EBADF:
                name = "stdin or stdout is closed: "
            line = f"{name}{error.strerror}"
        case _:
            line = str(error) or type(error).__name__
    return " ".join(line.split())


def _nothing_applied(error: pb.StatusError) -> str:
    kinds = (pb.EtcdTransactionFailedError, pb.ShardEtcdTransactionFailedError)
    return "nothing was applied: " if isinstance(error, kinds) and not error.applied else ""


def lacks_extra(error: BaseException) -> bool:
    """Return whether an error says that an extra of this package has to be installed.

    Such an error is raised from that of the missing module, whose own error is a bug.
    """
    kinds = (ImportError, pb.ConfigurationError, pb.StoreError)
    return isinstance(error, kinds) and isinstance(error.__cause__, ImportError)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of a command that failed with `error`."""
    match error:
        case _ if lacks_extra(error):
            return ExitCode.USAGE
        case pb.ListenError():
            return ExitCode.FAILED
        case InputError() | pb.ConfigurationError():
            return ExitCode.USAGE
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case _:
            return ExitCode.FAILED
