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
from gazette_aio.cli.shell.failures import CommandError, InputError, WrongServerError
from gazette_aio.cli.shell.output import print_json, print_line, print_table
from gazette_aio.cli.tools import diagnosis
from gazette_aio.cli.tools.advertised import (
    PORTS,
    PROBE_SECONDS,
    endpoints_of,
    examine_endpoints,
)
from gazette_aio.cli.tools.diagnosis import Finding
from gazette_aio.client import iter_journals
from gazette_aio.consumer.api import list_shards
from gazette_aio.message.core import FORM
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.proxies import proxy_of, proxy_of_endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import JournalClient

_MOST_BYTES: Final = 1 << 14


@click.command()
@click.option(
    "--etcd.address",
    "etcd_address",
    envvar="ETCD_ADDRESS",
    show_envvar=True,
    metavar="URL",
    help="Also check this Etcd.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
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
            if each.remedy:
                print_line()
                print_line(f"{each.check}: {each.remedy}.")
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
        findings += await _examine_etcd(etcd)
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
    try:
        url = urlsplit(settings.address)
        parse_endpoint(settings.address)
        port = url.port or PORTS.get(url.scheme, 0)
    except (pb.ValidationError, ValueError) as error:
        remedy = "expected a URL such as http://localhost:8080"
        return [Finding(f"{settings.peer} address", "failed", str(error), remedy)]
    findings = [Finding(f"{settings.peer} address", "ok", settings.address)]
    if (proxy := proxy_of_endpoint(settings.address)) is not None:
        findings.append(Finding(f"{settings.peer} proxy", "ok", str(proxy)))
    elif url.scheme != "unix":
        found, is_reached = await _examine_port(
            url.hostname or "", port, settings, is_secure=url.scheme == "https"
        )
        findings += found
        if not is_reached:
            return findings
    try:
        routes, found = await examine()
    except InputError as error:
        return [*findings, Finding("token", "failed", str(error), "keys are base64, by commas")]
    except pb.GazetteError as error:
        has_token = bool(settings.auth_keys or settings.auth_token)
        return [*findings, diagnosis.rpc_failure(settings.peer, error, has_token=has_token)]
    except WrongServerError as error:
        remedy = f"set ${settings.peer.upper()}_ADDRESS to that of a {settings.peer}"
        return [*findings, Finding(settings.peer, "failed", str(error), remedy)]
    except CommandError as error:
        remedy = "something answers the port, but not gRPC: check proxies, and http or https"
        return [*findings, Finding(settings.peer, "failed", str(error), remedy)]
    findings += (Finding(settings.peer, "ok", "answers requests"), *found)
    return findings + await examine_endpoints(
        endpoints_of(routes),
        settings.address,
        _tls_context(settings) if url.scheme == "https" else None,
        peer=settings.peer,
        are_used=settings.cache_size != 0,
    )


async def _examine_port(
    host: str, port: int, settings: ClientSettings, *, is_secure: bool
) -> tuple[list[Finding], bool]:
    """Return findings, and whether requests can be tried."""
    prefix = settings.peer.upper()
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except OSError as error:
        if isinstance(error, socket.gaierror):
            return [diagnosis.resolution_failure(host, f"{prefix}_ADDRESS")], False
        return [diagnosis.connection_failure(host, port, error)], False
    findings = [Finding("connection", "ok", f"{host}:{port}")]
    context: ssl.SSLContext | None = None
    if is_secure:
        try:
            context = _tls_context(settings)
            async with asyncio.timeout(PROBE_SECONDS):
                _, writer = await asyncio.open_connection(host, port, ssl=context)
            certificate = writer.get_extra_info("peercert")
            writer.close()
        except OSError as error:
            return [*findings, diagnosis.tls_failure(error, prefix)], False
        findings.append(diagnosis.certificate_finding(certificate["notAfter"], time.time()))
    try:
        headers, _ = await _get(host, port, "/debug/ready", context)
    except OSError:
        headers = {}
    findings.append(diagnosis.clock_finding(headers.get("date", ""), time.time()))
    return findings, True


def _tls_context(settings: ClientSettings) -> ssl.SSLContext:
    tls = settings.tls
    context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
    if tls is not None and tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _get(
    host: str, port: int, path: str, context: ssl.SSLContext | None
) -> tuple[dict[str, str], str]:
    """Return the headers, by lower case, and the beginning of the body of a response of HTTP."""
    async with asyncio.timeout(PROBE_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode("latin-1", "replace"))
            text = b""
            while len(text) < _MOST_BYTES and (chunk := await reader.read(_MOST_BYTES)):
                text += chunk
        finally:
            writer.close()
    head, _, body = text.decode("latin-1").partition("\r\n\r\n")
    pairs = (line.partition(":") for line in head.splitlines()[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}, body


async def _examine_etcd(address: str) -> list[Finding]:
    try:
        parse_endpoint(address)
        url = urlsplit(address)
        port = url.port or 2379
    except (pb.ValidationError, ValueError) as error:
        remedy = "expected a URL such as http://localhost:2379"
        return [Finding("Etcd", "failed", str(error), remedy)]
    if (proxy := proxy_of("grpc", url.netloc)) is not None:
        return [Finding("Etcd", "skipped", f"{address} is dialled through the proxy {proxy}")]
    host = url.hostname or ""
    try:
        context = ssl.create_default_context() if url.scheme == "https" else None
        _, health = await _get(host, port, "/health", context)
        _, version = await _get(host, port, "/version", context)
    except OSError as error:
        remedy = "check $ETCD_ADDRESS, and that Etcd runs"
        detail = f"{address}: {diagnosis.reason_of(error)}"
        return [Finding("Etcd", "failed", detail, remedy)]
    if '"true"' in health:
        return [Finding("Etcd", "ok", f"healthy, {' '.join(version.split())[:80]}")]
    remedy = "Etcd has no leader or no space: see `etcdctl endpoint status`"
    return [Finding("Etcd", "failed", f"{address} isn't healthy: {health[:80]!r}", remedy)]
