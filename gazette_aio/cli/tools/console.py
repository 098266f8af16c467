"""`gazette-aio console`: a page about the journals of a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import functools

import click

from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.client import TLSOptions, connect
from gazette_aio.console import Console
from gazette_aio.consumer.api import connect_shards
from gazette_aio.serving.process import run_until_signal

DEFAULT_CONSOLE_PORT = 8082


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_CONSOLE_PORT,
    show_default=True,
    help="Port to listen on; 0 chooses a free port.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Further host name by which browsers call the console, as behind a proxy; repeatable.",
)
@click.option(
    "--consumer.address",
    "consumer_address",
    envvar="CONSUMER_ADDRESS",
    show_envvar=True,
    metavar="URL",
    help="URL of a member of a consumer, for the page of shards. [default: no page of shards]",
)
@click.option(
    "--consumer.trusted-ca-file",
    "consumer_ca_file",
    type=click.Path(dir_okay=False),
    envvar="CONSUMER_TRUSTED_CA_FILE",
    show_envvar=True,
    help="Authorities of members, in PEM format.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Refuse edits and commands of shards, whatever the token permits.",
)
@connection_options
def console(
    connection: ClientSettings,
    *,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    consumer_address: str | None,
    consumer_ca_file: str | None,
    read_only: bool,
) -> None:
    """Serve a page about the journals of a cluster, until SIGTERM or Ctrl-C.

    Requests to the brokers and to the consumer have the token that is entered in the page. The
    command itself takes no credentials, since every browser could use them.
    """
    if connection.auth_keys or connection.auth_token:
        raise InputError("the console takes no keys and no token: enter a token in its page")
    if connection.tls is not None and connection.tls.certificate_file is not None:
        raise InputError("the console takes no certificate of a client: browsers would borrow it")

    # Without TLS options, a client would use the certificate of the environment.
    consumer = dataclasses.replace(
        connection, address=consumer_address or "", tls=TLSOptions(ca_file=consumer_ca_file or None)
    )
    open_shards = functools.partial(consumer.client, connect_shards)
    page = Console(
        functools.partial(connection.client, connect),
        host=host,
        port=port,
        allow_hosts=allow_host,
        open_shards=open_shards if consumer_address else None,
        read_only=read_only,
    )
    asyncio.run(run_until_signal(page, drain_seconds=0.0))
