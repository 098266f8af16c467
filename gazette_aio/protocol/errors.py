"""Exceptions of gazette_aio.

    GazetteError
    ├── ValidationError(ValueError)
    ├── StatusError, in `protocol.status_errors`
    │   ├── BrokerStatusError
    │   │   └── one class per status: JournalNotFoundError, …, UnknownStatusError
    │   └── ShardStatusError
    │       └── one class per status: ShardNotFoundError, …, UnknownShardStatusError
    ├── TransportError
    ├── OperationTimeoutError(TimeoutError)
    ├── ReadError
    │   ├── OffsetJumpError
    │   ├── OffsetBeyondHeadError
    │   ├── SeekRequiresNewReaderError
    │   ├── FragmentError
    │   ├── UnexpectedEOFError(EOFError)
    │   ├── DidNotReadExpectedEOFError
    │   └── DataLossError
    ├── FramingError
    │   ├── DesyncDetectedError
    │   ├── FrameTooLargeError
    │   └── UnrecognizedContentTypeError
    ├── MappingError
    │   └── EmptyListResponseError
    ├── SequencingError
    │   ├── SequencerStateError
    │   └── ReplayError
    ├── MixedTransactionError
    ├── DependencyError
    ├── TransactionError
    │   ├── NotAwaitedError(RuntimeError)
    │   └── TooManyTransactionsError
    ├── QueueFullError
    ├── RecoveryError
    ├── FencedError
    ├── StoreError
    │   └── LockedError
    ├── AuthorizationError
    ├── ConfigurationError
    │   └── ListenError
    └── UsageError(RuntimeError)

All of them pickle, and have attributes such as `journal`, `offset` and `attempt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.protocol._generated import broker_pb2 as pb

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _restore(cls: type[GazetteError], args: tuple[object, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args  # Only `OSError.__init__()` sets those of a TimeoutError.
    error.__dict__.update(state)
    return error


class GazetteError(Exception):
    """Base of every exception of this package."""

    retryable: bool = False
    """Whether a repeated call may succeed."""
    applied: int = 0
    """Number of changes which `apply_journals()` or `apply_shards()` applied before it failed."""
    outcome_unknown: bool = False
    """Whether the operation may have had its effect, or may have it later."""
    partial: pb.FragmentsResponse | None = None
    """Fragments which `list_all_fragments()` listed before it failed."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default protocol drops the keyword arguments of subclasses.
        return _restore, (type(self), self.args, self.__dict__)


class ValidationError(GazetteError, ValueError):
    """A message or value breaks a rule of the protocol.

    Args:
        text: Reason.
        context: Path to the invalid part, outermost element first.
    """

    def __init__(self, text: str, context: tuple[str, ...] = ()) -> None:
        self.text = text
        self.context = context
        super().__init__(f"{'.'.join(context)}: {text}" if context else text)

    def extend(self, context: str) -> ValidationError:
        """Return this error with the enclosing part `context` before its own context."""
        return ValidationError(self.text, (context, *self.context))


def within(context: str, check: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call `check`, extend its validation errors by `context`, and return its result."""
    try:
        return check(*args, **kwargs)
    except ValidationError as error:
        raise error.extend(context) from None


class TransportError(GazetteError):
    """An RPC or a fetch failed below the protocol.

    Args:
        code: Name of the gRPC code, such as `UNAVAILABLE`; empty if there is an `http_status`.
        details: Text of the peer or the transport.
        http_status: Status of an HTTP response, such as 503; None for other failures.
        journal: Journal of the request, or empty.
        retryable: Whether a repeated call may succeed.
        attempt: Number of attempts since the last success, from zero.
    """

    def __init__(
        self,
        code: str,
        details: str,
        *,
        http_status: int | None = None,
        journal: str = "",
        retryable: bool = False,
        attempt: int = 0,
    ) -> None:
        self.code = code
        self.details = details
        self.http_status = http_status
        self.journal = journal
        self.retryable = retryable
        self.attempt = attempt
        super().__init__(f"{code or http_status}: {details}")


class OperationTimeoutError(GazetteError, TimeoutError):
    """An operation didn't complete within its `timeout`, and may be repeated.

    Args:
        text: Reason.
        operation: Name of the operation, such as `append`.
        journal: Journal of the operation, or empty.
        endpoint: Endpoint of the client.
        last_error: The latest failure that was being retried, or None.
        outcome_unknown: Whether the operation may have had its effect, or may have it later.
    """

    retryable = True

    def __init__(
        self,
        text: str,
        *,
        operation: str = "",
        journal: str = "",
        endpoint: str = "",
        last_error: BaseException | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        self.operation = operation
        self.journal = journal
        self.endpoint = endpoint
        self.last_error = last_error
        self.outcome_unknown = outcome_unknown
        super().__init__(text)


class ReadError(GazetteError):
    """A read of a journal failed.

    Args:
        text: Reason.
        journal: Journal being read.
        offset: Offset of the next byte to read.
    """

    def __init__(self, text: str, *, journal: str = "", offset: int = -1) -> None:
        self.text = text
        self.journal = journal
        self.offset = offset
        super().__init__(text)


class OffsetJumpError(ReadError):
    """The read skipped a hole of the journal; the reader continues at `offset`.

    Args:
        text: Reason; by default one of the journal and both offsets.
        journal: Journal being read.
        offset: Offset at which the read continues.
        requested: Requested offset.
    """

    def __init__(
        self, text: str = "", *, journal: str = "", offset: int = -1, requested: int = -1
    ) -> None:
        self.requested = requested
        where = f"of {journal} from {requested} to {offset}"
        text = text or f"offset jump {where}: the journal has no content between"
        super().__init__(text, journal=journal, offset=offset)


class OffsetBeyondHeadError(ReadError):
    """The read would begin beyond the write head of the journal, as its primary broker knows it.

    The journal was deleted and created again, or restored with less content. Read from an offset up
    to the write head, and reset the checkpoint that has the offset.

    Args:
        text: Reason.
        journal: Journal being read.
        offset: Offset of the next byte to read.
        write_head: Write head of the journal.
    """

    def __init__(
        self, text: str, *, journal: str = "", offset: int = -1, write_head: int = 0
    ) -> None:
        self.write_head = write_head
        super().__init__(text, journal=journal, offset=offset)


class SeekRequiresNewReaderError(ReadError):
    """The target of a seek can't be reached by the present RPC."""


class FragmentError(ReadError):
    """The content of a fragment is damaged, or doesn't match its name."""


class UnexpectedEOFError(ReadError, EOFError):
    """Content ended too early."""


class DidNotReadExpectedEOFError(ReadError):
    """A fragment has more content than its name says."""


class DataLossError(ReadError):
    """Requested content no longer exists, or is damaged at its broker.

    Args:
        text: Reason.
        journal: Journal being read.
        offset: First missing offset.
        missing: Missing ranges, as (begin, end) pairs.
    """

    def __init__(
        self,
        text: str,
        *,
        journal: str = "",
        offset: int = -1,
        missing: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.missing = missing
        super().__init__(text, journal=journal, offset=offset)


class FramingError(GazetteError):
    """Bytes of a journal can't be split or decoded as messages.

    A journal that can't be read raises the error of the read instead.

    Args:
        text: Reason.
        journal: Journal being read, or empty.
        begin: Offset of the first affected byte.
        end: Offset after the last affected byte, at which reading can continue.
        kind: One of `decode`, `desync`, `too_large`, `unexpected_eof`, `uuid`.
    """

    def __init__(
        self, text: str, *, journal: str = "", begin: int = -1, end: int = -1, kind: str = "decode"
    ) -> None:
        self.text = text
        self.journal = journal
        self.begin = begin
        self.end = end
        self.kind = kind
        super().__init__(text)


class DesyncDetectedError(FramingError):
    """Content where a fixed frame should begin isn't the magic word; it was skipped."""


class FrameTooLargeError(FramingError):
    """A frame is longer than the reader accepts."""


class UnrecognizedContentTypeError(FramingError):
    """No framing is registered for the content type of a journal."""


class MappingError(GazetteError):
    """A message can't be mapped to a journal."""


class EmptyListResponseError(MappingError):
    """A mapping has no partitions."""


class SequencingError(GazetteError):
    """Base of the errors of a Sequencer."""


class SequencerStateError(SequencingError):
    """A method of a Sequencer was called in the wrong state."""


class ReplayError(SequencingError):
    """The replay of an evicted transaction failed or is inconsistent.

    It's `retryable` if the error of its read is.

    Args:
        text: What went wrong.
        journal: Journal of the transaction, or empty.
        offset: Offset up to which it was read again, or -1.
    """

    def __init__(self, text: str, *, journal: str = "", offset: int = -1) -> None:
        self.journal = journal
        self.offset = offset
        super().__init__(text)


class MixedTransactionError(GazetteError):
    """A committed message was published to a journal with an open transaction."""


class DependencyError(GazetteError):
    """An operation didn't start because a dependency failed."""


class TransactionError(GazetteError):
    """A transaction failed, or a call has no place in it. The cause is the first error."""


class NotAwaitedError(TransactionError, RuntimeError):
    """Calls to publish of a transaction were not awaited, so that their messages are missing."""


class TooManyTransactionsError(TransactionError):
    """Too many transactions of a Publisher are open already."""

    retryable = True


class QueueFullError(GazetteError):
    """Too many messages of `publish_uncommitted_nowait()` are queued: await `drain()`."""

    retryable = True


class RecoveryError(GazetteError):
    """A recovery log can't be played."""


class FencedError(GazetteError):
    """Another process has taken over."""


class StoreError(GazetteError):
    """A store failed."""


class LockedError(StoreError):
    """A file is in use by another process."""


class AuthorizationError(GazetteError):
    """A token is missing, invalid, or doesn't permit the operation."""


class ConfigurationError(GazetteError):
    """An option, environment variable or optional dependency is missing or invalid."""


class ListenError(ConfigurationError):
    """A server can't listen on its address; the text says why, and what to do."""


class UsageError(GazetteError, RuntimeError):
    """An object isn't in a state that allows the call: it's closed, not entered, or in use."""
