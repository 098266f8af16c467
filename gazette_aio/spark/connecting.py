"""The clients by which a process reaches brokers: one for each of them, for as long as it lives."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.client import TLSOptions, connect
from gazette_aio.spark import bridge
from gazette_aio.spark.references import import_object

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.client.auth import Auth
    from gazette_aio.spark.options import Connection

_logger = logging.getLogger(__name__)

_HEAD_START: Final = 1.0
"""Seconds for which a broker may take to answer before the next one is tried as well."""


@functools.cache
def _warn_of_root(root: str) -> None:
    _logger.warning("option 'fileRoot' isn't a directory here: %s", root)


async def spark_client(connection: Connection) -> JournalClient:
    """Return the client of a connection: the same for each call of the running event loop.

    It belongs to the bridge, by which it's closed. Of several brokers, it's that of one which
    answers: the first of them in order, if it's connected, or does so in time. Who asks again once
    that broker is gone gets the client of another.

    A file root which isn't a directory of this machine is done without, and logged: files of
    fragments then come through brokers.

    A token provider is imported in this process, and called for every RPC: in a thread, unless it's
    async. It keeps tokens itself, if to get one takes long.

    Args:
        connection: Brokers, and how to reach them.

    Cancellation: safe.

    Raises:
        ConfigurationError: The token provider or files of certificates can't be used.
        TransportError: None of several brokers answers. One alone isn't waited for.
    """
    auth: Auth | None = None
    if connection.token is not None:
        auth = pb.BearerAuth(connection.token)
    elif connection.token_provider is not None:
        provider = connection.token_provider
        # Modules may be large, and on a slow disk.
        auth = _token_source(await asyncio.to_thread(import_object, "tokenProvider", provider))
    root = connection.file_root
    # It may be mounted on some executors only, and later on. Of a file which isn't found there,
    # nobody can tell whether it's gone.
    if root is not None and not await asyncio.to_thread(os.path.isdir, root):
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


def _connect(connection: Connection, auth: Auth | None) -> JournalClient:
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
        # A plain function may ask a server of its own for a token.
        found: Any = provider() if is_async else await asyncio.to_thread(provider)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, str):
            text = f"a token must be a str, and not a {type(found).__name__}"
            raise pb.ConfigurationError(f"option 'tokenProvider': {text}")
        return found

    return token


async def _first_ready(clients: Sequence[JournalClient]) -> JournalClient:
    """Return the first client whose broker answers, each of which has a head start to the next."""
    left = list(clients)
    of: dict[asyncio.Task[object], JournalClient] = {}
    failures: list[pb.TransportError] = []
    try:
        while left or of:
            if left:
                client = left.pop(0)
                of[asyncio.ensure_future(client.context.dispatcher.ready())] = client
            done, _ = await asyncio.wait(
                of, timeout=_HEAD_START if left else None, return_when=asyncio.FIRST_COMPLETED
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
