"""`gazette-aio serve`: run a broker on a directory until a signal."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gazette_aio.broker import BrokerOptions
from gazette_aio.broker import serve as run_broker
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.quantities import duration
from gazette_aio.serving.address import parse_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gazette_aio.protocol as pb
    from gazette_aio.client import JournalClient

_CONSOLE_SECONDS: Final = 10.0


class _AliasedOption(click.Option):
    """An option whose `--broker.*` spelling is hidden in the help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = self.opts
        self.opts = [name for name in shown if not name.startswith("--broker.")]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = shown


def _port_or_socket(_ctx: click.Context, _param: click.Parameter, text: str) -> int | Path:
    try:
        return parse_port(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a port nor unix:///path") from None


_PORT: Final = click.IntRange(0, 65535)
_FILE: Final = {"type": click.Path(dir_okay=False, path_type=Path)}
_FLAG: Final = {"is_flag": True, "default": None}


_OPTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "host": ("Address to listen on.", {"default": "127.0.0.1"}),
    "port": (
        "gRPC port, or unix:///path of a Unix socket; 0 chooses a free port.",
        {"callback": _port_or_socket, "metavar": "PORT", "default": "8080"},
    ),
    "http-port": (
        "Port of the HTTP gateway; 0 chooses a free port.",
        {"type": _PORT, "default": 8081},
    ),
    "allow-origin": (
        "Origin whose scripts may use the gateway's JSON form; repeatable.",
        {"multiple": True, "metavar": "ORIGIN"},
    ),
    "advertise": (
        "Endpoint reported to clients, if they can't reach the address of --host and --port.",
        {"metavar": "URL"},
    ),
    "data-dir": (
        "Directory of specs and content. [default: a temporary directory, removed at the end]",
        {"type": click.Path(file_okay=False, path_type=Path)},
    ),
    "file-root": (
        "Root of file:// fragment stores. [default: `fragments` in the data directory]",
        {"type": click.Path(exists=True, file_okay=False, path_type=Path)},
    ),
    "file-only": (
        "Keep fragments of all stores below the file root, regardless of their scheme.",
        _FLAG,
    ),
    "verify-fragments": (
        "Check stored fragments against the SHA-1 sum of their name as they're read.",
        {"type": bool, "default": True},
    ),
    "server-cert-file": (
        "Certificate in PEM format; enables TLS for gRPC and the gateway.",
        _FILE,
    ),
    "server-cert-key-file": ("Private key of the certificate, in PEM format.", _FILE),
    "server-ca-file": (
        "Authorities in PEM format; each client must have a certificate of one of them.",
        _FILE,
    ),
    "grpc-extras": ("Serve also gRPC health checks and reflection.", _FLAG),
    "zone": ("Zone of this broker.", {"default": "local"}),
    "id": ("Name of this broker in its zone. [default: name in the data directory]", {}),
    "store-endpoint": (
        "S3 server that stores may name by `endpoint`, as http://host:port; repeatable.",
        {"multiple": True, "metavar": "ORIGIN"},
    ),
    "auth-keys": (
        "Base64 keys which verify the tokens of clients; other processes can see options.",
        {"metavar": "KEYS"},
    ),
    "auth-keys-file": (
        "File of the keys, which other processes can't see; a pipe such as /dev/stdin, too.",
        _FILE,
    ),
    "claim-checks": (
        "Whether tokens confine their holders in all requests, or as Gazette's broker does.",
        {"type": click.Choice(["strict", "gazette"]), "default": "strict"},
    ),
    "max-replication": (
        "Upper bound of the replication of journals.",
        {"type": click.IntRange(1, 9), "default": 1},
    ),
    "min-append-rate": ("Least bytes per second of an append.", {"type": click.IntRange(min=0)}),
    "max-append-rate": (
        "Greatest bytes per second; 0: unlimited.",
        {"type": click.IntRange(min=0)},
    ),
    "max-grpc-recv-size": ("Longest accepted message.", {"type": click.IntRange(min=1024)}),
    "watch-delay": (
        "Time for which watches collect changes before sending them.  [default: 30ms]",
        {"callback": duration, "metavar": "DURATION"},
    ),
    "fsync": (
        "When to sync files: before each acknowledgement, periodically, or never.",
        {"type": click.Choice(["commit", "interval", "off"]), "default": "commit"},
    ),
    "console-port": (
        (
            "Port of a page about the journals, on 127.0.0.1; 0 chooses a free port. "
            "[default: no page]"
        ),
        {"type": _PORT},
    ),
}
"""Help and attributes of options. Their names are those of BrokerOptions, but for `_RENAMED`."""
_RENAMED: Final = {"id": "suffix", "max_grpc_recv_size": "max_recv_size"}


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, each with its `--broker.*` alias and `BROKER_*` variable."""
    for name, (text, attributes) in reversed(_OPTIONS.items()):
        variable = name.replace("-", "_")
        command = click.option(
            f"--{name}",
            f"--broker.{name}",
            variable,
            cls=_AliasedOption,
            envvar=f"BROKER_{variable.upper()}",
            show_envvar=True,
            show_default=attributes.get("default") is not None,
            help=text,
            **attributes,
        )(command)
    return command


@click.command()
@_options
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the line of JSON while the broker is ready, instead of stdout.",
)
@functools.partial(log_options, level="warn")
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
    from gazette_aio.cli.shell.connection import ClientSettings  # noqa: PLC0415
    from gazette_aio.client import connect  # noqa: PLC0415
    from gazette_aio.console import Console, ServedWithConsole  # noqa: PLC0415
    from gazette_aio.serving.process import run_until_signal  # noqa: PLC0415

    broker = ServedBroker(**vars(options))

    def open_client(auth: pb.Authorizer) -> JournalClient:
        # The endpoint is known once the broker is ready.
        settings = ClientSettings(broker.endpoint, _CONSOLE_SECONDS, zone=options.zone)
        return settings.client(connect, auth)

    served = ServedWithConsole(broker, Console(open_client, port=port))
    await run_until_signal(served, drain_seconds=options.drain_seconds, ready_file=ready_file)


def _broker_options(given: dict[str, Any]) -> BrokerOptions:
    values = {_RENAMED.get(name, name): value for name, value in given.items()}
    if isinstance(values["port"], Path):
        values["socket"] = values.pop("port")
    return BrokerOptions(**{name: value for name, value in values.items() if value is not None})


def main(args: Sequence[str] | None = None) -> int:
    """Run `serve`, as `python -m gazette_aio.broker` does, and return its exit code."""
    from gazette_aio.cli.app import run  # noqa: PLC0415 - the app imports this module.

    return run(["serve", *(args or ())])
