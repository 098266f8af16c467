"""Service of a member: its server, its session, its shards, and the order of their end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import warnings
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import start_task
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.handlers import Peers, ShardAPI, shard_service
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.service.options import DEFAULT_PREFIX, ConsumerOptions
from gazette_aio.consumer.shards.local_shards import LocalShards
from gazette_aio.consumer.shards.resolver import Resolver
from gazette_aio.consumer.shards.restarts import Restarts
from gazette_aio.protocol.consumer import ConsumerSpec
from gazette_aio.serving.address import url_host
from gazette_aio.serving.auth_keys import read_auth
from gazette_aio.serving.calls import CallCounts
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer
from gazette_aio.serving.tls import read_tls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import grpc
    import grpc.aio
    from anyio.abc import TaskGroup

    from gazette_aio.client import JournalClient
    from gazette_aio.client.tracing import Tracing
    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.allocator.observed import ObservedGroup
    from gazette_aio.consumer.application import Application
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.service.metrics import ConsumerMetrics
    from gazette_aio.consumer.shards.resolver import Resolution
    from gazette_aio.consumer.transactions.machine import Transaction
    from gazette_aio.serving.tls import ServerTLS

_logger = logging.getLogger(__name__)

_ALL_HOSTS: Final = "::"  # IPv4, too: the library listens on both, or on the one there is.
_BOUND: Final = frozenset(
    {"session", "key_space", "group", "local_shards", "resolver", "peers", "_server"}
)


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
        ConfigurationError: The application lacks hooks, or has only some hooks of a protocol.
        ValidationError: The prefix of the options isn't an absolute, clean path.
    """

    session: MemberSession
    """Membership in the group. This attribute and the next ones are there once the member has bound
    its address, as in `init_application()`; before, they raise UsageError."""
    key_space: KeySpace[GroupEntry]
    """Mirror of the group's keys."""
    group: ObservedGroup
    """The group as this member sees it."""
    local_shards: LocalShards
    """Replicas of this member."""
    resolver: Resolver
    """Resolver of shards."""
    peers: Peers
    """Connections to other members."""
    _server: GrpcServer

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
        self.options: ConsumerOptions
        self.options = options = options or ConsumerOptions()
        """Options of the member."""
        self.shard_api: ShardAPI = ShardAPI()
        """Functions that answer the RPCs of the Shard service. Each may be replaced."""
        self.publish_clock_delta: timedelta = timedelta()
        """Added to the time of published messages, for tests. It must not decrease."""
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when the member stops: long-lived RPCs of the application should end then."""
        self.endpoint: str = ""
        """Endpoint of this member, once it has bound its address."""
        self.http_endpoint = ""
        """Endpoint of its diagnostics by HTTP, once `run_consumer()` serves them."""
        self.process_id: pb.ProcessSpec.ID = options.process_id()
        """Identity of this member."""
        self.keys: GroupKeys = GroupKeys(
            options.prefix or f"{DEFAULT_PREFIX}/{type(application).__name__}"
        )
        """Keys of the group."""
        self.metrics = metrics
        """Metrics that the member feeds, if any."""
        self.restarts: Restarts = Restarts(options.restarts)
        """When failed replicas are restarted."""
        self.transaction_observers: list[Callable[[str, Transaction], object]] = []
        """Called with the key of a shard and a transaction of it that is acknowledged."""
        if metrics is not None:
            self.transaction_observers.append(metrics.acknowledged)
        if (tracing := client.context.tracing) is not None:
            self.transaction_observers.append(partial(record_transaction, tracing))
        self._tls: tuple[ServerTLS | None] | None = None  # Once they're read.
        self._waiting: list[Coroutine[Any, Any, None]] = []  # To be started as tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._failure: asyncio.Future[None] | None = None  # Of a task; from the start on.
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[bool] | None = None

    def __repr__(self) -> str:
        id_ = self.process_id
        return f"<Service {id_.zone}/{id_.suffix} of {self.keys.root} at {self.endpoint or '-'}>"

    def __del__(self) -> None:
        if getattr(self, "_runner", None) is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Say why attributes of a member are missing before it has bound its address."""
            if name in _BOUND:
                raise pb.UsageError(f"{self!r} wasn't started")
            return super().__getattribute__(name)  # Raises AttributeError.

    @property
    def is_ready(self) -> bool:
        """Whether the member has joined the group, and isn't stopping."""
        return self._has_started and not self.stopping.is_set()

    @property
    def _has_started(self) -> bool:
        started = self._started
        return started is not None and started.done() and started.exception() is None

    def resolve(
        self,
        shard: str,
        *,
        claims: pb.Claims | None = None,
        may_proxy: bool = True,
        proxy_header: pb.Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> AbstractAsyncContextManager[Resolution]:
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
            UsageError: The service isn't running.
        """
        if not resolution.endpoint:
            raise pb.ValidationError("no member serves the shard")
        return self.peers.channel(resolution.endpoint)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve further gRPC services, from now on. `init_application()` is the place to call it.

        Generated functions such as `add_WordsServicer_to_server(servicer, service)` call it.

        Raises:
            UsageError: The service hasn't bound its address, or is stopping.
        """
        if self.stopping.is_set():
            raise pb.UsageError(f"{self!r} is stopping, and serves nothing more")
        self._server.add(handlers)

    def add_registered_method_handlers(
        self, service_name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], /
    ) -> None:
        """Do nothing: generated functions call this besides `add_generic_rpc_handlers()`."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task for as long as the member is in the group.

        It starts once the member has joined. It's cancelled when the member stops, and has
        `options.stop_timeout` to end. If it raises, the member stops with that error. To stop the
        member, it calls `exit_gracefully()` or raises.

        Raises:
            UsageError: The member is stopping.
        """
        if self.stopping.is_set():
            work.close()
            raise pb.UsageError("the member is stopping, and starts no tasks")
        if self._has_started:
            self._start_task(work)
        else:
            self._waiting.append(work)

    async def server_tls(self) -> ServerTLS | None:
        """Return the TLS of the member's servers, whose files are read once.

        Raises:
            ConfigurationError: A file can't be read or is invalid.

        Cancellation: safe.
        """
        if self._tls is None:
            self._tls = (await in_thread(read_tls, self.options.tls_files),)
        return self._tls[0]

    async def start(self) -> None:
        """Bind the address, join the group, and begin to serve.

        Raises:
            ConfigurationError: The address can't be bound, or a file of an option can't be used.
            ValidationError: The identity, or the endpoint, is invalid.
            KeyValueStoreError: The store of the group fails.
            LeaseLostError: The lease was lost meanwhile.
            UsageError: The service was started before.

        Cancellation: safe — the service is closed.
        """
        if self._runner is not None or self._stop.is_set():
            raise pb.UsageError(f"{self!r} was started before")
        loop = asyncio.get_running_loop()
        self._started, self._ended = loop.create_future(), loop.create_future()
        self._failure = loop.create_future()
        for future in (self._started, self._ended, self._failure):
            future.add_done_callback(_retrieve)
        self._runner = start_task(self._run(), f"gazette member {self.process_id.suffix}")
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
            raise pb.UsageError(f"{self!r} wasn't started")
        return await asyncio.shield(self._ended)

    def exit_gracefully(self) -> None:
        """Ask the group to take over the shards of this member; `wait()` returns after that.

        Hints of recovery logs are stored soon, so that others have little to play. It takes
        `options.exit_timeout` at most; a second call ends it at once.

        Raises:
            UsageError: The member hasn't joined the group.
        """
        timeout = self.options.exit_timeout
        self.session.exit_gracefully(None if math.isinf(timeout) else timeout)
        self.local_shards.store_hints()

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

        Raises:
            UsageError: A task of `spawn()` calls this, which would wait for itself.

        Cancellation: safe — raised once all is done.
        """
        if asyncio.current_task() in self._tasks:
            raise pb.UsageError(
                "a task of the member can't close it: call exit_gracefully(), or raise"
            )
        self._stop.set()
        runner, started = self._runner, self._started
        if runner is None:
            self._stop_serving()
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
        self._stop_serving()

    async def _serve(self, started: asyncio.Future[None]) -> bool:
        """Be a member until it has to stop, and return whether its shards were handed over.

        Invariant: shards stop first. Others may hold them already, whatever tasks and RPCs wait
        for. Then tasks end, then RPCs, which may wait for revisions that the session still follows,
        then replicas, and at last the membership.
        """
        options = self.options
        tls = await self.server_tls()
        auth = await in_thread(read_auth, options.auth_keys, options.auth_keys_file)
        drain = Drain()
        size = options.max_grpc_recv_size
        self._server = server = GrpcServer((), drain, max_receive_bytes=size, others=True)
        try:
            await self._bind(tls, auth or pb.NoopAuth())
            service = shard_service(self, verifier=auth or pb.NoopAuth(), counts=CallCounts())
            server.add((service.handlers(drain),))
            await self._init_application()
            async with self.peers, self.session, self.local_shards:
                if self.metrics is not None:
                    self.metrics.add(self)
                try:
                    await server.start()
                    started.set_result(None)
                    return await self._until_end()
                finally:
                    self._stop_serving()
                    if self.metrics is not None:
                        self.metrics.remove(self)
                    await finish(self._end_tasks())
                    await server.stop(options.stop_timeout)
        finally:
            await server.stop(0)

    async def _bind(self, tls: ServerTLS | None, auth: pb.Authorizer) -> None:
        """Bind the address, and make what a member with an endpoint has."""
        options, metrics = self.options, self.metrics
        if (path := options.socket) is not None:
            await self._server.bind_socket(path, 0o600)
            self.endpoint = f"unix://{url_host(options.advertised_host())}{path}"
        else:
            credentials = tls.grpc_credentials() if tls is not None else None
            port = self._server.bind(options.bind or _ALL_HOSTS, options.port, credentials)
            self.endpoint = self.endpoint_of(port, tls)
        process = pb.ProcessSpec(id=self.process_id, endpoint=self.endpoint)
        self.session = MemberSession(
            self.store,
            self.keys,
            ConsumerSpec(process_spec=process, shard_limit=options.limit),
            ttl_seconds=options.lease_ttl,
            zero_limit_on_exit=options.zero_limit_on_exit,
            apply_delay_seconds=options.watch_delay,
            max_hot_standbys=options.max_hot_standbys,
            on_round=None if metrics is None else metrics.converged,
            on_solution=None if metrics is None else metrics.solved,
        )
        self.key_space, self.group = self.session.key_space, self.session.group
        self.local_shards = LocalShards(self)
        self.resolver = Resolver(self)
        peer_tls = TLSOptions(
            ca_file=options.peer_ca_file,
            certificate_file=options.peer_cert_file,
            key_file=options.peer_cert_key_file,
        )
        self.peers = Peers(auth, peer_tls)
        self.key_space.observers.append(self.peers.observe)

    def endpoint_of(self, port: int, tls: ServerTLS | None) -> str:
        """Return the endpoint by which others reach a port of this process."""
        scheme = "http" if tls is None else "https"
        return f"{scheme}://{url_host(self.options.advertised_host())}:{port}"

    def _stop_serving(self) -> None:
        """Stop the shards and the tasks, and have long-lived RPCs end. Idempotent."""
        if self.stopping.is_set():
            return  # Invariant: a second cancellation would interrupt the cleanup of tasks.
        self.stopping.set()
        for work in self._waiting:
            work.close()
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        if "local_shards" in vars(self):
            self.local_shards.stop()

    async def _until_end(self) -> bool:
        """Return whether shards were handed over, once the member has to stop."""
        assert self._failure is not None
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self._start_task(work)
        failures = (self._failure, self.local_shards.failure)
        ending = asyncio.ensure_future(self.session.wait())
        stopped = asyncio.ensure_future(self._stop.wait())
        waits = (ending, stopped)
        for wait in waits:
            wait.add_done_callback(_retrieve)
        try:
            await asyncio.wait((*waits, *failures), return_when=asyncio.FIRST_COMPLETED)
            for failure in failures:
                if failure.done():
                    failure.result()
            return await ending if ending.done() else False
        finally:
            for wait in waits:
                wait.cancel()  # They end in the next turn.

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        name = f"gazette task {getattr(work, '__qualname__', work)} of the application"
        task = start_task(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        assert self._failure is not None
        if self.stopping.is_set() or self._failure.done():
            _logger.error("%s failed after the member's end began", task.get_name(), exc_info=error)
        else:
            self._failure.set_exception(error)

    async def _end_tasks(self) -> None:
        """Wait until the tasks, which are cancelled, have ended, or until their time has passed."""
        if not self._tasks:
            return
        seconds = self.options.stop_timeout
        limit = None if math.isinf(seconds) else seconds
        for task in (await asyncio.wait(self._tasks, timeout=limit))[1]:
            _logger.error(
                "%s is still running %g s after its cancellation", task.get_name(), seconds
            )

    async def _init_application(self) -> None:
        init: Callable[[Service], Awaitable[None] | None] | None = getattr(
            self.application, "init_application", None
        )
        if init is not None:
            result = init(self)
            if inspect.isawaitable(result):
                await result


def record_transaction(tracing: Tracing, shard: str, transaction: Transaction) -> None:
    """Record a transaction as a span, from its first message to its last acknowledgement.

    Args:
        tracing: Where to record it.
        shard: Key of the shard.
        transaction: The transaction.
    """
    phases = transaction.phase_seconds()
    del phases["not_running"]
    counts = {"gazette.messages": transaction.messages, "gazette.bytes": transaction.size_bytes}
    times = {f"gazette.{name}_ms": int(1000 * seconds) for name, seconds in phases.items()}
    tracing.record("consume", sum(phases.values()), {"gazette.shard": shard, **counts, **times})


def _retrieve(future: asyncio.Future[Any]) -> None:
    if future.done() and not future.cancelled():
        future.exception()
