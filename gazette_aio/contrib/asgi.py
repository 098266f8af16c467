"""Client of an ASGI service: a lifespan and a dependency for FastAPI and Starlette.

Needs Starlette, which FastAPI brings: `pip install "gazette-aio[asgi]"`.

    app = FastAPI(lifespan=client_lifespan(timeout=5))
    Client = Annotated[JournalClient, Depends(journal_client)]

    @app.post("/events")
    async def post_event(event: dict[str, Any], client: Client) -> None: ...
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.client import connect
from gazette_aio.protocol.errors import UsageError

try:
    from starlette.requests import HTTPConnection  # noqa: TC002 - FastAPI evaluates annotations.
except ImportError as _error:
    raise ImportError(
        "gazette_aio.contrib.asgi needs starlette: pip install 'gazette-aio[asgi]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from starlette.applications import Starlette

    from gazette_aio.client import ClientOptions, JournalClient

STATE: Final = "gazette"
"""Name of the client in the state of requests, and of the application."""


def client_lifespan(
    address: str | None = None, **options: Unpack[ClientOptions]
) -> Callable[[Starlette], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return the lifespan of an application with one client, which all requests share.

    At the end, also after SIGTERM, the server first waits for requests. The client then waits for
    pending appends, up to `drain_timeout` (30 seconds by default), and cancels the rest. A
    supervisor must wait at least as long before it kills the process.

    Your own lifespan enters the returned lifespan, and yields its state:

        async with client_lifespan()(app) as state:
            yield state

    Args:
        address: Endpoint of a broker, as for `connect()`.
        **options: Options of `connect()`.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, Any]]:
        async with connect(address, **options) as client:
            # Set in both places: tests often run requests without the state of a lifespan.
            setattr(app.state, STATE, client)
            yield {STATE: client}

    return lifespan


def journal_client(connection: HTTPConnection) -> JournalClient:
    """Return the client of the lifespan: a dependency of FastAPI.

    Args:
        connection: A request, or a web socket.

    Raises:
        UsageError: The application runs without `client_lifespan()`.
    """
    for state in (connection.state, connection.app.state):
        client: JournalClient | None = getattr(state, STATE, None)
        if client is not None:
            return client
    raise UsageError("the application has no client: give it lifespan=client_lifespan()")
