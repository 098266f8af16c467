"""State that all parts of a client share: connections, RPCs, fragment files, registries."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Final, TypedDict

import gazette_aio.protocol as pb
from gazette_aio.client.append_memory import AppendMemory
from gazette_aio.client.auth import Auth, authorizer
from gazette_aio.client.deadline import Deadline, checked_timeout
from gazette_aio.client.fragments.source import FragmentSource
from gazette_aio.client.metrics import Metrics, NoMetrics
from gazette_aio.client.options import (
    DEFAULT_ZONE,
    TLSOptions,
    cache_size_from_environment,
    cache_ttl_from_environment,
    variable,
)
from gazette_aio.client.retry import RetryPolicy
from gazette_aio.client.rpc.channel_pool import JournalMethods
from gazette_aio.client.rpc.dispatch import Dispatcher
from gazette_aio.client.rpc.route_cache import DispatchRouter, NoopDispatchRouter, RouteCache
from gazette_aio.client.rpc.stub import JournalStub
from gazette_aio.client.status import ClientStatus, total_appends
from gazette_aio.protocol.suggestion import suggestion

if TYPE_CHECKING:
    import os

    from gazette_aio.client.fragments.fetcher import FragmentFetcher
    from gazette_aio.client.status import AppendStatus, Reporting, StreamStatus, WatchStatus
    from gazette_aio.client.tracing import Tracing

_MOST_LOOKS: Final = 16

CONNECT_SECONDS: Final = 20.0
"""Seconds within which a member must answer."""


STARTS_PER_TURN: Final = 16
"""Read RPCs that begin in a turn of the event loop: thousands do after a broker's restart."""


class ClientOptions(TypedDict, total=False):
    """Options of `connect()`, which documents them."""

    zone: str | None
    auth: Auth | None
    tls: TLSOptions | None
    retry: RetryPolicy | None
    metrics: Metrics | None
    tracing: Tracing | None
    router: DispatchRouter | None
    cache_size: int | None
    cache_ttl: float | None
    file_root: str | os.PathLike[str] | None
    fragment_fetcher: FragmentFetcher | None
    timeout: float | None
    connect_timeout: float
    drain_timeout: float
    strict: bool
    allow_parent: bool


class ClientContext:
    """State that all parts of a client share.

    Args:
        address: Endpoint of a broker; `http`, `https` or `unix`.
        options: Options of `connect()`.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: An option is invalid.
        TypeError: An option is unknown.
    """

    def __init__(self, address: str, options: ClientOptions) -> None:
        if unknown := options.keys() - ClientOptions.__optional_keys__:
            name = min(unknown)
            hint = suggestion(name, ClientOptions.__optional_keys__)
            raise TypeError(f"connect() has no option {name}{hint}")
        self.metrics: Metrics = options.get("metrics") or NoMetrics()
        """Receives counts."""
        self.tracing: Tracing | None = options.get("tracing")
        """Makes spans; None for none."""
        self.strict: bool = options.get("strict", False)
        """Whether responses are checked for all rules of the protocol."""
        self.zone: str = options.get("zone") or variable("ZONE", DEFAULT_ZONE)
        """Zone of this process, whose brokers are preferred."""
        self.retry_policy: RetryPolicy = options.get("retry") or RetryPolicy()
        """Failures to retry, unless a call has a policy of its own."""
        self.timeout: float | None = checked_timeout(options.get("timeout"))
        """Seconds within which calls must complete, unless they have a bound of their own."""
        self.read_starts: asyncio.Semaphore = asyncio.Semaphore(STARTS_PER_TURN)
        """Held by each Read RPC that began in this turn of the event loop."""
        self.router: DispatchRouter = chosen_router(
            options.get("router"), options.get("cache_size"), options.get("cache_ttl")
        )
        """Routes of journals."""
        self.dispatcher: Dispatcher[JournalMethods] = Dispatcher(
            address,
            JournalMethods,
            options.get("tls") or TLSOptions.from_environment(),
            connect_timeout=options.get("connect_timeout", CONNECT_SECONDS),
            router=self.router,
            zone=self.zone,
        )
        """Connections to brokers."""
        self.rpc: JournalStub = JournalStub(
            self.dispatcher,
            authorizer(options.get("auth")),
            allow_parent=options.get("allow_parent", False),
        )
        """RPCs, without retries."""
        self.fragments: FragmentSource = FragmentSource(
            file_root=options.get("file_root"),
            fallback_root=variable("BROKER_FILE_ROOT") or None,
            fetcher=options.get("fragment_fetcher"),
            metrics=self.metrics,
        )
        """Fragment files, which are read from their stores."""
        self.knows_prefixes = False
        """Whether the broker is known to match labels by their prefix, as of v0.100."""
        self.readers: weakref.WeakSet[Reporting[StreamStatus]] = weakref.WeakSet()
        """Readers that have begun."""
        self.watches: weakref.WeakSet[Reporting[WatchStatus]] = weakref.WeakSet()
        """Lists of journals that were entered."""
        self.head_looks: asyncio.Semaphore = asyncio.Semaphore(_MOST_LOOKS)
        """Looks at write heads at a time: thousands of reads may begin at once."""
        self.append_services: weakref.WeakSet[Reporting[AppendStatus]] = weakref.WeakSet()
        """Services that append in the background."""
        self.append_memory: AppendMemory = AppendMemory()
        """Memory that pending appends share."""

    def deadline(
        self, operation: str, timeout: float | None, *, journal: str = "", doubt: str = ""
    ) -> Deadline:
        """Return the bound of one operation.

        Args:
            operation: Name of the operation.
            timeout: Seconds, `math.inf` for no limit, or None for the default of the client.
            journal: As of Deadline.
            doubt: As of Deadline.

        Raises:
            ConfigurationError: The timeout isn't positive.
        """
        seconds = checked_timeout(timeout, self.timeout)
        return Deadline(self.dispatcher, operation, seconds, journal=journal, doubt=doubt)

    def status(self) -> ClientStatus:
        """Return the status of the client."""
        return ClientStatus(
            endpoint=self.dispatcher.endpoint,
            connection=self.dispatcher.state,
            members=self.dispatcher.members(),
            streams=(
                *(reader.status() for reader in self.readers if reader.is_live),
                *(stream.status() for stream in self.rpc.streams if not stream.is_reported),
            ),
            watches=tuple(watch.status() for watch in self.watches if watch.is_live),
            appends=total_appends(
                service.status() for service in self.append_services if service.is_live
            ),
        )

    async def aclose(self) -> None:
        """Close fragment files, streams and connections. Idempotent.

        Cancellation: poisons — what is left is closed when it's collected.
        """
        try:
            await self.fragments.aclose()
        finally:
            try:
                await self.rpc.aclose()
            finally:
                await self.dispatcher.aclose()

    def __del__(self) -> None:
        # Readers may outlive their client, so its connections end with the last of them.
        dispatcher: Dispatcher[JournalMethods] | None = getattr(self, "dispatcher", None)
        if dispatcher is not None:
            dispatcher.end_from_anywhere(self.aclose)


def chosen_router(
    router: DispatchRouter | None, size: int | None, ttl: float | None, prefix: str = "BROKER"
) -> DispatchRouter:
    """Return the router of the options of a client, or of the environment, as of `prefix`.

    Raises:
        ConfigurationError: There are a router and options of a cache, or an option is invalid.
    """
    if router is not None:
        if size is not None or ttl is not None:
            raise pb.ConfigurationError("a router has its own cache: cache_size and cache_ttl")
        return router
    size = cache_size_from_environment(prefix) if size is None else size
    ttl = cache_ttl_from_environment(prefix) if ttl is None else ttl
    return RouteCache(size, ttl) if size else NoopDispatchRouter()
