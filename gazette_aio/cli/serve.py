"""`gazette-aio serve`: run a broker on a directory until a signal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.broker import BrokerOptions
from gazette_aio.broker import serve as run_broker
from gazette_aio.serving.address import parse_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.client import JournalClient

DEFAULT_PORT = 8080
DEFAULT_HTTP_PORT = 8081
_CONSOLE_SECONDS = 10.0


class _AliasedOption(click.Option):
    """An option whose `--broker.*` spelling is hidden in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = self.opts
        self.opts = [name for name in shown if not name.startswith("--broker.")]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = shown


def _option(
    name: str, *, default: Any = None, **rest: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator of an option with its `--broker.*` alias and `BROKER_*` variable."""
    variable = name.replace("-", "_")
    return click.option(
        f"--{name}",
        f"--broker.{name}",
        variable,
        cls=_AliasedOption,
        envvar=f"BROKER_{variable.upper()}",
        show_envvar=True,
        default=default,
        show_default=default is not None,
        **rest,
    )


def _port_or_socket(_ctx: click.Context, _param: click.Parameter, text: str) -> int | Path:
    try:
        return parse_port(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a port nor unix:///path") from None


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else pb.parse_duration(text) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_PORT = click.IntRange(0, 65535)
_FILE = click.Path(dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command()
@_option("host", default="127.0.0.1", help="Address to listen on.")
@_option(
    "port",
    callback=_port_or_socket,
    metavar="PORT",
    default=str(DEFAULT_PORT),
    help="gRPC port, or unix:///path of a Unix socket; 0 chooses a free port.",
)
@_option(
    "http-port",
    type=_PORT,
    default=DEFAULT_HTTP_PORT,
    help="Port of the HTTP gateway; 0 chooses a free port.",
)
@_option(
    "allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose scripts may use the gateway's JSON form; repeatable.",
)
@_option(
    "advertise",
    metavar="URL",
    help="Endpoint reported to clients, if they can't reach the address of --host and --port.",
)
@_option(
    "data-dir",
    type=_DIRECTORY,
    help="Directory of specs and content. [default: a temporary directory, removed at the end]",
)
@_option(
    "file-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Root of file:// fragment stores. [default: `fragments` in the data directory]",
)
@_option(
    "file-only",
    is_flag=True,
    default=None,
    help="Keep fragments of all stores below the file root, regardless of their scheme.",
)
@_option(
    "verify-fragments",
    type=bool,
    default=True,
    help="Check stored fragments against the SHA-1 sum of their name as they're read.",
)
@_option(
    "server-cert-file",
    type=_FILE,
    help="Certificate in PEM format; enables TLS for gRPC and the gateway.",
)
@_option("server-cert-key-file", type=_FILE, help="Private key of the certificate, in PEM format.")
@_option(
    "server-ca-file",
    type=_FILE,
    help="Authorities in PEM format; each client must have a certificate of one of them.",
)
@_option(
    "grpc-extras",
    is_flag=True,
    default=None,
    help="Serve also gRPC health checks and reflection.",
)
@_option("zone", default="local", help="Zone of this broker.")
@_option("id", help="Name of this broker in its zone. [default: name in the data directory]")
@_option(
    "store-endpoint",
    multiple=True,
    metavar="ORIGIN",
    help="S3 server that stores may name by `endpoint`, as http://host:port; repeatable.",
)
@_option(
    "auth-keys",
    metavar="KEYS",
    help="Base64 keys which verify the tokens of clients; other processes can see options.",
)
@_option("auth-keys-file", type=_FILE, help="File of the keys, which other processes can't see.")
@_option(
    "claim-checks",
    type=click.Choice(["strict", "gazette"]),
    default="strict",
    help="Whether tokens confine their holders in all requests, or as Gazette's broker does.",
)
@_option(
    "max-replication",
    type=click.IntRange(1, 9),
    default=1,
    help="Upper bound of the replication of journals.",
)
@_option("min-append-rate", type=click.IntRange(min=0), help="Least bytes per second of an append.")
@_option(
    "max-append-rate", type=click.IntRange(min=0), help="Greatest bytes per second; 0: unlimited."
)
@_option("max-grpc-recv-size", type=click.IntRange(min=1024), help="Longest accepted message.")
@_option(
    "watch-delay",
    callback=_duration,
    metavar="DURATION",
    help="Time for which watches collect changes before sending them.  [default: 30ms]",
)
@_option(
    "fsync",
    type=click.Choice(["commit", "interval", "off"]),
    default="commit",
    help="When to sync files: before each acknowledgement, periodically, or never.",
)
@_option(
    "console-port",
    type=_PORT,
    help="Port of a page about the journals, on 127.0.0.1; 0 chooses a free port. [default: no "
    "page]",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the line of JSON while the broker is ready, instead of stdout.",
)
def serve(ready_file: Path | None, console_port: int | None, **given: Any) -> None:
    """Serve journals from a directory, until SIGTERM or Ctrl-C.

    When the broker is ready, it prints `endpoint`, `http_endpoint`, `process_id` and `pid` as JSON,
    and with `--console-port` also `console`.
    """
    options = _broker_options(given)
    if console_port is None:
        asyncio.run(run_broker(options, ready_file=ready_file))
        return
    if options.advertise or options.server_cert_file:
        raise click.UsageError(
            "--console-port doesn't go with --advertise and --server-cert-file: "
            "run gazette-aio console"
        )
    asyncio.run(_serve_with_console(options, console_port, ready_file))


async def _serve_with_console(options: BrokerOptions, port: int, ready_file: Path | None) -> None:
    # A broker without a page needs none of these.
    from gazette_aio.broker.serve import ServedBroker  # noqa: PLC0415
    from gazette_aio.client import RetryPolicy, connect  # noqa: PLC0415
    from gazette_aio.console import Console, ServedWithConsole  # noqa: PLC0415
    from gazette_aio.serving.process import run_until_signal  # noqa: PLC0415

    broker = ServedBroker(**vars(options))

    def open_client(auth: pb.Authorizer) -> JournalClient:
        return connect(
            broker.endpoint,
            auth=auth,
            retry=RetryPolicy(max_elapsed=_CONSOLE_SECONDS),
            connect_timeout=_CONSOLE_SECONDS,
            zone=options.zone,
        )

    served = ServedWithConsole(broker, Console(open_client, port=port))
    await run_until_signal(served, drain_seconds=options.drain_seconds, ready_file=ready_file)


_RENAMED = {"id": "suffix", "max_grpc_recv_size": "max_recv_size"}


def _broker_options(given: dict[str, Any]) -> BrokerOptions:
    values = {_RENAMED.get(name, name): value for name, value in given.items()}
    if isinstance(values["port"], Path):
        values["socket"] = values.pop("port")
    return BrokerOptions(**{name: value for name, value in values.items() if value is not None})


def main(args: Sequence[str] | None = None) -> int:
    """Run `serve`, as `python -m gazette_aio.broker` does, and return its exit code."""
    from gazette_aio.cli.app import run  # noqa: PLC0415 - the app imports this module.

    return run(["serve", *(args or ())])
