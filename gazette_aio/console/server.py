"""Server of the console: its address, its start and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.aio.threads import in_thread
from gazette_aio.console.assets import read_assets
from gazette_aio.console.guards import LOOPBACK_HOSTS
from gazette_aio.console.listings import ListingLimits, Listings
from gazette_aio.console.routes import Site, application
from gazette_aio.console.tails import TailLimits, Tails
from gazette_aio.serving.address import listen_address
from gazette_aio.serving.http_site import SiteRunner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.console.listings import OpenClient
    from gazette_aio.console.routes import OpenShards


class Console:
    """Serves a page about the journals of a cluster.

    Args:
        open_client: Opens a client of the brokers with an authorizer.
        host: Address to listen on.
        port: Port; zero takes any free one.
        allow_hosts: Further host names by which browsers call the console.
        tail_limits: Bounds of live tails; None for the defaults.
        listing_limits: Bounds of cached listings; None for the defaults.
        open_shards: Opens a client of a consumer with an authorizer; None if there is no consumer.
        read_only: Whether edits of specs are refused, whatever the token permits.
    """

    def __init__(
        self,
        open_client: OpenClient,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_hosts: Iterable[str] = (),
        tail_limits: TailLimits | None = None,
        listing_limits: ListingLimits | None = None,
        open_shards: OpenShards | None = None,
        read_only: bool = False,
    ) -> None:
        self._open_client = open_client
        self._open_shards = open_shards
        self._read_only = read_only
        self._host = host
        self._port = port
        named = (name.lower() for name in (host, *allow_hosts) if name)
        self._hosts = LOOPBACK_HOSTS | frozenset(named)
        self._tails = Tails(tail_limits or TailLimits())
        self._listings = Listings(open_client, listing_limits or ListingLimits())
        self._runner: SiteRunner | None = None

    @property
    def url(self) -> str:
        """URL of the page, once the console has started."""
        return f"http://{listen_address(self._host, self._port)}/"

    def ready(self) -> dict[str, object]:
        """Return the members of the ready line."""
        return {"console": self.url}

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            ConfigurationError: The address can't be listened on.

        Cancellation: safe, if `stop()` is called.
        """
        site = Site(
            open_client=self._open_client,
            open_shards=self._open_shards,
            assets=await in_thread(read_assets, read_only=self._read_only),
            hosts=self._hosts,
            tails=self._tails,
            listings=self._listings,
            read_only=self._read_only,
        )
        runner = self._runner = SiteRunner(application(site))
        self._port = await runner.listen(self._host, self._port)

    async def flush(self) -> None:
        """Do nothing: the console has no durable state.

        Cancellation: safe.
        """

    async def stop(self, grace: float) -> None:
        """Stop listening, and end requests after `grace` seconds. Idempotent.

        Cancellation: safe — call again.
        """
        if (runner := self._runner) is None:
            return
        await runner.stop_listening()
        self._tails.end()
        await self._listings.aclose()
        if runner.server is not None:
            runner.server.pre_shutdown()
            await runner.server.shutdown(grace)
        await runner.cleanup()
        self._runner = None
