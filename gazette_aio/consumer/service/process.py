"""Process of a member: its settings, its signals and its exit code."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from anyio import open_signal_receiver

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import connect
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.service.diagnostics import Diagnostics
from gazette_aio.consumer.service.logs import configure_logs
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.consumer.service.settings import (
    FILE_NAME,
    SETTINGS,
    combine,
    print_config,
    process_config,
    read_file,
)
from gazette_aio.serving.tls import read_tls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.application import Application
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.service.metrics import ConsumerMetrics
    from gazette_aio.consumer.service.settings import ProcessConfig

_logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def run_consumer(
    application: Application[Any, Any],
    *,
    options: ConsumerOptions | None = None,
    store: KeyValueStore | None = None,
    client: JournalClient | None = None,
    metrics: ConsumerMetrics | None = None,
    on_start: Callable[[Service], None] | None = None,
) -> bool:
    """Run a member of a consumer until SIGTERM or SIGINT, or until it fails.

    At the first signal, other members are asked to take the shards over, and the process ends once
    they have, or after `options.exit_timeout`. A second signal ends it at once, and a third one as
    the signal does by default.

    Args:
        application: What the shards run.
        options: Options of the member.
        store: Store of the group, which is left open. By default, Etcd at `http://localhost:2379`.
        client: Client of brokers, which is left open. By default, `connect()`.
        metrics: Metrics to feed, which `/debug/metrics` shows. By default those of the process, if
            prometheus-client is installed and `options.http_port` is set.
        on_start: Called once the member has joined the group.

    Returns:
        Whether other members hold all shards of this member.

    Raises:
        LeaseLostError: The lease is lost, for example as Etcd didn't answer.
        Exception: As `Service.start()` and `Service.wait()`.

    Cancellation: safe — the member is stopped, without handing over.
    """
    options = options or ConsumerOptions()
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(EtcdStore())
        if client is None:
            client = await stack.enter_async_context(connect(zone=options.zone))
        if metrics is None and options.http_port is not None:
            metrics = _process_metrics()
        service = Service(application, store, client, options, metrics=metrics)
        if options.http_port is not None:
            diagnostics = Diagnostics(
                lambda: service.is_ready, metrics.text if metrics is not None else None
            )
            # Entered first: a cancelled start leaves nothing behind.
            await stack.enter_async_context(diagnostics)
            await _start(diagnostics, options)
        # Entered last: signals have their default actions while the process waits for Etcd.
        async with service:
            return await _until_end(service, on_start)


def main(application: Application[Any, Any], args: Sequence[str] | None = None) -> None:
    """Run the command line of a consumer's program, and exit.

    `serve` runs a member. `print-config` prints its settings, as a file `gazette.ini` has them.
    They come from flags such as `--consumer.limit`, from variables such as `$CONSUMER_LIMIT`, and
    from the first `gazette.ini` in the current directory and in `~/.config/gazette`.

    The exit code is 0 after a signal, 1 if the member failed, and 2 for wrong usage.

    Args:
        application: What the shards run.
        args: Arguments; None for those of the process.
    """
    # gRPC's core would log errors which this program reports.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    command(application).main(args, prog_name=Path(sys.argv[0]).name)


def command(application: Application[Any, Any]) -> click.Group:
    """Return the command line of a consumer's program, to be part of another one."""

    @click.group(context_settings={"help_option_names": ["-h", "--help"]})
    def group() -> None:
        pass

    group.help = f"Run {type(application).__name__}, a consumer of Gazette journals."

    @group.command("serve", help="Serve shards until SIGTERM or Ctrl-C.")
    @_settings
    def serve(**flags: str | None) -> None:
        config = _config(flags)
        configure_logs(config.log_level, config.log_format)
        try:
            asyncio.run(_serve(application, config))
        except (pb.GazetteError, OSError) as error:
            raise click.ClickException(str(error)) from None

    @group.command("print-config", help="Print all settings, and exit.")
    @_settings
    def show(**flags: str | None) -> None:
        values = _values(flags)
        _checked(values)
        click.echo(print_config(values), nl=False)

    return group


async def _serve(application: Application[Any, Any], config: ProcessConfig) -> None:
    async with (
        EtcdStore(config.etcd) as store,
        connect(config.broker_address, **config.broker) as client,
    ):
        await run_consumer(
            application, options=config.consumer, store=store, client=client, on_start=_tell
        )


def _tell(service: Service) -> None:
    _logger.info("consumer %s serves at %s", service.process_id.suffix, service.endpoint)


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    for setting in reversed(SETTINGS):
        default = f"  [default: {setting.default}]" if setting.default else ""
        function = click.option(
            f"--{setting.flag}",
            _parameter(setting.flag),
            metavar="TEXT",
            help=f"{setting.help} (${setting.environment}){default}",
        )(function)
    return function


def _parameter(flag: str) -> str:
    return flag.replace(".", "_").replace("-", "_")


def _values(flags: Mapping[str, str | None]) -> dict[str, str]:
    given = {setting.flag: flags[_parameter(setting.flag)] for setting in SETTINGS}
    homes = [Path(os.environ[name]) for name in ("HOME", "UserProfile") if os.environ.get(name)]
    paths = [Path(FILE_NAME), *(home / ".config" / "gazette" / FILE_NAME for home in homes)]
    try:
        return combine(given, os.environ, read_file(paths))
    except pb.ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def _checked(values: Mapping[str, str]) -> ProcessConfig:
    try:
        return process_config(values)
    except (pb.ConfigurationError, pb.ValidationError) as error:
        raise click.UsageError(str(error)) from None


def _config(flags: Mapping[str, str | None]) -> ProcessConfig:
    return _checked(_values(flags))


async def _until_end(service: Service, on_start: Callable[[Service], None] | None) -> bool:
    with open_signal_receiver(*_SIGNALS) as signals:
        if on_start is not None:
            on_start(service)
        waiting = asyncio.ensure_future(service.wait())
        try:
            for _ in range(2):
                received = asyncio.ensure_future(anext(signals))
                try:
                    await asyncio.wait((waiting, received), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    received.cancel()
                    await asyncio.wait((received,))
                if waiting.done():
                    break
                service.exit_gracefully()
            return await waiting
        finally:
            waiting.cancel()


@functools.cache
def _process_metrics() -> ConsumerMetrics | None:
    try:
        from gazette_aio.consumer.service.metrics import ConsumerMetrics  # noqa: PLC0415
    except ImportError:
        return None
    return ConsumerMetrics()


async def _start(diagnostics: Diagnostics, options: ConsumerOptions) -> None:
    tls = None
    if options.server_cert_file is not None:
        tls = await in_thread(read_tls, options.tls_files)
    await diagnostics.start(
        options.bind, options.http_port or 0, tls.context if tls is not None else None
    )
