"""gRPC front end of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.service.append_machine import parse_message
from gazette_aio.broker.service.methods import journal_service
from gazette_aio.protocol.service import SERVICE_NAME
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer

if TYPE_CHECKING:
    import grpc

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.extras import Health


async def new_grpc_server(core: BrokerCore) -> GrpcServer:
    """Return a server of the Journal service, and of `grpc_extras` if options enable them.

    Cancellation: safe.
    """
    options = core.runtime.options
    drain = Drain()
    health: Health | None = None
    tools: list[grpc.GenericRpcHandler] = []
    if options.grpc_extras:
        # In a thread: building descriptors would block the event loop.
        health, tools = await core.runtime.io.run(_tools, drain)
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
