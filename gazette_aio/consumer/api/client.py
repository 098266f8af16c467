"""ShardClient, the connections to a consumer's members, and `connect_shards()`, which makes one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from gazette_aio.aio.owner import Owner
from gazette_aio.client.auth import authorizer
from gazette_aio.client.context import CONNECT_SECONDS, chosen_router
from gazette_aio.client.deadline import Deadline, checked_timeout
from gazette_aio.client.options import DEFAULT_ZONE, TLSOptions, address_or_default, variable
from gazette_aio.client.retry import RetryPolicy
from gazette_aio.client.rpc.dispatch import Dispatcher
from gazette_aio.consumer.api.stub import ShardMethods, ShardStub

if TYPE_CHECKING:
    from gazette_aio.client.auth import Auth
    from gazette_aio.client.rpc.route_cache import DispatchRouter

_PREFIX: Final = "CONSUMER"


class ShardClientOptions(TypedDict, total=False):
    """Options of `connect_shards()`, which documents them."""

    zone: str | None
    auth: Auth | None
    tls: TLSOptions | None
    retry: RetryPolicy | None
    router: DispatchRouter | None
    cache_size: int | None
    cache_ttl: float | None
    timeout: float | None
    connect_timeout: float
    strict: bool


class ShardClient(Owner):
    """A client of the members of a consumer. `connect_shards()` makes one.

    The functions of `consumer.api` use it. The client connects at its first use, and belongs to the
    running event loop from then on. As an async context manager it's closed at the end.

    Args:
        address: Endpoint of a member; `http`, `https` or `unix`.
        options: As `connect_shards()`.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: An option is invalid.
        TypeError: An option is unknown.
    """

    def __init__(self, address: str, **options: Unpack[ShardClientOptions]) -> None:
        if unknown := options.keys() - ShardClientOptions.__optional_keys__:
            raise TypeError(f"connect_shards() has no option {', '.join(sorted(unknown))}")
        self.strict: bool = options.get("strict", False)
        """Whether responses are checked for all rules of the protocol."""
        self.retry_policy: RetryPolicy = options.get("retry") or RetryPolicy()
        """Failures to retry."""
        self.timeout: float | None = checked_timeout(options.get("timeout"))
        """Seconds within which calls must complete, unless they have a bound of their own."""
        self.router: DispatchRouter = chosen_router(
            options.get("router"), options.get("cache_size"), options.get("cache_ttl"), _PREFIX
        )
        """Routes of shards."""
        self.dispatcher: Dispatcher[ShardMethods] = Dispatcher(
            address,
            ShardMethods,
            options.get("tls") or TLSOptions.from_environment(_PREFIX),
            connect_timeout=options.get("connect_timeout", CONNECT_SECONDS),
            router=self.router,
            zone=options.get("zone") or variable("ZONE", DEFAULT_ZONE),
            peer="consumer",
        )
        """Connections to members."""
        self.rpc: ShardStub = ShardStub(self.dispatcher, authorizer(options.get("auth"), _PREFIX))
        """RPCs, without retries."""

    @property
    def endpoint(self) -> str:
        """Endpoint of the member that the client was given."""
        return self.dispatcher.endpoint

    def deadline(self, operation: str, timeout: float | None, *, doubt: str = "") -> Deadline:
        """Return the bound of one operation.

        Args:
            operation: Name of the operation.
            timeout: Seconds, `math.inf` for no limit, or None for the default of the client.
            doubt: As of Deadline.

        Raises:
            ConfigurationError: The timeout isn't positive.
        """
        seconds = checked_timeout(timeout, self.timeout)
        return Deadline(self.dispatcher, operation, seconds, doubt=doubt)

    async def aclose(self) -> None:
        """End all RPCs, and disconnect. Idempotent.

        Cancellation: safe — call again.
        """
        await self.dispatcher.aclose()

    def __del__(self) -> None:
        dispatcher = getattr(self, "dispatcher", None)
        if dispatcher is not None and dispatcher.is_dialled:
            dispatcher.end_from_anywhere(self.aclose)
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<ShardClient of {self.endpoint}, {self.dispatcher.state}>"


def connect_shards(
    address: str | None = None, **options: Unpack[ShardClientOptions]
) -> ShardClient:
    """Return a client of shards, to be used as an async context manager.

    It connects at its first use.

    Args:
        address: Endpoint of a member of the consumer; `http`, `https` or `unix`. None for
            `$CONSUMER_ADDRESS`, else `http://localhost:8080`.
        **options: Any of the following.
        zone: Zone of this process, whose members are preferred; None for `$ZONE`, else `local`.
        auth: Authorizes RPCs, as of `connect()`. None for `$CONSUMER_AUTH_KEYS`, else
            `$CONSUMER_AUTH_TOKEN`, else no authorization.
        tls: TLS of `https` endpoints; None for `$CONSUMER_TRUSTED_CA_FILE`, `$CONSUMER_CERT_FILE`
            and `$CONSUMER_CERT_KEY_FILE`.
        retry: Failures to retry; None for `RetryPolicy()`.
        router: Routes of shards; None for a RouteCache of `cache_size` and `cache_ttl`.
        cache_size: Shards whose routes are kept; 0 sends all RPCs to the address. None for
            `$CONSUMER_CACHE_SIZE`, else 256.
        cache_ttl: Seconds to keep a route; None for `$CONSUMER_CACHE_TTL`, else 60.
        timeout: Seconds within which a call must complete, unless it's given a `timeout` of its
            own; None, the default, for no limit.
        connect_timeout: Seconds within which a member must answer; 20 by default.
        strict: Whether to check responses for all rules of the protocol, rather than to accept what
            only members of other releases know. False by default.

    Raises:
        ValidationError: The address isn't an endpoint.
        ConfigurationError: An option is invalid.
        TypeError: An option is unknown.
    """
    return ShardClient(address_or_default(address, "CONSUMER_ADDRESS"), **options)
