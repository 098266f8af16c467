"""Settings of a consumer's process: flags, variables of the environment, and a file.

Of a setting that's given more than once, the flag counts first, then the variable, then the file.
An empty text is the default. The names are those of Gazette's consumers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

import gazette_aio.protocol as pb
from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.shards.restarts import RestartPolicy
from gazette_aio.serving.address import MAX_PORT, parse_port
from gazette_aio.settings import KEYS, plain, read_settings, setting_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gazette_aio.client import ClientOptions
    from gazette_aio.logs import LogFormat

_FILE_NAME: Final = "gazette.ini"
_SECTIONS: Final = {"logging": "log"}
_TEXTS: Final = "gazette_aio.consumer.settings"
_UNDERSCORES: Final = str.maketrans(".-", "__")


def _duration(text: str) -> float:
    try:
        return pb.parse_duration(text) / 1e9
    except pb.ValidationError as error:
        raise click.BadParameter(str(error)) from None


def _lease(text: str) -> int:
    if (seconds := _duration(text)) < 1:
        raise click.BadParameter("expected at least 1s")
    return int(seconds)


def _port(text: str) -> int | Path:
    try:
        return parse_port(text)
    except ValueError:
        raise click.BadParameter("expected a port or unix:///path") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


_COUNT: Final = click.IntRange(0, (1 << 31) - 1)
_FILE: Final = click.Path(path_type=Path)


class Setting(click.Option):
    """A setting, as `--<section>.<name>` and as a variable.

    Args:
        section: Its section in files.
        name: Its name in the section.
        text: What its help says.
        default: Text of its default, if it has one.
        kind: Type of its value, or a function that makes it of a text.
        variable: Name of its variable; empty for that of section and name.
        multiple: Whether it may be repeated. A variable has blanks between the texts.
    """

    def __init__(
        self,
        section: str,
        name: str,
        text: str,
        default: str | None = None,
        kind: Any = click.STRING,
        *,
        variable: str = "",
        multiple: bool = False,
    ) -> None:
        parameter = f"{section}_{name}".translate(_UNDERSCORES)
        # As in Gazette's programs, the name alone turns a flag on.
        flag: dict[str, Any] = (
            {"is_flag": False, "flag_value": "true"} if kind is click.BOOL else {}
        )
        super().__init__(
            [f"--{section}.{name}", parameter],
            type=kind,
            default=default,
            envvar=variable or parameter.upper(),
            multiple=multiple,
            metavar=None if isinstance(kind, click.Choice) else "TEXT",
            help=text,
            show_default=True,
            show_envvar=True,
            **flag,
        )
        self.section = section
        """Its section in files."""
        self.short = name
        """Its name in the section."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable, even if it's empty, and so counts before the file."""
        del ctx
        return os.environ.get(str(self.envvar))

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Return the text that counts, and keep it for `print_config()`."""
        text, source = super().consume_value(ctx, opts)
        if source is ParameterSource.DEFAULT or not text:
            return self.default, ParameterSource.DEFAULT
        ctx.meta.setdefault(_TEXTS, {})[self] = list(text) if self.multiple else [text]
        return text, source


SETTINGS: Final = (
    Setting("consumer", "zone", "Availability zone of this process.", "local"),
    Setting("consumer", "id", "Unique name of this process in its zone; random if it's not set."),
    Setting("consumer", "host", "Host by which others reach this process; by default its name."),
    Setting("consumer", "bind", "Address to listen on; by default all of them."),
    Setting("consumer", "port", "Port, or unix:///path; 0 is a free one.", "0", _port),
    Setting("consumer", "limit", "Most shards to be assigned.", "32", _COUNT),
    Setting("consumer", "max-hot-standbys", "Most hot standbys of any shard.", "3", _COUNT),
    Setting("consumer", "watch-delay", "Time to gather changes of keys.", "30ms", _duration),
    Setting("consumer", "exit-timeout", "Most time of a graceful exit.", kind=_duration),
    Setting(
        "consumer",
        "zero-limit-on-exit",
        "Whether to exit as members before Gazette v0.103 understand it.",
        "false",
        click.BOOL,
    ),
    Setting("consumer", "stop-timeout", "Time of tasks and RPCs to end.", "15s", _duration),
    Setting("consumer", "release-timeout", "Time to release a shard's store.", "1m", _duration),
    Setting("consumer", "max-restarts", "Most restarts of a failed shard in a row.", "0", _COUNT),
    Setting("consumer", "recovery-directory", "Directory of shards' files.", kind=_FILE),
    Setting("consumer", "hints-bytes", "Bytes of a log that hints follow.", "67108864", _COUNT),
    Setting("consumer", "auth-keys", "Base64 keys of tokens."),
    Setting("consumer", "auth-keys-file", "File of these keys.", kind=_FILE),
    Setting("consumer", "server-cert-file", "Certificate of the server: uses TLS.", kind=_FILE),
    Setting("consumer", "server-cert-key-file", "Private key of the certificate.", kind=_FILE),
    Setting("consumer", "server-ca-file", "Authorities of the clients' certificates.", kind=_FILE),
    Setting("consumer", "peer-cert-file", "Certificate for other members.", kind=_FILE),
    Setting("consumer", "peer-cert-key-file", "Private key of that certificate.", kind=_FILE),
    Setting("consumer", "peer-ca-file", "Authorities of other members.", kind=_FILE),
    Setting("consumer", "max-grpc-recv-size", "Longest accepted message.", "4194304", _COUNT),
    Setting(
        "consumer",
        "allow-origin",
        "Origin whose scripts may read diagnostics from a browser; repeatable.",
        multiple=True,
    ),
    Setting("broker", "address", "Endpoint of a broker.", "http://localhost:8080"),
    Setting("broker", "cert-file", "Certificate for brokers.", kind=_FILE),
    Setting("broker", "cert-key-file", "Private key of that certificate.", kind=_FILE),
    Setting("broker", "trusted-ca-file", "Authorities of brokers.", kind=_FILE),
    Setting("broker", "auth-keys", "Base64 keys, of which the first one signs."),
    Setting("broker", "auth-token", "Token to send instead."),
    Setting("broker", "cache.size", "Journals whose routes are kept.", "256", _COUNT),
    Setting("broker", "cache.ttl", "Time to keep a route.", "1m", _duration),
    Setting("broker", "file-root", "Directory of fragments with file:// URLs.", kind=_FILE),
    Setting("etcd", "address", "Endpoints of Etcd.", "http://localhost:2379", _list),
    Setting("etcd", "cert-file", "Certificate for Etcd.", kind=_FILE),
    Setting("etcd", "cert-key-file", "Private key of that certificate.", kind=_FILE),
    Setting("etcd", "trusted-ca-file", "Authorities of Etcd.", kind=_FILE),
    Setting("etcd", "user", "User of Etcd."),
    Setting("etcd", "password", "Password of the user."),
    Setting(
        "etcd",
        "lease",
        "Time after which a lost member is gone.",
        "20s",
        _lease,
        variable="ETCD_LEASE_TTL",
    ),
    Setting("etcd", "prefix", "Prefix of the deployment's keys; by default the application's."),
    Setting(
        "log",
        "level",
        "Least level of records.",
        "warn",
        click.Choice(("trace", "debug", "info", "warn", "error", "fatal")),
    ),
    Setting("log", "format", "Form of records.", "text", click.Choice(("text", "json", "color"))),
    Setting(
        "debug",
        "port",
        "Port of /debug/ready and /debug/metrics.",
        kind=click.IntRange(0, MAX_PORT),
    ),
    Setting(
        "debug",
        "private",
        "Diagnostics at --debug.port only. No member serves them at --consumer.port.",
        "false",
        click.BOOL,
    ),
)


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Parsed settings of a process."""

    consumer: ConsumerOptions
    etcd: EtcdOptions
    broker_address: str
    broker: ClientOptions = field(repr=False)
    log_level: str
    log_format: LogFormat


def process_config(values: Mapping[str, Any]) -> ProcessConfig:
    """Return the meaning of settings.

    Args:
        values: Value of each setting by the name of its parameter; None for that of the options.

    Raises:
        ConfigurationError: Options are invalid, or contradict each other.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, short = name.partition("_")
        options = sections.setdefault(section, {})
        if value is not None:
            options[short] = value
    consumer, broker, etcd = sections["consumer"], sections["broker"], sections["etcd"]
    if isinstance(consumer["port"], Path):
        consumer["socket"] = consumer.pop("port")
    if restarts := consumer.pop("max_restarts"):
        consumer["restarts"] = RestartPolicy(max_attempts=restarts)
    consumer["lease_ttl"] = etcd.pop("lease")
    consumer["prefix"] = etcd.pop("prefix", "")
    consumer["http_port"] = sections["debug"].get("port")
    address = broker.pop("address")
    return ProcessConfig(
        ConsumerOptions(**consumer),
        EtcdOptions(endpoints=etcd.pop("address"), tls=_tls(etcd), **etcd),
        address,
        {"zone": consumer["zone"], "auth": _auth(broker), "tls": _tls(broker), **broker},  # type: ignore[typeddict-item]
        sections["log"]["level"],
        sections["log"]["format"],
    )


def file_values() -> dict[str, str | list[str]]:
    """Return the texts of `gazette.ini` by the names of parameters, as a `default_map` of click.

    Sections are `[consumer]`, `[broker]`, `[etcd]`, `[log]` and `[debug]`; dashes, underscores and
    case don't matter. Other settings are passed over: programs share the file.

    Raises:
        ConfigurationError: A file can't be read, or isn't an INI file.
    """
    known = {(each.section, plain(each.short)): each for each in SETTINGS}
    values: dict[str, str | list[str]] = {}
    for line in read_settings(_FILE_NAME):
        if not line.section:
            raise pb.ConfigurationError(f"{line.where}: a setting without a section")
        section = line.section.lower()
        section, key = _SECTIONS.get(section, section), plain(line.key)
        key = KEYS.get(key, key).removeprefix(section)
        setting = known.get((section, key))
        if setting is None:
            continue
        assert setting.name is not None
        before = values.get(setting.name, [])
        repeated = setting.multiple and isinstance(before, list)
        values[setting.name] = [*before, line.value] if repeated else line.value
    return values


def print_config(context: click.Context) -> Iterator[str]:
    """Yield the lines of a file with the settings of a context. Secrets are left out."""
    texts = context.meta.get(_TEXTS, {})
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            yield f"[{section}]"
        yield from setting_lines(setting, setting.short, texts.get(setting, []))


def _tls(section: dict[str, Any]) -> TLSOptions:
    return TLSOptions(
        ca_file=section.pop("trusted_ca_file", None),
        certificate_file=section.pop("cert_file", None),
        key_file=section.pop("cert_key_file", None),
    )


def _auth(broker: dict[str, Any]) -> pb.Authorizer:
    keys, token = broker.pop("auth_keys", ""), broker.pop("auth_token", "")
    if keys:
        return pb.KeyedAuth(keys)
    return pb.BearerAuth(token) if token else pb.NoopAuth()
