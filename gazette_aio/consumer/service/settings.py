"""Settings of a consumer's process: flags, variables of the environment, and a file.

Of a setting that's given more than once, the flag counts first, then the variable, then the file.
The names are those of Gazette's consumers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.shards.restarts import RestartPolicy
from gazette_aio.protocol.go.ini import IniLine, ini_line, parse_ini
from gazette_aio.serving.address import parse_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_aio.client import ClientOptions
    from gazette_aio.logs import LogFormat

FILE_NAME: Final = "gazette.ini"

LOG_LEVELS: Final = ("trace", "debug", "info", "warn", "error", "fatal")
LOG_FORMATS: Final = ("text", "json", "color")


def _flag(text: str) -> bool:
    values = {"": False, "false": False, "0": False, "no": False, "true": True, "1": True}
    values["yes"] = True
    if (value := values.get(text.lower())) is None:
        raise ValueError("expected true or false")
    return value


def _seconds(text: str) -> float:
    return pb.parse_duration(text) / 1e9


def _whole_seconds(text: str) -> int:
    seconds = _seconds(text)
    if seconds < 1:
        raise ValueError("expected at least 1s")
    return int(seconds)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise ValueError("expected a number")
    return int(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _port(text: str) -> int | Path:
    try:
        return parse_port(text)
    except ValueError:
        raise ValueError("expected a port or unix:///path") from None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, as `--<section>.<name>` and as a variable."""

    section: str
    name: str
    help: str
    default: str = ""
    parse: Callable[[str], Any] = str
    variable: str = ""
    secret: bool = False
    """Whether `print-config` hides the value."""

    @property
    def flag(self) -> str:
        """Name of the flag, without its dashes."""
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> str:
        """Name of the variable."""
        return self.variable or f"{self.section}.{self.name}".upper().translate(_UNDERSCORES)


_UNDERSCORES: Final = str.maketrans(".-", "__")

_CONSUMER: Final = (
    Setting("consumer", "zone", "Availability zone of this process.", "local"),
    Setting("consumer", "id", "Unique name of this process in its zone; random if it's not set."),
    Setting("consumer", "host", "Host by which others reach this process; by default its name."),
    Setting("consumer", "bind", "Address to listen on; by default all of them."),
    Setting("consumer", "port", "Port, or unix:///path; 0 is a free one.", "0", _port),
    Setting("consumer", "limit", "Most shards to be assigned.", "32", _count),
    Setting("consumer", "max-hot-standbys", "Most hot standbys of any shard.", "3", _count),
    Setting("consumer", "watch-delay", "Time to gather changes of keys.", "30ms", _seconds),
    Setting("consumer", "exit-timeout", "Most time of a graceful exit; empty: none.", "", str),
    Setting(
        "consumer",
        "zero-limit-on-exit",
        "Whether to exit as members before Gazette v0.103 understand it.",
        "false",
        _flag,
    ),
    Setting("consumer", "max-restarts", "Most restarts of a failed shard in a row.", "0", _count),
    Setting("consumer", "recovery-directory", "Directory of shards' files.", parse=_path),
    Setting("consumer", "hints-bytes", "Bytes of a log that hints follow.", "67108864", _count),
    Setting("consumer", "auth-keys", "Base64 keys of tokens.", secret=True),
    Setting("consumer", "auth-keys-file", "File of these keys.", parse=_path),
    Setting("consumer", "server-cert-file", "Certificate of the server: uses TLS.", parse=_path),
    Setting("consumer", "server-cert-key-file", "Private key of the certificate.", parse=_path),
    Setting("consumer", "server-ca-file", "Authorities of the clients' certificates.", parse=_path),
    Setting("consumer", "peer-cert-file", "Certificate for other members.", parse=_path),
    Setting("consumer", "peer-cert-key-file", "Private key of that certificate.", parse=_path),
    Setting("consumer", "peer-ca-file", "Authorities of other members.", parse=_path),
    Setting("consumer", "max-grpc-recv-size", "Longest accepted message.", "4194304", _count),
)

_BROKER: Final = (
    Setting("broker", "address", "Endpoint of a broker.", "http://localhost:8080"),
    Setting("broker", "cert-file", "Certificate for brokers.", parse=_path),
    Setting("broker", "cert-key-file", "Private key of that certificate.", parse=_path),
    Setting("broker", "trusted-ca-file", "Authorities of brokers.", parse=_path),
    Setting("broker", "auth-keys", "Base64 keys, of which the first one signs.", secret=True),
    Setting("broker", "auth-token", "Token to send instead.", secret=True),
    Setting("broker", "cache.size", "Journals whose routes are kept.", "256", _count),
    Setting("broker", "cache.ttl", "Time to keep a route.", "1m", _seconds),
    Setting("broker", "file-root", "Directory of fragments with file:// URLs.", parse=_path),
)

_ETCD: Final = (
    Setting("etcd", "address", "Endpoints of Etcd.", "http://localhost:2379", _list),
    Setting("etcd", "cert-file", "Certificate for Etcd.", parse=_path),
    Setting("etcd", "cert-key-file", "Private key of that certificate.", parse=_path),
    Setting("etcd", "trusted-ca-file", "Authorities of Etcd.", parse=_path),
    Setting("etcd", "user", "User of Etcd."),
    Setting("etcd", "password", "Password of the user.", secret=True),
    Setting(
        "etcd", "lease", "Time after which a lost member is gone.", "20s", _whole_seconds,
        "ETCD_LEASE_TTL",
    ),
    Setting("etcd", "prefix", "Prefix of the deployment's keys; by default the application's."),
)  # fmt: skip

_REST: Final = (
    Setting("log", "level", f"One of {', '.join(LOG_LEVELS)}.", "warn", _one_of(*LOG_LEVELS)),
    Setting("log", "format", f"One of {', '.join(LOG_FORMATS)}.", "text", _one_of(*LOG_FORMATS)),
    Setting("debug", "port", "Port of /debug/ready and /debug/metrics.", "", str),
)

SETTINGS: Final = (*_CONSUMER, *_BROKER, *_ETCD, *_REST)


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Parsed settings of a process."""

    consumer: ConsumerOptions
    etcd: EtcdOptions
    broker_address: str
    broker: ClientOptions = field(repr=False)
    log_level: str
    log_format: LogFormat


def combine(
    flags: Mapping[str, str | None], environment: Mapping[str, str], file: Mapping[str, str]
) -> dict[str, str]:
    """Return the text of each setting by the name of its flag.

    Args:
        flags: Texts by name; None if it isn't given.
        environment: Variables.
        file: Texts of `read_file()`.
    """
    values: dict[str, str] = {}
    for setting in SETTINGS:
        name = setting.flag
        given = flags.get(name)
        if given is None:
            given = environment.get(setting.environment) or file.get(_bare(name), setting.default)
        values[name] = given
    return values


def process_config(values: Mapping[str, str]) -> ProcessConfig:
    """Return the meaning of settings.

    Args:
        values: Text of each setting by the name of its flag.

    Raises:
        ConfigurationError: A setting is invalid; the text names it.
    """
    parsed = {setting.flag: _parsed(setting, values[setting.flag]) for setting in SETTINGS}
    consumer = _section(parsed, "consumer")
    port = consumer.pop("port")
    consumer |= {"socket": port} if isinstance(port, Path) else {"port": port}
    exit_timeout = consumer.pop("exit_timeout")
    if exit_timeout:
        consumer["exit_timeout"] = _parsed_as("consumer.exit-timeout", exit_timeout, _seconds)
    if restarts := consumer.pop("max_restarts"):
        consumer["restarts"] = RestartPolicy(max_attempts=restarts)
    if debug_port := parsed["debug.port"]:
        consumer["http_port"] = _parsed_as("debug.port", debug_port, _count)
    etcd = _section(parsed, "etcd")
    consumer |= {"lease_ttl": etcd.pop("lease"), "prefix": etcd.pop("prefix")}
    endpoints = etcd.pop("address")
    broker = _section(parsed, "broker")
    address = broker.pop("address")
    return ProcessConfig(
        ConsumerOptions(**consumer),
        EtcdOptions(endpoints=endpoints, tls=_tls(etcd), **etcd),
        address,
        _client_options(broker, zone=consumer["zone"]),
        parsed["log.level"],
        parsed["log.format"],
    )


def read_file(paths: Sequence[Path]) -> dict[str, str]:
    """Return the texts of the first file that exists, by names that `combine()` understands.

    Sections are `[consumer]`, `[broker]`, `[etcd]`, `[log]` and `[debug]`; dashes, underscores and
    case don't matter. Other settings are passed over: programs share the file.

    Raises:
        ConfigurationError: A file can't be read, or isn't an INI file.
    """
    for path in paths:
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise pb.ConfigurationError(f"reading {path}: {error}") from error
        try:
            found = parse_ini(text, source=str(path))
        except pb.ValidationError as error:
            raise pb.ConfigurationError(f"reading {error}") from None
        return {_bare(f"{_of_section(line)}.{line.key}"): line.value for line in found}
    return {}


def print_config(values: Mapping[str, str]) -> str:
    """Return settings as the text of a file. Secrets are left out."""
    lines: list[str] = []
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        value = values[setting.flag]
        lines.append(f"; {setting.help}")
        if setting.secret:
            lines.append(f"; {ini_line(setting.name, '(hidden)' if value else '')}")
        else:
            unset = "" if value != setting.default else "; "
            lines.append(unset + ini_line(setting.name, value))
    return "\n".join(lines) + "\n"


_SECTIONS: Final = {"logging": "log"}


def _of_section(line: IniLine) -> str:
    if not line.section:
        raise pb.ConfigurationError(f"reading {line.where}: a setting without a section")
    return _SECTIONS.get(line.section.lower(), line.section)


def _bare(name: str) -> str:
    section, _, rest = name.lower().partition(".")
    rest = rest.removeprefix(f"{section}.")
    return f"{section}.{rest.replace('-', '').replace('_', '').replace('.', '')}"


def _section(parsed: Mapping[str, Any], section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {
        name.removeprefix(prefix).translate(_UNDERSCORES): value
        for name, value in parsed.items()
        if name.startswith(prefix)
    }


def _parsed(setting: Setting, text: str) -> Any:
    return _parsed_as(setting.flag, text, setting.parse)


def _parsed_as(name: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise pb.ConfigurationError(f"{name}: {error}") from None


def _tls(section: dict[str, Any]) -> TLSOptions:
    return TLSOptions(
        ca_file=section.pop("trusted_ca_file"),
        certificate_file=section.pop("cert_file"),
        key_file=section.pop("cert_key_file"),
    )


def _client_options(broker: dict[str, Any], *, zone: str) -> ClientOptions:
    keys, token = broker.pop("auth_keys"), broker.pop("auth_token")
    auth: pb.Authorizer = pb.NoopAuth()
    if keys:
        auth = pb.KeyedAuth(keys)
    elif token:
        auth = pb.BearerAuth(token)
    return {
        "zone": zone,
        "auth": auth,
        "tls": _tls(broker),
        "cache_size": broker["cache_size"],
        "cache_ttl": broker["cache_ttl"],
        "file_root": broker["file_root"],
    }
