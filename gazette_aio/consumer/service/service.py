"""Service of a member: its server, its session, its shards, and the order of their end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.handlers import Peers, ShardAPI, shard_service
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.service.metrics_feed import MemberView, TransactionCounter
from gazette_aio.consumer.service.options import DEFAULT_PREFIX, ConsumerOptions
from gazette_aio.consumer.shards.host import ShardHost
from gazette_aio.consumer.shards.local_shards import LocalShards
from gazette_aio.consumer.shards.resolver import Resolver
from gazette_aio.consumer.shards.restarts import Restarts
from gazette_aio.consumer.transactions.driver import PrimaryLoop
from gazette_aio.protocol.consumer import ConsumerSpec, GetHintsRequest
from gazette_aio.serving.address import url_host
from gazette_aio.serving.auth_keys import read_auth
from gazette_aio.serving.calls import CallCounts
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer, ServerLimits
from gazette_aio.serving.tls import read_tls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    import grpc
    import grpc.aio
    from anyio.abc import TaskGroup

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.application import Application, Shard, Store
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.service.metrics import ConsumerMetrics
    from gazette_aio.consumer.shards.resolver import Resolution, Resolving
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import GetHintsResponse
    from gazette_aio.serving.tls import ServerTLS

_logger = logging.getLogger(__name__)

_ALL_HOSTS: Final = "[::]"


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of a service that has bound its server."""

    server: GrpcServer
    session: MemberSession
    host: ShardHost
    local_shards: LocalShards
    resolver: Resolver
    peers: Peers


class Service(Owner):
    """A member of a consumer: it serves the shards that the group assigns to it.

    Use it as an async context manager, or by `start()` and `aclose()`. Its end cancels the shards,
    lets RPCs end, and then leaves the group. To hand the shards over before, call
    `exit_gracefully()` and `wait()`.

    Args:
        application: What the shards run. Its `init_application(service)`, if it has one, plain or
            async, is called before the member joins the group: it may `add` gRPC services and
            `spawn` tasks.
        store: Store of the group, such as an EtcdStore. The caller closes it.
        client: Client of brokers. The caller closes it.
        options: Options of the member.
        metrics: Metrics to feed; None for none.

    Raises:
        ConfigurationError: The application lacks hooks, or has some hooks only of a protocol.
        ValidationError: The prefix of the options isn't an absolute, clean path.
    """

    def __init__(
        self,
        application: Application[Any, Any],
        store: KeyValueStore,
        client: JournalClient,
        options: ConsumerOptions | None = None,
        *,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        Hooks(application)  # Raises what's wrong, rather than each shard.
        self.application = application
        """What the shards run."""
        self.store = store
        """Store of the group."""
        self.client = client
        """Client of brokers."""
        self.options = options = options or ConsumerOptions()
        """Options of the member."""
        self.shard_api = ShardAPI()
        """Functions that answer the RPCs of the Shard service. Each may be replaced."""
        self.publish_clock_delta = timedelta()
        """Added to the time of published messages, for tests. It must not decrease."""
        self.stopping = asyncio.Event()
        """Set when the member stops: long-lived RPCs of the application should end then."""
        self.endpoint = ""
        """Endpoint of this member, once it has bound its address."""
        self.process_id = options.process_id()
        """Identity of this member."""
        self._keys = GroupKeys(options.prefix or f"{DEFAULT_PREFIX}/{type(application).__name__}")
        self._metrics = metrics
        self._counts = CallCounts()
        self._work: list[Coroutine[Any, Any, None]] = []
        self._parts: _Parts | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[bool] | None = None

    def __repr__(self) -> str:
        id_ = self.process_id
        return f"<Service {id_.zone}/{id_.suffix} of {self._keys.root} at {self.endpoint or '-'}>"

    def __del__(self) -> None:
        if getattr(self, "_runner", None) is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    @property
    def resolver(self) -> Resolver:
        """Resolver of shards.

        Raises:
            RuntimeError: The service hasn't bound its address.
        """
        return self._bound().resolver

    @property
    def host(self) -> ShardHost:
        """What the shards of this member share.

        Raises:
            RuntimeError: The service hasn't bound its address.
        """
        return self._bound().host

    @property
    def peers(self) -> Peers:
        """Connections to other members.

        Raises:
            RuntimeError: The service hasn't bound its address.
        """
        return self._bound().peers

    @property
    def session(self) -> MemberSession:
        """Membership in the group, and what the member knows of it.

        Raises:
            RuntimeError: The service hasn't bound its address.
        """
        return self._bound().session

    @property
    def is_ready(self) -> bool:
        """Whether the member has joined the group, and isn't stopping."""
        started = self._started
        return started is not None and started.done() and not self.stopping.is_set()

    def resolve(
        self,
        shard: str,
        *,
        claims: pb.Claims | None = None,
        may_proxy: bool = True,
        proxy_header: pb.Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> Resolving:
        """Resolve a shard to the member that serves it. See `Resolver.resolve()`."""
        return self.resolver.resolve(
            shard,
            claims=claims,
            may_proxy=may_proxy,
            proxy_header=proxy_header,
            read_through=read_through,
        )

    def peer_channel(self, resolution: Resolution) -> grpc.aio.Channel:
        """Return a channel to the member that serves a shard, to forward an RPC of the application.

        The other member should resolve the shard with the `proxy_header` that it's sent, which is
        `resolution.header`, so that it knows what this member knew.

        Args:
            resolution: Resolution with status OK of a shard that another member serves. The caller
                doesn't close the channel.

        Raises:
            ValidationError: The resolution names no member, or that member is gone.
            ConfigurationError: A file of TLS can't be read.
        """
        route = resolution.header.route
        endpoint = route.endpoints[route.primary] if route.primary >= 0 else ""
        if not endpoint:
            raise pb.ValidationError("no member serves the shard")
        return self.peers.channel(endpoint)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve further gRPC services. Call it from `init_application()`.

        Generated functions such as `add_WordsServicer_to_server(servicer, service)` call it.

        Raises:
            RuntimeError: The service hasn't bound its address.
        """
        self._bound().server.add(handlers)

    def add_registered_method_handlers(
        self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], /
    ) -> None:
        """Accept what generated functions call beside `add_generic_rpc_handlers()`."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task for as long as the member is in the group. Call it from `init_application()`.

        It's cancelled when the member stops. If it raises, the member stops with that error.
        """
        self._work.append(work)

    async def start(self) -> None:
        """Bind the address, join the group, and begin to serve.

        Raises:
            ConfigurationError: The address can't be bound, or a file of an option can't be used.
            ValidationError: The identity, or the endpoint, is invalid.
            KeyValueStoreError: The store of the group fails.
            LeaseLostError: The lease was lost meanwhile.
            RuntimeError: The service was started before.

        Cancellation: safe — the service is closed.
        """
        if self._runner is not None or self._stop.is_set():
            raise RuntimeError(f"{self!r} was started before")
        loop = asyncio.get_running_loop()
        self._started, self._ended = loop.create_future(), loop.create_future()
        for future in (self._started, self._ended):
            future.add_done_callback(_retrieve)
        self._runner = loop.create_task(
            self._run(), name=f"gazette member {self.process_id.suffix}"
        )
        self._runner.add_done_callback(self._settle)
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.aclose()
            raise

    async def wait(self) -> bool:
        """Wait until the member has to stop.

        Returns:
            Whether other members hold all shards of this member, after `exit_gracefully()`. If not,
            its deadline has passed, it was called twice, or the service was closed.

        Raises:
            LeaseLostError: The lease is lost, and others may hold the member's shards already.
            MemberLostError: Another process has deleted the key of this member.
            Exception: The session failed, or a task of `spawn()` did.

        Cancellation: safe.
        """
        if self._ended is None:
            raise RuntimeError(f"{self!r} wasn't started")
        return await asyncio.shield(self._ended)

    def exit_gracefully(self) -> None:
        """Ask the group to take over the shards of this member; `wait()` returns after that.

        It takes `options.exit_timeout` at most; a second call ends it at once.

        Raises:
            RuntimeError: The member hasn't joined the group.
        """
        timeout = self.options.exit_timeout
        self.session.exit_gracefully(None if timeout == float("inf") else timeout)

    async def serve(self) -> None:
        """Start, wait until the member has to stop, and close.

        Raises:
            Exception: What `start()` or `wait()` raise.

        Cancellation: safe — the service is closed.
        """
        async with self:
            await self.wait()

    def queue_tasks(self, group: TaskGroup) -> None:
        """Run `serve()` in a task group, which is cancelled if the member fails."""
        group.start_soon(self.serve, name=f"gazette member {self.process_id.suffix}")

    async def aclose(self) -> None:
        """Cancel the shards, let RPCs end, and leave the group. Idempotent.

        Cancellation: safe — raised once all is done.
        """
        self._stop.set()
        runner, started = self._runner, self._started
        if runner is None:
            return
        if started is not None and not started.done():
            runner.cancel()
        try:
            await finish(asyncio.wait((runner,)))
        finally:
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def _run(self) -> None:
        """Be a member. It's one task, since cancel scopes of shards must end where they began."""
        assert self._started is not None
        assert self._ended is not None
        try:
            handed_over = await self._serve(self._started)
        except Exception as error:  # noqa: BLE001 - It's raised to those who wait.
            for future in (self._started, self._ended):
                if not future.done():
                    future.set_exception(error)
        else:
            if not self._ended.done():
                self._ended.set_result(handed_over)

    def _settle(self, _runner: asyncio.Task[None]) -> None:
        """Release those who wait. Unlike `_run()`, it's called if the first step is cancelled."""
        for future in (self._started, self._ended):
            if future is not None and not future.done():
                future.set_exception(RuntimeError(f"{self!r} was closed"))
        for work in self._work:
            work.close()

    async def _serve(self, started: asyncio.Future[None]) -> bool:
        options = self.options
        tls = None
        if options.server_cert_file is not None:
            tls = await in_thread(read_tls, options.tls_files)
        auth = await in_thread(read_auth, options.auth_keys, options.auth_keys_file)
        drain = Drain()
        limits = ServerLimits(max_receive_bytes=options.max_grpc_recv_size)
        server = GrpcServer((), drain, limits=limits, others=True)
        try:
            self.endpoint = await self._bind(server, tls)
            parts = self._parts = self._assemble(server, auth or pb.NoopAuth())
            service = shard_service(
                self.shard_api,
                self,
                verifier=auth or pb.NoopAuth(),
                drain=drain,
                counts=self._counts,
            )
            server.add((service.handlers(),))
            await self._init_application()
            async with parts.peers, parts.session:
                return await self._serve_shards(parts, started)
        finally:
            self.stopping.set()
            await finish(server.stop(0))

    async def _serve_shards(self, parts: _Parts, started: asyncio.Future[None]) -> bool:
        view = MemberView(parts.session.group, parts.local_shards)
        handed_over, failure = False, None
        async with parts.local_shards:
            if self._metrics is not None:
                self._metrics.add(view)
            try:
                await parts.server.start()
                started.set_result(None)
                handed_over = await self._until_end(parts.session)
            except Exception as error:  # noqa: BLE001 - The task group would wrap it.
                failure = error
            finally:
                self.stopping.set()
                if self._metrics is not None:
                    self._metrics.remove(view)
                parts.resolver.stop_serving_local_shards()
                # RPCs in progress may wait for revisions, which the session still follows.
                await finish(parts.server.stop(self.options.stop_timeout))
        if failure is not None:
            raise failure
        return handed_over

    def _assemble(self, server: GrpcServer, auth: pb.KeyedAuth | pb.NoopAuth) -> _Parts:
        options = self.options
        process = pb.ProcessSpec(id=self.process_id, endpoint=self.endpoint)
        session = MemberSession(
            self.store,
            self._keys,
            ConsumerSpec(process_spec=process, shard_limit=options.limit),
            ttl_seconds=options.lease_ttl,
            zero_limit_on_exit=options.zero_limit_on_exit,
            apply_delay_seconds=options.watch_delay,
            max_hot_standbys=options.max_hot_standbys,
            on_round=self._converged,
        )
        host = ShardHost(
            store=self.store,
            key_space=session.key_space,
            group=session.group,
            keys=self._keys,
            client=self.client,
            application=self.application,
            primary_loop=self._primary_loop,
            restarts=Restarts(options.restarts),
            recovery_directory=options.recovery_directory,
            release_seconds=options.release_timeout,
            get_hints=self._get_hints,
        )
        local_shards = LocalShards(host)
        resolver = Resolver(host, local_shards)
        peers = Peers(auth, _peer_tls(options))
        session.key_space.observers.append(peers.observe)
        return _Parts(server, session, host, local_shards, resolver, peers)

    async def _get_hints(self, shard: str) -> GetHintsResponse:
        """Return the hints that a shard recovers from: a user's function may know better ones."""
        claims = pb.Claims(pb.Capability.ALL)
        return await self.shard_api.get_hints(claims, self, GetHintsRequest(shard=shard))

    async def _bind(self, server: GrpcServer, tls: ServerTLS | None) -> str:
        options = self.options
        host = options.advertised_host()
        if (path := options.socket) is not None:
            await server.bind_socket(path, 0o600)
            return f"unix://{url_host(host)}{path}"
        credentials = tls.grpc_credentials() if tls is not None else None
        port = server.bind(options.bind or _ALL_HOSTS, options.port, credentials)
        return f"{'http' if tls is None else 'https'}://{url_host(host)}:{port}"

    async def _init_application(self) -> None:
        init: Callable[[Service], Awaitable[None] | None] | None = getattr(
            self.application, "init_application", None
        )
        if init is not None:
            result = init(self)
            if inspect.isawaitable(result):
                await result

    async def _until_end(self, session: MemberSession) -> bool:
        """Return whether shards were handed over, once the member has to stop."""
        ending = asyncio.ensure_future(session.wait())
        stopped = asyncio.ensure_future(self._stop.wait())
        work, self._work = self._work, []
        running = {asyncio.ensure_future(each) for each in work}
        pending: set[asyncio.Future[Any]] = {ending, stopped, *running}
        try:
            while not (ending.done() or stopped.done()):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done & running:
                    await task
            return await ending if ending.done() else False
        finally:
            # Invariant: shards stop first. Others may hold them already, whatever tasks wait for.
            self.stopping.set()
            self.resolver.stop_serving_local_shards()
            tasks = (ending, stopped, *running)
            for task in tasks:
                task.cancel()
            await finish(asyncio.wait(tasks))
            for task in tasks:
                _retrieve(task)

    def _primary_loop(
        self,
        shard: Shard,
        hooks: Hooks,
        store: Store,
        /,
        *,
        progress: ProgressCell,
        recovery_log: str,
    ) -> PrimaryLoop:
        observer = None if self._metrics is None else TransactionCounter(self._metrics, shard.fqn)
        return PrimaryLoop(
            shard,
            hooks,
            store,
            progress=progress,
            observer=observer,
            publish_clock_delta=lambda: self.publish_clock_delta,
            recovery_log=recovery_log,
        )

    def _converged(self, _is_idle: bool, /) -> None:  # noqa: FBT001 - As the session calls it.
        if self._metrics is not None:
            self._metrics.converged()

    def _bound(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError(f"{self!r} wasn't started")
        return self._parts


def _peer_tls(options: ConsumerOptions) -> TLSOptions:
    return TLSOptions(
        ca_file=options.peer_ca_file,
        certificate_file=options.peer_cert_file,
        key_file=options.peer_cert_key_file,
    )


def _retrieve(future: asyncio.Future[Any]) -> None:
    if future.done() and not future.cancelled():
        future.exception()
