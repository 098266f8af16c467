"""JournalClient, the façade of this package, and `connect()`, which makes one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Unpack

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.client.appends.append import append
from gazette_aio.client.appends.service import DRAIN_SECONDS, AppendService
from gazette_aio.client.context import ClientContext, ClientOptions
from gazette_aio.client.listing.calls import (
    apply_journals,
    list_all_journals,
)
from gazette_aio.client.listing.fragment_calls import (
    fragment_store_health,
    list_all_fragments,
)
from gazette_aio.client.listing.watched_list import POLL_INTERVAL, WatchedList
from gazette_aio.client.options import address_or_default
from gazette_aio.client.reads.retry_reader import RetryReader
from gazette_aio.protocol.journal import encodable, require_request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from gazette_aio.client.appends.append import Content
    from gazette_aio.client.fragments.source import FragmentSource
    from gazette_aio.client.retry import RetryPolicy
    from gazette_aio.client.rpc.route_cache import DispatchRouter
    from gazette_aio.client.status import ClientStatus


class JournalClient(Owner):
    """A client of the brokers of a Gazette cluster, or of one broker. `connect()` makes one.

    The client connects at its first use, and belongs to the running event loop from then on. As an
    async context manager it's closed at the end.

    Args:
        address: Endpoint of a broker; `http`, `https` or `unix`.
        options: As `connect()`.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: An option is invalid.
    """

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        self.context: ClientContext = ClientContext(address, options)
        """State that all parts of the client share."""
        drain_timeout = options.get("drain_timeout", DRAIN_SECONDS)
        self.appends: AppendService = AppendService(self, drain_timeout=drain_timeout)
        """Appends in the background."""

    @property
    def endpoint(self) -> str:
        """Endpoint of the broker that the client was given."""
        return self.context.dispatcher.endpoint

    @property
    def router(self) -> DispatchRouter:
        """Routes of journals."""
        return self.context.router

    @property
    def fragments(self) -> FragmentSource:
        """Fragment files, which are read from their stores."""
        return self.context.fragments

    @property
    def retry_policy(self) -> RetryPolicy:
        """Failures to retry, unless a call has a policy of its own."""
        return self.context.retry_policy

    async def list(
        self,
        selector: str | pb.LabelSelector | pb.ListRequest = "",
        *,
        timeout: float | None = None,
    ) -> pb.ListResponse:
        """List the journals that a selector matches, with their specs, revisions and routes.

        Arguments and errors are those of `list_all_journals()`.

        Cancellation: safe.
        """
        return await list_all_journals(self, selector, timeout=timeout)

    def watch(
        self,
        selector: str | pb.LabelSelector | pb.ListRequest = "",
        *,
        changed: asyncio.Event | None = None,
        on_error: Callable[[pb.GazetteError], None] | None = None,
        poll_interval: float = POLL_INTERVAL,
        retry_policy: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> WatchedList:
        """Return a list of journals that is kept up to date while it's entered.

        The arguments are those of `WatchedList`.

        Raises:
            ValidationError: The selector is invalid.
            ConfigurationError: Another argument is invalid.
        """
        return WatchedList(
            self,
            selector,
            changed=changed,
            on_error=on_error,
            poll_interval=poll_interval,
            retry_policy=retry_policy,
            timeout=self.context.timeout if timeout is None else timeout,
        )

    async def apply(
        self,
        request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change],
        *,
        batch_size: int = 0,
        timeout: float | None = None,
    ) -> pb.ApplyResponse:
        """Create, update and delete journals: all changes, or none.

        Arguments and errors are those of `apply_journals()`. With a `batch_size`, each batch is
        atomic.

        Cancellation: aborts — changes that were applied remain.
        """
        return await apply_journals(self, request, batch_size=batch_size, timeout=timeout)

    def read(
        self,
        request: pb.ReadRequest | str,
        *,
        offset: int = 0,
        block: bool = False,
        end_offset: int = 0,
        begin_mod_time: int = 0,
        direct: bool | None = None,
        verify: bool = False,
        retry_policy: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> RetryReader:
        """Return a reader of a journal.

        `offset`, `block`, `end_offset` and `begin_mod_time` apply only if `request` is a name.

        Args:
            request: Name of the journal, or a request.
            offset: Offset to begin at, or -1 for the write head.
            block: Whether to wait for new content at the write head.
            end_offset: Offset to end at, or 0 for none.
            begin_mod_time: Unix seconds; fragments persisted earlier are skipped.
            direct: Whether to fetch the files of persisted fragments from their store, rather than
                through a broker; None for `do_not_proxy` of the request, which is False by default.
                Files that this client can't fetch still come through a broker.
            verify: Whether to check the sums of fragment files that are read directly.
            retry_policy: Failures to retry; None for the policy of the client.
            timeout: Seconds for which a read waits for a broker, as of `RetryReader`; `math.inf`
                for no limit, None for that of the client.

        Raises:
            ValidationError: The request is invalid.
            ConfigurationError: The request is for metadata only, or the timeout isn't positive.
        """
        require_request(request, pb.ReadRequest)
        if isinstance(request, str):
            request = pb.ReadRequest(
                journal=encodable(request),
                offset=offset,
                block=block,
                end_offset=end_offset,
                begin_mod_time=begin_mod_time,
            )
        return RetryReader(
            self,
            request,
            retry_policy=retry_policy,
            direct=direct,
            verify=verify,
            timeout=timeout,
        )

    async def append(
        self,
        request: pb.AppendRequest | str,
        *content: Content,
        retry_policy: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> pb.AppendResponse:
        """Append content to a journal as a whole, and return where it is.

        Without content, the append returns the write head after all earlier appends. A retry may
        append the content a second time, unless the request has an `offset`: the broker then
        refuses the retry.

        Args:
            request: Name of the journal, or a request that may have preconditions.
            content: Content to append, in this order. Files are read from their start.
            retry_policy: Failures to retry; None for the policy of the client.
            timeout: Seconds to wait, `math.inf` for no limit; None for that of the client. After
                a timeout, it's unknown whether the content was appended.

        Raises:
            ValidationError: The request is invalid.
            BrokerStatusError: The broker refused the append.
            TransportError: The RPC failed.
            OperationTimeoutError: The time is over.
            TypeError: Content is of another type.
            Exception: Any exception of `content`; nothing is appended.

        Cancellation: aborts — rolled back, unless the broker is about to commit.
        """
        return await append(self, request, *content, retry_policy=retry_policy, timeout=timeout)

    async def list_fragments(
        self, request: pb.FragmentsRequest | str, *, timeout: float | None = None
    ) -> pb.FragmentsResponse:
        """List the fragments of a journal.

        Arguments and errors are those of `list_all_fragments()`.

        Cancellation: safe.
        """
        return await list_all_fragments(self, request, timeout=timeout)

    async def fragment_store_health(
        self,
        store: str,
        *,
        check_delete_prefix: str | None = None,
        timeout: float | None = None,
    ) -> pb.FragmentStoreHealthResponse:
        """Have a broker check a fragment store, and return the result.

        Args:
            store: URL of the store.
            check_delete_prefix: Prefix below which to check that files can be deleted, ending in a
                slash or empty; None doesn't check.
            timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

        Returns:
            The response, of status OK or FRAGMENT_STORE_UNHEALTHY.

        Raises:
            ValidationError: An argument or the response is invalid.
            BrokerStatusError: The broker refused to check.
            TransportError: The RPC failed. Brokers before v0.101 answer UNIMPLEMENTED.
            OperationTimeoutError: The time is over.

        Cancellation: safe.
        """
        return await fragment_store_health(
            self, store, check_delete_prefix=check_delete_prefix, timeout=timeout
        )

    def status(self) -> ClientStatus:
        """Return a snapshot of connections, streams, watches and pending appends.

        It's cheap enough to be logged or served once a second.
        """
        return self.context.status()

    async def aclose(self) -> None:
        """Wait for pending appends within a bound, end all RPCs, and disconnect. Idempotent.

        Cancellation: poisons — pending appends are cancelled at once.
        """
        try:
            await self.appends.aclose()
        finally:
            await self.context.aclose()

    def __del__(self) -> None:
        context = getattr(self, "context", None)
        if context is not None and context.dispatcher.is_dialled:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return (
            f"<JournalClient of {self.endpoint}, {self.context.dispatcher.state}, "
            f"{len(self.context.rpc.streams)} streams, {self.appends.status().journals} journals "
            "with pending appends>"
        )


def connect(address: str | None = None, **options: Unpack[ClientOptions]) -> JournalClient:
    """Return a client, to be used as an async context manager. It connects at its first use.

    Args:
        address: Endpoint of a broker; `http`, `https` or `unix`. None for `$BROKER_ADDRESS`, else
            `http://localhost:8080`.
        **options: Any of the following.
        zone: Zone of this process, whose brokers are preferred; None for `$ZONE`, else `local`.
        auth: Authorizes RPCs: KeyedAuth, BearerAuth, NoopAuth, an Authorizer, or a function that
            returns a token. None for `$BROKER_AUTH_KEYS`, else `$BROKER_AUTH_TOKEN`, else no
            authorization.
        tls: TLS of `https` endpoints; None for `$BROKER_TRUSTED_CA_FILE`, `$BROKER_CERT_FILE` and
            `$BROKER_CERT_KEY_FILE`.
        retry: Failures to retry; None for `RetryPolicy()`.
        metrics: Receives counts; None counts nothing.
        tracing: Makes spans of appends, reads and transactions, such as `OpenTelemetryTracing`;
            None makes none.
        router: Routes of journals, such as a RouteCache shared with another client of this event
            loop; None for a RouteCache of `cache_size` and `cache_ttl`.
        cache_size: Journals whose routes are kept, so that their RPCs go to brokers that serve
            them; 0 sends all RPCs to the address. None for `$BROKER_CACHE_SIZE`, else 256.
        cache_ttl: Seconds to keep a route; None for `$BROKER_CACHE_TTL`, else 60.
        file_root: Directory of fragment files with `file` URLs. None for the directory of
            `install_file_transport()`, else `$BROKER_FILE_ROOT`, else `file` URLs aren't read.
        fragment_fetcher: Fetches fragment files with `http` and `https` URLs, and is closed with
            the client. None for an HTTPFragmentFetcher.
        timeout: Seconds within which a call must complete, unless it's given a `timeout` of its
            own; None, the default, for no limit. After it, calls raise OperationTimeoutError. Of a
            read or a watch, it bounds the wait for a connection. Of an append of `client.appends`,
            it bounds each `await`, after which the append stays pending.
        connect_timeout: Seconds within which a broker must answer; 20 by default.
        drain_timeout: Seconds to wait for pending appends when closing; 30 by default.
        strict: Whether to check responses for all rules of the protocol, rather than to accept what
            only brokers of other releases know. False by default.
        allow_parent: Whether to accept names of journals that begin with `../`, which reach outside
            of the root directory of a file store. False by default.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: An option is invalid.
        TypeError: An option is unknown.

    Example:
        async with connect("http://localhost:8080") as client:
            await client.append("a/journal", b"content")
    """
    return JournalClient(address_or_default(address, "BROKER_ADDRESS"), **options)
