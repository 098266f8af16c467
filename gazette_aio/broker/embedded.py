"""Broker within the process of its user, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.threads import in_thread
from gazette_aio.broker.control.control import BrokerControl
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.broker.host.options import BrokerOptions
from gazette_aio.broker.service.append_machine import parse_message
from gazette_aio.broker.service.methods import journal_service
from gazette_aio.protocol.service import SERVICE_NAME
from gazette_aio.protocol.suggestion import suggestion
from gazette_aio.serving.address import url_host
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer
from gazette_aio.serving.tls import ServerTLS, read_tls

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from gazette_aio.broker.gateway.gateway import HttpGateway
    from gazette_aio.serving.extras import Health

_P = ParamSpec("_P")
_EXTRAS = "gazette_aio.serving.extras"
_GATEWAY = "gazette_aio.broker.gateway.gateway"


def _taking(
    options: Callable[_P, BrokerOptions],
) -> Callable[
    [Callable[[EmbeddedBroker, BrokerOptions], None]],
    Callable[Concatenate[EmbeddedBroker, _P], None],
]:
    """Return a decorator of a constructor of options, which then takes their fields instead."""

    def decorate(
        init: Callable[[EmbeddedBroker, BrokerOptions], None],
    ) -> Callable[Concatenate[EmbeddedBroker, _P], None]:
        def with_fields(self: EmbeddedBroker, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
            known = BrokerOptions.__dataclass_fields__
            for name in kwargs.keys() - known:
                raise pb.ConfigurationError(
                    f"EmbeddedBroker() has no option {name}{suggestion(name, known)}"
                )
            init(self, options(*args, **kwargs))

        return with_fields

    return decorate


class EmbeddedBroker(Owner):
    """A broker on one directory, served over gRPC and HTTP; an async context manager.

    The constructor does nothing. It takes the fields of `BrokerOptions` as keywords, and `data_dir`
    also by position. A stopped broker can be started again.

    Example:
        ```python
        async with EmbeddedBroker() as broker:
            print(broker.endpoint)
        ```
    """

    @_taking(BrokerOptions)
    def __init__(self, options: BrokerOptions) -> None:
        self.options: BrokerOptions = options
        clock = options.clock
        self.control: BrokerControl = BrokerControl(
            clock if isinstance(clock, ManualClock) else ManualClock(follow=clock or time.time)
        )
        """Control by tests: interferes with requests, fails stores, moves time."""
        self._endpoint = ""
        self.http_endpoint: str = ""
        """Endpoint URL of the HTTP gateway, empty while there's none."""
        self._is_starting = False
        self._core: BrokerCore | None = None
        self._server: GrpcServer | None = None
        self._gateway: HttpGateway | None = None
        self._temporary: str | None = None
        self._stopping: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self._endpoint or 'stopped'} {self._core!r}>"

    def __del__(self) -> None:
        if getattr(self, "_core", None) is not None:
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=2)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Load the data directory, and begin to answer.

        Raises:
            ConfigurationError: The directory, a port or the socket is in use, an option is
                invalid, a file of certificates can't be used, or an extra isn't installed.
            StoreError: The key space is damaged; the text names file and offset.

        Cancellation: safe — the broker is stopped again.
        """
        if self._core is not None or self._is_starting:
            raise pb.UsageError("the broker is running already")
        self._is_starting = True
        try:
            await self._start()
        finally:
            self._is_starting = False

    async def _start(self) -> None:
        tls = await in_thread(read_tls, self.options.tls_files)
        if self.options.grpc_extras:  # Their packages may not be installed.
            await in_thread(importlib.import_module, _EXTRAS)
        path = self.options.data_dir
        if path is None:
            self._temporary = tempfile.mkdtemp(prefix="gazette-broker-")
            path = self._temporary
        try:
            core = self._core = await BrokerCore.open(self.options, Path(path), self.control)
            server = self._server = await _grpc_server(core)
            bound = await self._bind(server, tls)
            http_endpoint = ""
            if self.options.http_port is not None:
                # In a thread, since it takes a while; brokers without a gateway don't wait for it.
                module = await in_thread(importlib.import_module, _GATEWAY)
                gateway = self._gateway = module.HttpGateway(
                    core,
                    allow_origins=self.options.allow_origin,
                    allow_unauthenticated=self.options.http_allow_unauthenticated,
                )
                http_port = await gateway.bind(
                    self.options.host, self.options.http_port, tls.context if tls else None
                )
                http_endpoint = f"{_scheme(tls)}://{url_host(self.options.host)}:{http_port}"
            endpoint = self.options.advertise or bound
            await core.serve_at(endpoint)
            await server.start()
            if self._gateway is not None:
                await self._gateway.start()
            self._endpoint = endpoint
            self.http_endpoint = http_endpoint
        except BaseException:
            await self.stop(0.0)
            raise

    async def _bind(self, server: GrpcServer, tls: ServerTLS | None) -> str:
        host = self.options.host
        if (path := self.options.socket) is not None:
            await server.bind_socket(Path(path), self.options.socket_mode)
            return f"unix://{url_host(host)}{os.fspath(path)}"
        port = server.bind(host, self.options.port, tls.grpc_credentials() if tls else None)
        return f"{_scheme(tls)}://{url_host(host)}:{port}"

    async def stop(self, grace: float = 1.0) -> None:
        """End all requests within `grace` seconds, and make all state durable. Idempotent.

        Appends and other short requests that have arrived are served within that time. Blocked
        reads and watches end at once. A concurrent call waits for the same stop.

        Cancellation: safe — takes effect when it's done.
        """
        if self._core is not None or self._temporary is not None:
            self._stopping = asyncio.ensure_future(self._stop(grace))
        if (stopping := self._stopping) is None:
            return
        try:
            await finish(stopping)
        finally:
            if self._stopping is stopping:
                self._stopping = None

    async def aclose(self) -> None:
        """Stop within the default grace. Idempotent.

        Cancellation: safe — takes effect when it's done.
        """
        await self.stop()

    async def _stop(self, grace: float) -> None:
        self._endpoint = self.http_endpoint = ""
        core, self._core = self._core, None
        server, self._server = self._server, None
        gateway, self._gateway = self._gateway, None
        temporary, self._temporary = self._temporary, None
        if core is not None:
            # Requests in progress continue meanwhile: clients repeat requests that a stopped broker
            # didn't accept, but don't repeat a failed append.
            stopping = [
                asyncio.ensure_future(front.stop(grace))
                for front in (server, gateway)
                if front is not None
            ]
            await asyncio.sleep(0)  # They refuse what arrives from now on.
            core.end_waits(grace)
            await asyncio.gather(*stopping)
            await core.stop_serving()
            await core.aclose()
        if temporary is not None:
            await in_thread(shutil.rmtree, temporary, ignore_errors=True)

    @property
    def endpoint(self) -> str:
        """Endpoint URL of the gRPC service of the running broker.

        Raises:
            ConfigurationError: The broker isn't running.
        """
        _ = self.core  # It's refused if there's none.
        return self._endpoint

    @property
    def process_id(self) -> pb.ProcessSpec.ID:
        """Process id of the running broker."""
        return self.core.process_id

    @property
    def core(self) -> BrokerCore:
        """Core of the running broker, for further front ends.

        Raises:
            ConfigurationError: The broker isn't running.
        """
        if self._core is None:
            raise pb.ConfigurationError(
                "the broker isn't running: use `async with EmbeddedBroker() as broker`"
            )
        return self._core

    def stats(self) -> dict[str, object]:
        """Return the counters of the running broker by name.

        `gazette_failing_stores` maps each fragment store that fails and is retried to its error,
        and `data directory` to its error, if files of the broker can't be written.
        """
        core = self.core
        stats = core.metrics.snapshot()
        stats["gazette_write_head"] = {each.name: each.head.offset for each in tuple(core.replicas)}
        stats["gazette_failing_stores"] = core.failing()
        return stats

    async def flush(self, journal: str | None = None) -> None:
        """Complete fragments in progress, and persist all complete ones, of one or all journals.

        Raises:
            JournalNotFoundError: The journal doesn't exist.
            StoreError, OSError: A fragment can't be persisted.

        Cancellation: safe.
        """
        await self.core.flush(journal)

    async def refresh(self, journal: str | None = None) -> None:
        """List the stores of one or all journals now.

        Raises:
            JournalNotFoundError: The journal doesn't exist.

        Cancellation: safe.
        """
        for replica in await self.core.replicas_of(journal):
            await replica.refresh()

    async def pulse(self, journal: str | None = None) -> None:
        """Complete the due fragments of one or all journals, as `pulse_interval` does.

        Raises:
            JournalNotFoundError: The journal doesn't exist.

        Cancellation: safe.
        """
        for replica in await self.core.replicas_of(journal):
            await replica.pulse()


def _scheme(tls: ServerTLS | None) -> str:
    return "http" if tls is None else "https"


async def _grpc_server(core: BrokerCore) -> GrpcServer:
    """Return a server of the Journal service, and of `grpc_extras` if options enable them."""
    options = core.options
    drain = Drain()
    health: Health | None = None
    tools: list[grpc.GenericRpcHandler] = []
    if options.grpc_extras:
        # In a thread: building descriptors would block the event loop.
        health, tools = await core.io.run(_tools, drain)
    return GrpcServer(
        (journal_service(core).handlers(drain, parse_message), *tools),
        drain,
        max_receive_bytes=options.max_recv_size,
        health=health,
    )


def _tools(drain: Drain) -> tuple[Health, list[grpc.GenericRpcHandler]]:
    from gazette_aio.serving.extras import Health, reflection_handlers  # noqa: PLC0415

    health = Health([SERVICE_NAME], drain)
    return health, [health.handlers(), *reflection_handlers([pb.ReadRequest.DESCRIPTOR.file])]
