"""FragmentStoreHealth: whether fragments can be written to a store, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.service.common import validated

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore


async def serve_health(
    core: BrokerCore, _claims: pb.Claims, request: pb.FragmentStoreHealthRequest
) -> pb.FragmentStoreHealthResponse:
    """Return the health of a store.

    Raises:
        RpcError: If the request is invalid.

    Cancellation: safe.
    """
    validated(request)
    handle = core.runtime.stores.visit(request.fragment_store)
    problem = await handle.check()
    if not problem and request.check_delete:
        problem = await handle.probe_delete(request.check_delete_prefix)
    status = pb.Status.FRAGMENT_STORE_UNHEALTHY if problem else pb.Status.OK
    return pb.FragmentStoreHealthResponse(
        status=status, header=core.headers.unrouted(), store_health_error=problem
    )
