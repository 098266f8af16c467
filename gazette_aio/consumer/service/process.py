"""Process of a member: its settings, its signals and its exit code."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import sys
from contextlib import AsyncExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.garbage import collected_in_parts
from gazette_aio.client import connect
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.service.diagnostics import Diagnostics
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.consumer.service.settings import (
    SETTINGS,
    file_values,
    print_config,
    process_config,
)
from gazette_aio.consumer.service.signals import StopSignals
from gazette_aio.logs import configure_logs
from gazette_aio.protocol.shown import shown_text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.application import Application
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.service.metrics import ConsumerMetrics
    from gazette_aio.consumer.service.settings import ProcessConfig

_logger = logging.getLogger(__name__)


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

    At the first signal, other members are asked to take the shards over, and the member ends once
    they have, or after `options.exit_timeout`. A second signal ends it at once, and a third one as
    the signal does by default. A signal before the member has joined ends the start.

    Args:
        application: What the shards run.
        options: Options of the member.
        store: Store of the group, which is left open. By default, Etcd at `http://localhost:2379`.
        client: Client of brokers, which is left open. By default, `connect()`.
        metrics: Metrics to feed, which `/debug/metrics` shows. By default those of the process, if
            prometheus-client is installed and `options.http_port` is set.
        on_start: Called once the member has joined the group.

    Returns:
        Whether other members hold all shards of this member. False if a signal ended the start.

    Raises:
        LeaseLostError: The lease is lost, for example as Etcd didn't answer.
        Exception: As `Service.start()` and `Service.wait()`.

    Cancellation: safe — the member is stopped, without handing over.
    """
    return await _run(
        application,
        options or ConsumerOptions(),
        EtcdStore() if store is None else nullcontext(store),
        client,
        metrics=metrics,
        on_start=on_start,
    )


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
    command(application).main(args, prog_name=Path(sys.argv[0]).name)


def command(application: Application[Any, Any]) -> click.Group:
    """Return the command line of a consumer's program, to be part of another one."""

    @click.group(context_settings={"help_option_names": ["-h", "--help"]})
    @click.pass_context
    def group(context: click.Context) -> None:
        with _usage():
            context.default_map = dict.fromkeys(("serve", "print-config"), file_values())

    group.help = f"Run {type(application).__name__}, a consumer of Gazette journals."

    @group.command("serve", params=list(SETTINGS), help="Serve shards until SIGTERM or Ctrl-C.")
    def serve(**values: Any) -> None:
        with _usage():
            config = process_config(values)
        configure_logs(config.log_level, config.log_format)
        if values["debug_private"] and config.consumer.http_port is None:
            _logger.warning("--debug.private without --debug.port: diagnostics aren't served")
        try:
            asyncio.run(_serve(application, config))
        except (pb.GazetteError, OSError) as error:
            raise click.ClickException(shown_text(str(error))) from None

    @group.command("print-config", params=list(SETTINGS), help="Print all settings, and exit.")
    @click.pass_context
    def show(context: click.Context, /, **values: Any) -> None:
        with _usage():
            process_config(values)
        click.echo("\n".join(print_config(context)))  # noqa: TID251 - Its values are quoted.

    return group


@contextmanager
def _usage() -> Generator[None]:
    try:
        yield
    except (pb.ConfigurationError, pb.ValidationError) as error:
        raise click.UsageError(str(error)) from None


async def _serve(application: Application[Any, Any], config: ProcessConfig) -> None:
    async with connect(config.broker_address, **config.broker) as client:
        await _run(application, config.consumer, EtcdStore(config.etcd), client, on_start=_tell)


def _tell(service: Service) -> None:
    name = service.process_id.suffix
    _logger.info("consumer %s serves at %s", name, service.endpoint)
    if service.http_endpoint:
        _logger.info("consumer %s serves diagnostics at %s", name, service.http_endpoint)


async def _run(
    application: Application[Any, Any],
    options: ConsumerOptions,
    opening: AbstractAsyncContextManager[KeyValueStore],
    client: JournalClient | None,
    *,
    metrics: ConsumerMetrics | None = None,
    on_start: Callable[[Service], None] | None = None,
) -> bool:
    """Run a member until a signal. See `run_consumer()`."""
    async with collected_in_parts(), StopSignals() as signals, AsyncExitStack() as stack:
        service: Service | None = None
        with signals.starting:
            store = await stack.enter_async_context(opening)
            if client is None:
                client = await stack.enter_async_context(connect(zone=options.zone))
            if metrics is None and options.http_port is not None:
                metrics = _process_metrics()
            made = Service(application, store, client, options, metrics=metrics)
            if options.http_port is not None:
                await _start_diagnostics(stack, made, options.http_port)
            service = await stack.enter_async_context(made)
        if service is None:
            _logger.info("the member was stopped before it had started")
            return False
        signals.has_started(service)
        if on_start is not None:
            on_start(service)
        return await service.wait()


async def _start_diagnostics(stack: AsyncExitStack, service: Service, port: int) -> None:
    options, metrics = service.options, service.metrics
    tls = await service.server_tls()
    diagnostics = Diagnostics(
        lambda: service.is_ready,
        metrics.text if metrics is not None else None,
        allow_origin=options.allow_origin,
    )
    # Entered first: a cancelled start leaves nothing behind.
    await stack.enter_async_context(diagnostics)
    context = tls.context if tls is not None else None
    if context is not None:
        context.verify_mode = ssl.CERT_NONE  # Probes and Prometheus have no certificates.
    port = await diagnostics.start(options.bind, port, context)
    service.http_endpoint = service.endpoint_of(port, tls)


@functools.cache
def _process_metrics() -> ConsumerMetrics | None:
    try:
        from gazette_aio.consumer.service.metrics import ConsumerMetrics  # noqa: PLC0415
    except ImportError:
        return None
    return ConsumerMetrics()
