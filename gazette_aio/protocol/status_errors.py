"""Exceptions of the statuses of brokers and of shards: one class per status.

They belong to the tree of `protocol.errors`. The numbers of both kinds of status collide, so each
kind has a base and a table of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol._generated import consumer_pb2 as pc
from gazette_aio.protocol.errors import GazetteError


class StatusError(GazetteError):
    """A server answered with a status other than OK.

    Args:
        detail: Text before the name of the status.
        header: Header of the response, if it had one.
        response: The response.
        attempt: Number of attempts since the last success, from zero.
    """

    status: int = -1
    """Number of the status."""
    endpoint: str = ""
    """Endpoint that the client called; empty if it isn't known."""
    explanation: str = ""
    """Meaning of the status, and the remedy if there's one; empty for an unknown status."""

    subject: ClassVar[str]
    """Attribute with the name of the journal or shard: `journal` or `shard`."""
    statuses: ClassVar[Any]
    """Enum of the statuses."""
    classes: ClassVar[dict[int, type[Any]]]
    """Class of each known status."""

    def __init_subclass__(cls, *, status: int | None = None, retryable: bool = False) -> None:
        super().__init_subclass__()
        if status is None:
            return
        assert status not in cls.classes, f"two classes for status {status}"
        cls.classes[status] = cls
        cls.status = status
        cls.retryable = retryable

    def __init__(
        self, detail: str, *, header: pb.Header | None, response: Any, attempt: int
    ) -> None:
        self.detail = detail
        self.header = header
        self.response = response
        self.attempt = attempt
        super().__init__(detail)

    def __str__(self) -> str:
        text = self._text(self.endpoint)
        return f"{text}: {self.explanation}" if self.explanation else text

    @property
    def text_without_endpoint(self) -> str:
        """Text of the error without the endpoint of the server, and without the explanation."""
        return self._text("")

    def _text(self, endpoint: str) -> str:
        text = f"{self.detail}: {self.status_name}" if self.detail else self.status_name
        name = getattr(self, self.subject)
        where = " at ".join(filter(None, (name and f"{self.subject} {name}", endpoint)))
        return f"{text} ({where})" if where else text

    @property
    def status_name(self) -> str:
        """Name of the status, or a text with the number of an unknown status."""
        if self.status in self.statuses.values():
            return str(self.statuses.Name(self.status))
        return f"unknown status {self.status}"


def text_without_endpoint(error: BaseException) -> str:
    """Return the text of an error, without the server's endpoint if the error is a status.

    Statuses of shards have this text, which stays the same when another server fails alike.
    """
    return error.text_without_endpoint if isinstance(error, StatusError) else str(error)


class BrokerStatusError(StatusError):
    """A broker answered with a status other than OK.

    Args:
        detail: Text before the name of the status.
        journal: Journal of the request, or empty.
        header: Header of the response, if it had one.
        response: The response.
        attempt: Number of attempts since the last success, from zero.
    """

    subject = "journal"
    statuses = pb.Status
    classes: ClassVar[dict[int, type[BrokerStatusError]]] = {}

    def __init__(
        self,
        detail: str = "",
        *,
        journal: str = "",
        header: pb.Header | None = None,
        response: Any = None,
        attempt: int = 0,
    ) -> None:
        self.journal = journal
        super().__init__(detail, header=header, response=response, attempt=attempt)


class UnknownStatusError(BrokerStatusError):
    """A status which this release doesn't know; `status` holds its number."""


class JournalNotFoundError(BrokerStatusError, status=pb.Status.JOURNAL_NOT_FOUND):
    """No such journal, or the caller is not authorized to see it."""

    explanation = "no such journal, or the token doesn't cover it"


def not_listed(
    name: str, listing: pb.ListResponse, endpoint: str, *, step: str = "", remedy: str = ""
) -> JournalNotFoundError:
    """Return the error of a journal that a listing of its name lacks.

    Args:
        name: Name of the journal.
        listing: The listing.
        endpoint: Endpoint that was asked.
        step: Text before the reason, such as `fetching journal spec: `.
        remedy: Text after the reason.
    """
    detail = f"{step}named journal does not exist ({name}){remedy}"
    error = JournalNotFoundError(detail, journal=name, header=listing.header, response=listing)
    error.endpoint = endpoint
    return error


class NoJournalPrimaryBrokerError(
    BrokerStatusError, status=pb.Status.NO_JOURNAL_PRIMARY_BROKER, retryable=True
):
    """The journal has no primary broker at present."""

    explanation = "no broker is the journal's primary now"


class NotJournalPrimaryBrokerError(
    BrokerStatusError, status=pb.Status.NOT_JOURNAL_PRIMARY_BROKER, retryable=True
):
    """The broker isn't primary of the journal, and the request forbids to proxy."""


class InsufficientJournalBrokersError(
    BrokerStatusError, status=pb.Status.INSUFFICIENT_JOURNAL_BROKERS, retryable=True
):
    """The journal has fewer brokers than its replication requires."""

    explanation = "too few brokers for the journal's replication"


class NotJournalBrokerError(BrokerStatusError, status=pb.Status.NOT_JOURNAL_BROKER, retryable=True):
    """The broker isn't a replica of the journal, and the request forbids to proxy."""


class OffsetNotYetAvailableError(BrokerStatusError, status=pb.Status.OFFSET_NOT_YET_AVAILABLE):
    """A non-blocking read reached the write head, or a hole that the broker doesn't skip."""

    explanation = "the offset is beyond the journal's write head"

    def __init__(self, detail: str = "", **parts: Any) -> None:
        super().__init__(detail, **parts)
        if self.is_below_head:
            self.explanation = (
                "the offset is below the write head, and no fragment has it: its content was "
                "removed, or isn't known yet. Read from the begin of a listed fragment, or later"
            )

    @property
    def is_below_head(self) -> bool:
        """Whether the read ended below the write head: its offset lies in a hole, or soon exists.

        Brokers skip a hole only before stored fragments.
        """
        return self._beyond_head() < 0

    @property
    def is_beyond_head(self) -> bool:
        """Whether the read began beyond the write head that the broker knows, and not at it."""
        return self._beyond_head() > 0

    def _beyond_head(self) -> int:
        # Only reads have the status, but a broken broker may answer anything by it.
        response = self.response
        return response.offset - response.write_head if isinstance(response, pb.ReadResponse) else 0


class WrongRouteError(BrokerStatusError, status=pb.Status.WRONG_ROUTE, retryable=True):
    """A replication peer disagrees on the route of the journal."""


class ProposalMismatchError(BrokerStatusError, status=pb.Status.PROPOSAL_MISMATCH):
    """A replication peer disagrees on the content of the journal."""


class EtcdTransactionFailedError(BrokerStatusError, status=pb.Status.ETCD_TRANSACTION_FAILED):
    """An expected revision of an Apply differs; nothing was applied."""

    explanation = "a journal exists already, or was changed or deleted meanwhile: list it again"


class NotAllowedError(BrokerStatusError, status=pb.Status.NOT_ALLOWED):
    """The flags of the journal, or its suspension, forbid the operation."""

    explanation = "the journal's flags, such as O_RDONLY, or its suspension don't allow this"


class WrongAppendOffsetError(BrokerStatusError, status=pb.Status.WRONG_APPEND_OFFSET):
    """The explicit offset of an append isn't the write head."""

    explanation = "the offset isn't the journal's write head"


class IndexHasGreaterOffsetError(BrokerStatusError, status=pb.Status.INDEX_HAS_GREATER_OFFSET):
    """Stored fragments end beyond the write head, which must be reset explicitly."""

    explanation = "stored fragments end beyond the write head"


class RegisterMismatchError(BrokerStatusError, status=pb.Status.REGISTER_MISMATCH):
    """The registers of the journal don't match the selector of an append."""

    explanation = "the journal's registers don't match"


class SuspendedError(BrokerStatusError, status=pb.Status.SUSPENDED):
    """The journal is suspended."""

    explanation = "the journal is suspended: an append resumes it"


class FragmentStoreUnhealthyError(BrokerStatusError, status=pb.Status.FRAGMENT_STORE_UNHEALTHY):
    """The first fragment store of the journal fails its health checks."""

    explanation = "the journal's first fragment store can't be used"


def status_error(
    status: int,
    detail: str = "",
    *,
    journal: str = "",
    header: pb.Header | None = None,
    response: Any = None,
    attempt: int = 0,
    endpoint: str = "",
) -> BrokerStatusError:
    """Return the exception of a `status` other than OK."""
    # Invariant: each known status has a class; a test walks the enum.
    cls = BrokerStatusError.classes.get(status, UnknownStatusError)
    error = cls(detail, journal=journal, header=header, response=response, attempt=attempt)
    error.status = status
    if endpoint:
        error.endpoint = endpoint
    return error


class ShardStatusError(StatusError):
    """A member of a consumer answered with a status other than OK.

    Args:
        detail: Text before the name of the status.
        shard: Shard of the request, or empty.
        header: Header of the response, if it had one.
        response: The response.
        attempt: Number of attempts since the last success, from zero.
    """

    subject = "shard"
    statuses = pc.Status
    classes: ClassVar[dict[int, type[ShardStatusError]]] = {}

    def __init__(
        self,
        detail: str = "",
        *,
        shard: str = "",
        header: pb.Header | None = None,
        response: Any = None,
        attempt: int = 0,
    ) -> None:
        self.shard = shard
        super().__init__(detail, header=header, response=response, attempt=attempt)


class UnknownShardStatusError(ShardStatusError):
    """A status of shards which this release doesn't know; `status` holds its number."""


class ShardNotFoundError(ShardStatusError, status=pc.Status.SHARD_NOT_FOUND):
    """No such shard, or the caller is not authorized to see it."""

    explanation = "no such shard, or the token doesn't cover it"


class NoShardPrimaryError(ShardStatusError, status=pc.Status.NO_SHARD_PRIMARY, retryable=True):
    """The shard has no primary at present."""

    explanation = "the shard has no primary now"


class NotShardPrimaryError(ShardStatusError, status=pc.Status.NOT_SHARD_PRIMARY, retryable=True):
    """The member isn't primary of the shard, and the request forbids to proxy."""

    explanation = "this member isn't the shard's primary"


class ShardEtcdTransactionFailedError(ShardStatusError, status=pc.Status.ETCD_TRANSACTION_FAILED):
    """An expected revision of an Apply differs, or assignments changed; nothing was written."""

    explanation = "a shard exists already, or was changed or deleted meanwhile: list it again"


class ShardStoppedError(ShardStatusError, status=pc.Status.SHARD_STOPPED, retryable=True):
    """The primary of the shard ended, because it failed or was assigned elsewhere."""

    explanation = "the shard has stopped, or failed"


def shard_status_error(
    status: int,
    detail: str = "",
    *,
    shard: str = "",
    header: pb.Header | None = None,
    response: Any = None,
    attempt: int = 0,
    endpoint: str = "",
) -> ShardStatusError:
    """Return the exception of a `status` other than OK."""
    # Invariant: each known status has a class; a test walks the enum.
    cls = ShardStatusError.classes.get(status, UnknownShardStatusError)
    error = cls(detail, shard=shard, header=header, response=response, attempt=attempt)
    error.status = status
    if endpoint:
        error.endpoint = endpoint
    return error
