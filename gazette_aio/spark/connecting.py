"""Clients of a process: one per broker, open until the process ends."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from anyio.to_thread import run_sync

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import TLSOptions, connect
from gazette_aio.spark import bridge
from gazette_aio.spark.references import import_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.client.auth import Auth
    from gazette_aio.spark.options import BrokerAccess

_logger = logging.getLogger(__name__)

HEAD_START: Final = 1.0
"""Seconds which a broker has to answer before the next broker is tried too."""


@functools.cache
def _warn_of_root(root: str) -> None:
    _logger.warning("option 'fileRoot' isn't a directory here: %s", root)


async def spark_client(connection: BrokerAccess) -> JournalClient:
    """Return the client of a connection: always the same in one event loop.

    The bridge owns and closes the client. Of several brokers, the client is that of the first
    broker in order which is connected or answers in time. After that broker is gone, a further call
    returns the client of another broker.

    A file root which isn't a directory of this machine is ignored, and logged: fragments are then
    read through brokers.

    A token provider is imported in this process, and called for every RPC: in a thread, unless it's
    async. The provider should cache tokens.

    Args:
        connection: Brokers and credentials.

    Raises:
        ConfigurationError: The token provider or files of certificates can't be used.
        TransportError: None of several brokers answers. A single broker isn't awaited.

    Cancellation: safe.
    """
    auth: Auth | None = None
    if connection.token is not None:
        auth = pb.BearerAuth(connection.token)
    elif connection.token_provider is not None:
        provider = connection.token_provider
        # Importing a large module from a slow disk takes long.
        auth = _token_source(await in_thread(import_object, "tokenProvider", provider))
    root = connection.file_root
    # The directory may be mounted on some executors only, or later. Whether a file which isn't
    # found is lost couldn't be decided.
    if root is not None and not await in_thread(os.path.isdir, root):
        _warn_of_root(root)
        connection = replace(connection, file_root=None)
    clients = [
        await bridge.client_of(
            replace(connection, brokers=(broker,)), lambda each: _connect(each, auth)
        )
        for broker in connection.brokers
    ]
    if len(clients) == 1:
        return clients[0]
    for client in clients:
        if client.status().connection == "ready":
            return client
    return await _first_ready(clients)


def _connect(connection: BrokerAccess, auth: Auth | None) -> JournalClient:
    tls = None
    if connection.ca_file or connection.cert_file:
        tls = TLSOptions(
            ca_file=connection.ca_file,
            certificate_file=connection.cert_file,
            key_file=connection.key_file,
        )
    (address,) = connection.brokers
    return connect(address, auth=auth, tls=tls, file_root=connection.file_root)


def _token_source(provider: Any) -> Callable[[], Awaitable[str]]:
    if not callable(provider):
        text = f"expected a callable, and not a {type(provider).__name__}"
        raise pb.ConfigurationError(f"option 'tokenProvider': {text}")
    is_async = inspect.iscoroutinefunction(provider)

    async def token() -> str:
        # A plain function may block, for example on a token server.
        found: Any = provider() if is_async else await run_sync(provider, abandon_on_cancel=True)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, str):
            text = f"a token must be a str, and not a {type(found).__name__}"
            raise pb.ConfigurationError(f"option 'tokenProvider': {text}")
        return found

    return token


async def _first_ready(clients: Sequence[JournalClient]) -> JournalClient:
    """Return the first client whose broker answers; brokers are tried one after the other."""
    left = list(clients)
    of: dict[asyncio.Task[object], JournalClient] = {}
    failures: list[pb.TransportError] = []
    try:
        while left or of:
            if left:
                client = left.pop(0)
                of[asyncio.ensure_future(client.context.dispatcher.ready())] = client
            done, _ = await asyncio.wait(
                of, timeout=HEAD_START if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                client = of.pop(task)
                try:
                    await task
                except pb.TransportError as error:
                    failures.append(error)
                else:
                    return client
    finally:
        for task in of:
            task.cancel()
        await asyncio.gather(*of, return_exceptions=True)
    text = "; ".join(map(str, failures))
    raise pb.TransportError("UNAVAILABLE", f"no broker answers: {text}", retryable=True)
