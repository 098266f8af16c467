"""The client of a Gazette broker."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.client.appends import once as append_once
from gazette_aio.client.appends.service import AppendService
from gazette_aio.client.auth import Auth, authorizer
from gazette_aio.client.fragments.source import FragmentSource
from gazette_aio.client.listing import calls as listing
from gazette_aio.client.listing.watched_list import POLL_INTERVAL, WatchedList
from gazette_aio.client.metrics import Metrics, NoMetrics
from gazette_aio.client.options import (
    TLSOptions,
    address_from_environment,
    cache_size_from_environment,
    cache_ttl_from_environment,
    file_root_from_environment,
    zone_from_environment,
)
from gazette_aio.client.reads.retry_reader import RetryReader
from gazette_aio.client.retry import RetryPolicy
from gazette_aio.client.rpc.dispatch import Dispatcher
from gazette_aio.client.rpc.route_cache import DispatchRouter, NoopDispatchRouter, RouteCache
from gazette_aio.client.rpc.stub import JournalStub
from gazette_aio.client.status import ClientStatus, client_status

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Iterable

    from gazette_aio.client.appends.once import Content
    from gazette_aio.client.fragments.fetcher import FragmentFetcher
    from gazette_aio.client.reads.reader import Reader

CONNECT_TIMEOUT: Final = 20.0


class JournalClient(Owner):
    """A client of the brokers of a Gazette cluster, or of one broker.

    Nothing happens before it's first used, from when on it belongs to the running event loop. As
    an async context manager it's closed at the end.

    Args:
        address: Endpoint of a broker; `http`, `https` or `unix`.
        zone: Zone of this process, whose brokers are preferred.
        auth: What authorizes RPCs: KeyedAuth, BearerAuth, NoopAuth, an Authorizer, or a function
            which returns a token. None looks at `$BROKER_AUTH_KEYS` and `$BROKER_AUTH_TOKEN`.
        tls: TLS of `https` endpoints; None looks into the environment.
        retry: Which failures to retry.
        metrics: Receives counts.
        cache_size: Journals whose routes are kept, so that their RPCs go to brokers which serve
            them; 0 has all RPCs go to the address. None for `$BROKER_CACHE_SIZE`, else 256.
        cache_ttl: Seconds for which routes are kept. None for `$BROKER_CACHE_TTL`, else 60.
        file_root: Directory of fragment files with `file` URLs. None for that of
            `install_file_transport()`, else `$BROKER_FILE_ROOT`, else there is none.
        fragment_fetcher: What fetches fragment files with `http` and `https` URLs; it's closed
            with the client. None for a HTTPFragmentFetcher.
        connect_timeout: Seconds within which a broker must answer.
        drain_timeout: Seconds for which `aclose()` waits for pending appends.
        strict: Whether to check responses for all rules of the protocol.
        allow_parent: Whether to append to, read and create journals whose names begin with `../`,
            which reach outside of the root directory of a file store.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: Another option is invalid.
    """

    def __init__(
        self,
        address: str,
        *,
        zone: str | None = None,
        auth: Auth | None = None,
        tls: TLSOptions | None = None,
        retry: RetryPolicy | None = None,
        metrics: Metrics | None = None,
        cache_size: int | None = None,
        cache_ttl: float | None = None,
        file_root: str | os.PathLike[str] | None = None,
        fragment_fetcher: FragmentFetcher | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        drain_timeout: float = 30.0,
        strict: bool = False,
        allow_parent: bool = False,
    ) -> None:
        self.zone = zone or zone_from_environment()
        self.retry_policy = retry or RetryPolicy()
        self.router = _router(cache_size, cache_ttl)
        """Knows the routes of journals."""
        self._dispatcher = Dispatcher(
            address,
            tls or TLSOptions.from_environment(),
            connect_timeout=connect_timeout,
            router=self.router,
            zone=self.zone,
        )
        self.rpc = JournalStub(
            self._dispatcher,
            authorizer(auth),
            metrics or NoMetrics(),
            strict=strict,
            allow_parent=allow_parent,
        )
        """The RPCs as the wire has them."""
        self.fragments = FragmentSource(
            file_root=file_root,
            fallback_root=file_root_from_environment(),
            fetcher=fragment_fetcher,
            metrics=self.rpc.metrics,
        )
        """Fragment files, which are read from their stores."""
        self.appends = AppendService(self, drain_timeout=drain_timeout)
        """Appends in the background."""
        self.readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        """Readers which have begun."""
        self.watches: weakref.WeakSet[WatchedList] = weakref.WeakSet()
        """Lists of journals which have begun to be kept up to date."""

    @property
    def endpoint(self) -> str:
        """The broker's endpoint."""
        return self._dispatcher.endpoint

    async def list(self, selector: str | pb.LabelSelector | pb.ListRequest = "") -> pb.ListResponse:
        """Return all journals that a selector matches, as `list_all_journals()`.

        Cancellation: safe.
        """
        return await listing.list_all_journals(self, selector)

    def watch(
        self,
        selector: str | pb.LabelSelector | pb.ListRequest = "",
        *,
        changed: asyncio.Event | None = None,
        on_error: Callable[[pb.GazetteError], None] | None = None,
        poll_interval: float = POLL_INTERVAL,
        retry_policy: RetryPolicy | None = None,
    ) -> WatchedList:
        """Return a list of journals which is kept up to date while it's entered.

        The arguments are those of `WatchedList`.

        Raises:
            ValidationError: The selector is invalid.
            ConfigurationError: Another argument is.
        """
        return WatchedList(
            self,
            selector,
            changed=changed,
            on_error=on_error,
            poll_interval=poll_interval,
            retry_policy=retry_policy,
        )

    async def apply(
        self,
        request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change],
        *,
        batch_size: int = 0,
    ) -> pb.ApplyResponse:
        """Create, update and delete journals, as `apply_journals()`.

        Cancellation: aborts — what was applied remains.
        """
        return await listing.apply_journals(self, request, batch_size=batch_size)

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
    ) -> RetryReader:
        """Return a reader of a journal.

        `offset`, `block`, `end_offset` and `begin_mod_time` go with the name of a journal only.

        Args:
            request: The journal, or a request.
            offset: Offset to begin at, or -1 for the write head.
            block: Whether to wait for new content at the write head.
            end_offset: Offset to end at, or 0 for none.
            begin_mod_time: Unix seconds; fragments persisted before are skipped.
            direct: Whether to fetch the files of persisted fragments from their store, rather than
                through a broker; None for what `do_not_proxy` of the request says, which is no.
                What this client can't fetch still comes through a broker.
            verify: Whether to check the sums of fragment files which are read directly.
            retry_policy: Which failures to retry; None for the policy of the client.

        Raises:
            ValidationError: The request is invalid.
            ConfigurationError: It's for metadata only.
        """
        if isinstance(request, str):
            request = pb.ReadRequest(
                journal=request,
                offset=offset,
                block=block,
                end_offset=end_offset,
                begin_mod_time=begin_mod_time,
            )
        return RetryReader(self, request, retry_policy=retry_policy, direct=direct, verify=verify)

    async def append(
        self,
        request: pb.AppendRequest | str,
        *content: Content,
        retry_policy: RetryPolicy | None = None,
    ) -> pb.AppendResponse:
        """Append content to a journal as a whole, as the function `append()`.

        Cancellation: aborts — rolled back, unless the broker is about to commit.
        """
        return await append_once.append(self, request, *content, retry_policy=retry_policy)

    async def list_fragments(self, request: pb.FragmentsRequest | str) -> pb.FragmentsResponse:
        """Return all fragments of a journal, as `list_all_fragments()`.

        Cancellation: safe.
        """
        return await listing.list_all_fragments(self, request)

    async def fragment_store_health(
        self, store: str, *, check_delete_prefix: str | None = None
    ) -> pb.FragmentStoreHealthResponse:
        """Have a broker check a fragment store, as the function of this name.

        Cancellation: safe.
        """
        return await listing.fragment_store_health(
            self, store, check_delete_prefix=check_delete_prefix
        )

    def status(self) -> ClientStatus:
        """Return what the client is about at this moment: streams, watches, pending appends.

        It costs little, so that it may be logged or served once a second.
        """
        return client_status(self, self._dispatcher.state, self._dispatcher.members())

    async def aclose(self) -> None:
        """Wait for pending appends within a bound, end all RPCs, and hang up. Idempotent.

        Cancellation: poisons — pending appends are cancelled at once.
        """
        try:
            await self.appends.aclose()
        finally:
            try:
                await self.fragments.aclose()
            finally:
                try:
                    await self.rpc.aclose()
                finally:
                    await self._dispatcher.aclose()

    def __del__(self) -> None:
        dispatcher = getattr(self, "_dispatcher", None)
        if dispatcher is not None and dispatcher.is_dialled:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return (
            f"<JournalClient of {self.endpoint}, {self._dispatcher.state}, "
            f"{len(self.rpc.streams)} streams, {self.appends.status().journals} journals with "
            "pending appends>"
        )


def _router(size: int | None, ttl: float | None) -> DispatchRouter:
    size = cache_size_from_environment() if size is None else size
    ttl = cache_ttl_from_environment() if ttl is None else ttl
    return RouteCache(size, ttl) if size else NoopDispatchRouter()


def connect(
    address: str | None = None,
    *,
    zone: str | None = None,
    auth: Auth | None = None,
    tls: TLSOptions | None = None,
    retry: RetryPolicy | None = None,
    metrics: Metrics | None = None,
    cache_size: int | None = None,
    cache_ttl: float | None = None,
    file_root: str | os.PathLike[str] | None = None,
    fragment_fetcher: FragmentFetcher | None = None,
    connect_timeout: float = CONNECT_TIMEOUT,
    drain_timeout: float = 30.0,
    strict: bool = False,
    allow_parent: bool = False,
) -> JournalClient:
    """Return a client, to be used as an async context manager. Nothing happens yet.

    Args:
        address: Endpoint of a broker; None for `$BROKER_ADDRESS`, else `http://localhost:8080`.
        zone: Zone of this process, whose brokers are preferred; None for `$ZONE`, else `local`.
        auth: What authorizes RPCs; None for what the environment says.
        tls: TLS of `https` endpoints; None for what the environment says.
        retry: Which failures to retry.
        metrics: Receives counts.
        cache_size: Journals whose routes are kept, so that their RPCs go to brokers which serve
            them; 0 has all RPCs go to the address. None for `$BROKER_CACHE_SIZE`, else 256.
        cache_ttl: Seconds for which routes are kept. None for `$BROKER_CACHE_TTL`, else 60.
        file_root: Directory of fragment files with `file` URLs. None for that of
            `install_file_transport()`, else `$BROKER_FILE_ROOT`, else there is none.
        fragment_fetcher: What fetches fragment files with `http` and `https` URLs; it's closed
            with the client. None for a HTTPFragmentFetcher.
        connect_timeout: Seconds within which a broker must answer.
        drain_timeout: Seconds for which closing waits for pending appends.
        strict: Whether to check responses for all rules of the protocol, rather than to put up
            with what brokers of other releases may know.
        allow_parent: Whether to append to, read and create journals whose names begin with `../`,
            which reach outside of the root directory of a file store.

    Example:
        async with connect("http://localhost:8080") as client:
            await client.append("a/journal", b"content")

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: Another option is invalid.
    """
    return JournalClient(
        address or address_from_environment(),
        zone=zone,
        auth=auth,
        tls=tls,
        retry=retry,
        metrics=metrics,
        cache_size=cache_size,
        cache_ttl=cache_ttl,
        file_root=file_root,
        fragment_fetcher=fragment_fetcher,
        connect_timeout=connect_timeout,
        drain_timeout=drain_timeout,
        strict=strict,
        allow_parent=allow_parent,
    )
