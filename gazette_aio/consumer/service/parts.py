"""Parts of a member, and how they're put together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.handlers import Peers
from gazette_aio.consumer.service.metrics_feed import record_transaction
from gazette_aio.consumer.shards.host import ShardHost
from gazette_aio.consumer.shards.local_shards import LocalShards
from gazette_aio.consumer.shards.resolver import Resolver
from gazette_aio.consumer.shards.restarts import Restarts
from gazette_aio.consumer.transactions.primary import PrimaryLoop
from gazette_aio.protocol.consumer import ConsumerSpec, GetHintsRequest
from gazette_aio.serving.address import url_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.consumer.application import Shard, Store
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.service.options import ConsumerOptions
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.transactions.machine import Transaction
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import GetHintsResponse
    from gazette_aio.serving.server import GrpcServer
    from gazette_aio.serving.tls import ServerTLS

_ALL_HOSTS: Final = "::"  # IPv4, too: the library listens on both, or on the one there is.


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a member whose server is bound."""

    server: GrpcServer
    session: MemberSession
    host: ShardHost
    local_shards: LocalShards
    resolver: Resolver
    peers: Peers


async def bind(server: GrpcServer, options: ConsumerOptions, tls: ServerTLS | None) -> str:
    """Bind the server of a member, and return its endpoint.

    Raises:
        ConfigurationError: The address can't be listened on.

    Cancellation: safe.
    """
    host = options.advertised_host()
    if (path := options.socket) is not None:
        await server.bind_socket(path, 0o600)
        return f"unix://{url_host(host)}{path}"
    credentials = tls.grpc_credentials() if tls is not None else None
    port = server.bind(options.bind or _ALL_HOSTS, options.port, credentials)
    return http_endpoint(options, port, tls)


def http_endpoint(options: ConsumerOptions, port: int, tls: ServerTLS | None) -> str:
    """Return the endpoint by which others reach a port of this process."""
    return f"{'http' if tls is None else 'https'}://{url_host(options.advertised_host())}:{port}"


def assemble(service: Service, server: GrpcServer, auth: pb.KeyedAuth | pb.NoopAuth) -> Parts:
    """Make the parts of a member whose `server` is bound.

    Args:
        service: The member.
        server: Its server.
        auth: Signs requests to other members.
    """
    session = _session_of(service)
    host = _host_of(service, session)
    local_shards = LocalShards(host)
    options = service.options
    tls = TLSOptions(
        ca_file=options.peer_ca_file,
        certificate_file=options.peer_cert_file,
        key_file=options.peer_cert_key_file,
    )
    peers = Peers(auth, tls)
    session.key_space.observers.append(peers.observe)
    return Parts(server, session, host, local_shards, Resolver(host, local_shards), peers)


def _session_of(service: Service) -> MemberSession:
    options, metrics = service.options, service.metrics
    process = pb.ProcessSpec(id=service.process_id, endpoint=service.endpoint)
    return MemberSession(
        service.store,
        service.keys,
        ConsumerSpec(process_spec=process, shard_limit=options.limit),
        ttl_seconds=options.lease_ttl,
        zero_limit_on_exit=options.zero_limit_on_exit,
        apply_delay_seconds=options.watch_delay,
        max_hot_standbys=options.max_hot_standbys,
        on_round=None if metrics is None else metrics.converged,
        on_solution=None if metrics is None else metrics.solved,
    )


def _observers_of(service: Service) -> list[Callable[[str, Transaction], object]]:
    observers: list[Callable[[str, Transaction], object]] = []
    if service.metrics is not None:
        observers.append(service.metrics.acknowledged)
    if (tracing := service.client.context.tracing) is not None:
        observers.append(partial(record_transaction, tracing))
    return observers


def _host_of(service: Service, session: MemberSession) -> ShardHost:
    options, metrics = service.options, service.metrics

    async def get_hints(shard: str) -> GetHintsResponse:
        """Return the hints that a shard recovers from: a user's function may know better ones."""
        claims = pb.Claims(pb.Capability.ALL)
        return await service.shard_api.get_hints(claims, service, GetHintsRequest(shard=shard))

    def primary_loop(
        shard: Shard,
        hooks: Hooks,
        store: Store,
        /,
        *,
        progress: ProgressCell,
        recovery_log: str,
        renew_publisher: Callable[[], Awaitable[object]],
    ) -> PrimaryLoop:
        return PrimaryLoop(
            shard,
            hooks,
            store,
            progress=progress,
            observers=_observers_of(service),
            on_decision=None if metrics is None else metrics.message_failed,
            publish_clock_delta=lambda: service.publish_clock_delta,
            recovery_log=recovery_log,
            renew_publisher=renew_publisher,
        )

    return ShardHost(
        store=service.store,
        key_space=session.key_space,
        group=session.group,
        keys=service.keys,
        client=service.client,
        application=service.application,
        primary_loop=primary_loop,
        on_recovered=None if metrics is None else metrics.recovered,
        on_overdue=None if metrics is None else metrics.overdue,
        restarts=Restarts(options.restarts),
        recovery_directory=options.recovery_directory,
        release_seconds=options.release_timeout,
        hints_bytes=options.hints_bytes,
        get_hints=get_hints,
    )
