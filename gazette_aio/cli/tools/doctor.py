"""`gazette-aio doctor`: diagnoses a connection, and suggests remedies."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import os
import platform
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

import gazette_aio.protocol as pb
from gazette_aio import __version__
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError, InputError
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_table
from gazette_aio.cli.tools import diagnosis
from gazette_aio.cli.tools.diagnosis import Finding
from gazette_aio.cli.tools.probes import (
    PORTS,
    PROBE_SECONDS,
    dial,
    endpoints_of,
    examine_endpoints,
    get,
)
from gazette_aio.client import iter_journals
from gazette_aio.consumer.api import list_shards
from gazette_aio.message.core import FORM
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.proxies import proxy_of, proxy_of_endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import JournalClient

_ETCD_PORT: Final = 2379


@click.command()
@click.option(
    "--etcd.address",
    "etcd_address",
    envvar="ETCD_ADDRESS",
    show_envvar=True,
    metavar="URL",
    help="Also check this Etcd.",
)
@json_option("Print the findings as JSON.")
@consumer_and_broker_options
@click.pass_context
def doctor(
    context: click.Context,
    consumer: ClientSettings,
    connection: ClientSettings,
    etcd_address: str | None,
    *,
    as_json: bool,
) -> None:
    """Diagnose a connection: address, DNS, TLS, tokens, routes, stores, shards, Etcd, clocks.

    The command looks at this installation, and checks the broker, and a consumer and Etcd if their
    addresses are given. It changes nothing; brokers write a small file to each fragment store, as
    they do for each health check.
    """
    source = context.get_parameter_source("consumer_address")
    with_consumer = source is not click.core.ParameterSource.DEFAULT
    findings = asyncio.run(_examine(connection, consumer if with_consumer else None, etcd_address))
    if as_json:
        print_json([dataclasses.asdict(each) for each in findings])
    else:
        print_table(
            ("CHECK", "RESULT", "DETAIL"), [(f.check, f.result, f.detail) for f in findings]
        )
        for each in findings:
            if each.result in {"failed", "warning"}:
                # The table of a narrow terminal has only some of it.
                print_line()
                print_line(f"{each.check}: {each.detail}")
                if each.remedy:
                    print_line(f"  {each.remedy}.")
    failed = dict.fromkeys(each.check for each in findings if each.result == "failed")
    if failed:
        raise CommandError(f"failed: {', '.join(failed)}")


async def _examine(
    broker: ClientSettings, consumer: ClientSettings | None, etcd: str | None
) -> list[Finding]:
    chosen = os.environ.get("GAZETTE_AIO_CORE")
    newer = diagnosis.newer_source(Path(__file__).parents[2])
    core = diagnosis.core_finding(FORM, is_chosen=chosen == FORM, newer=newer)
    findings = [_versions(), core]

    async def examine_journals() -> tuple[list[pb.Route], list[Finding]]:
        async with broker.open() as client:
            journals = [journal async for journal in iter_journals(client)]
            age = diagnosis.age_finding([journal.create_revision for journal in journals])
            stores = {store: None for each in journals for store in each.spec.fragment.stores}
            checks = await asyncio.gather(*(_examine_store(client, store) for store in stores))
        return [journal.route for journal in journals], [age, *dict.fromkeys(checks)]

    findings += await _examine_server(broker, examine_journals)
    if consumer is not None:
        settings = consumer

        async def examine_shards() -> tuple[list[pb.Route], list[Finding]]:
            async with settings.open_shards() as client:
                shards = (await list_shards(client)).shards
            return [shard.route for shard in shards], diagnosis.shard_findings(shards)

        findings += await _examine_server(consumer, examine_shards)
    if etcd:
        findings.append(await _examine_etcd(etcd))
    return findings


async def _examine_store(client: JournalClient, store: str) -> Finding:
    try:
        health = await client.fragment_store_health(store, timeout=PROBE_SECONDS)
    except pb.GazetteError as error:
        return diagnosis.store_check_failure(store, error)
    return diagnosis.store_finding(store, health.store_health_error)


def _versions() -> Finding:
    parts = [f"gazette-aio {__version__}", f"Python {platform.python_version()}"]
    parts += [f"{name} {importlib.metadata.version(name)}" for name in ("grpcio", "protobuf")]
    return Finding("versions", "ok", ", ".join(parts))


async def _examine_server(
    settings: ClientSettings, examine: Callable[[], Awaitable[tuple[list[pb.Route], list[Finding]]]]
) -> list[Finding]:
    peer, address = settings.peer, settings.address
    try:
        scheme = urlsplit(address).scheme
        parse_endpoint(address)
        _ = urlsplit(address).port
    except (pb.ValidationError, ValueError) as error:
        remedy = "expected a URL such as http://localhost:8080"
        return [Finding(f"{peer} address", "failed", str(error), remedy)]
    findings = [Finding(f"{peer} address", "ok", address)]
    if (proxy := proxy_of_endpoint(address)) is not None:
        findings.append(Finding(f"{peer} proxy", "ok", str(proxy)))
    elif scheme != "unix":
        findings += await _examine_port(settings)
        if findings[-1].check != "clock":
            return findings
    try:
        routes, found = await examine()
    except InputError as error:
        return [*findings, Finding("token", "failed", str(error), "keys are base64, by commas")]
    except pb.GazetteError as error:
        given = "KEYS" if settings.auth_keys else "TOKEN" if settings.auth_token else ""
        return [*findings, diagnosis.rpc_failure(peer, error, given=given)]
    except CommandError as error:
        return [*findings, diagnosis.wrong_server(peer, error)]
    findings += (Finding(peer, "ok", "answers requests"), *found)
    return findings + await examine_endpoints(
        endpoints_of(routes),
        address,
        _tls_context(settings) if scheme == "https" else None,
        peer=peer,
        are_used=settings.cache_size != 0,
    )


async def _examine_port(settings: ClientSettings) -> list[Finding]:
    """Return findings, of which that of clocks is the last if requests can be tried."""
    peer, address = settings.peer, settings.address
    url = urlsplit(address)
    place = f"{url.hostname}:{url.port or PORTS.get(url.scheme, 0)}"
    findings: list[Finding] = []
    context: ssl.SSLContext | None = None
    stage: diagnosis.Stage = "connection"
    try:
        (await dial(address))[1].close()
        findings.append(Finding("connection", "ok", place))
        if url.scheme == "https":
            stage = "TLS"
            context = _tls_context(settings)
            _, writer = await dial(address, context)
            certificate = writer.get_extra_info("peercert")
            writer.close()
            findings.append(diagnosis.certificate_finding(certificate["notAfter"], time.time()))
    except OSError as error:
        stage = "DNS" if isinstance(error, socket.gaierror) else stage
        return [*findings, diagnosis.network_failure(peer, place, stage, error)]
    try:
        date, _ = await get(address, "/debug/ready", context)
    except OSError:
        date = ""
    return [*findings, diagnosis.clock_finding(date, time.time())]


def _tls_context(settings: ClientSettings) -> ssl.SSLContext:
    tls = settings.tls
    context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
    if tls is not None and tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _examine_etcd(address: str) -> Finding:
    try:
        parse_endpoint(address)
        url = urlsplit(address)
        if (proxy := proxy_of("grpc", url.netloc)) is not None:
            return Finding("Etcd", "skipped", f"{address} is dialled through the proxy {proxy}")
        context = ssl.create_default_context() if url.scheme == "https" else None
        _, health = await get(address, "/health", context, port=_ETCD_PORT)
        _, version = await get(address, "/version", context, port=_ETCD_PORT)
    except (pb.ValidationError, ValueError) as error:
        remedy = "expected a URL such as http://localhost:2379"
        return Finding("Etcd", "failed", str(error), remedy)
    except OSError as error:
        detail = f"{address}: {diagnosis.reason_of(error)}"
        return Finding("Etcd", "failed", detail, "check $ETCD_ADDRESS, and that Etcd runs")
    if '"true"' in health:
        return Finding("Etcd", "ok", f"healthy, {' '.join(version.split())[:80]}")
    remedy = "Etcd has no leader or no space: see `etcdctl endpoint status`"
    if not health:
        remedy = "no Etcd answers there: check $ETCD_ADDRESS"
    return Finding("Etcd", "failed", f"{address} isn't healthy: {health[:80]!r}", remedy)
