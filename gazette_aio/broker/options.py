"""Options of a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import gazette_aio.protocol as pb

FsyncMode = Literal["commit", "interval", "off"]
NestedJournals = Literal["separate", "shared"]

MAX_PROTOCOL_REPLICATION = 5


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options of a broker. Rates are bytes per second, durations are seconds."""

    data_dir: Path | None = None
    """Directory of all durable state; None takes a temporary one, which is removed at stop."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; zero takes any free one."""
    http_port: int | None = 0
    """Port of the HTTP gateway; zero takes any free one, None runs no gateway."""
    http_allow_unauthenticated: bool = False
    """Whether the gateway serves journals to clients without a token though there are keys."""
    allow_origin: Sequence[str] = ()
    """Origins whose scripts may use the gateway's JSON form from a browser."""
    advertise: str | None = None
    """Endpoint URL which clients are told, if it isn't `http://HOST:PORT`."""
    zone: str = "local"
    suffix: str | None = None
    """Id of the broker within its zone; None keeps the one of the data directory."""
    file_root: Path | None = None
    """Local directory of `file://` stores; None is `fragments` within the data directory."""
    file_only: bool = False
    """Whether stores of all schemes are kept below the file root."""
    auth_keys: str | None = field(default=None, repr=False)
    """Base64 keys, separated by commas or blanks, which tokens of clients are checked against."""
    assign_delay: float = 0.0
    """How long a new journal is left without a broker, as clusters do for a moment."""
    nested_journals: NestedJournals = "separate"
    """Whether a journal `a` also lists files of journal `a/b` in a store which they share."""
    max_replication: int = 1
    """Upper bound of the replication of every journal; more than one can't be satisfied."""
    min_append_rate: int = 1 << 16
    max_append_rate: int = 0
    """Upper bound of the append rate of journals which have one; zero is none."""
    max_recv_size: int = 4 << 20
    """Longest message which is accepted, in bytes."""
    chunk_size: int = 1 << 17
    """Longest content of a read message, in bytes."""
    fsync: FsyncMode = "commit"
    """`commit` syncs before an append is acknowledged, `interval` every `sync_interval`."""
    sync_interval: float = 0.05
    pulse_interval: float = 60.0
    """How often a journal with recent appends looks whether its fragment is due."""
    persist_delay: float = 0.2
    """Pause between the completion of a fragment and its write to a store."""
    persist_retry: float = 5.0
    """Pause after a failed write to a store."""
    store_wait: float = 5.0
    """How long an append waits for an unhealthy store before it's refused."""
    drain_seconds: float = 10.0
    """How long `serve` may take at its end to persist what's complete."""
    clock: Callable[[], float] = time.time
    """Source of Unix time."""

    def __post_init__(self) -> None:
        if self.fsync not in get_args(FsyncMode):
            raise pb.ConfigurationError(f"fsync must be commit, interval or off (not {self.fsync})")
        if self.nested_journals not in get_args(NestedJournals):
            raise pb.ConfigurationError(
                f"nested_journals must be separate or shared (not {self.nested_journals})"
            )
        if self.max_replication < 1:
            raise pb.ConfigurationError("max_replication must be at least 1")
        if isinstance(self.allow_origin, str):
            raise pb.ConfigurationError("allow_origin must be several origins, not a string")
        if self.chunk_size < 1:
            raise pb.ConfigurationError("chunk_size must be at least 1")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> BrokerOptions:
        """Return options of environment variables; `overrides` which aren't None win.

        Raises:
            ConfigurationError: If a variable can't be parsed, naming it.
        """
        values: dict[str, Any] = {}
        for name, (option, parse) in _ENVIRONMENT.items():
            if (text := environ.get(name, "")) == "":
                continue
            try:
                values[option] = parse(text)
            except ValueError as error:
                raise pb.ConfigurationError(f"invalid {name} ({text!r}): {error}") from error
        values.update({name: value for name, value in overrides.items() if value is not None})
        return cls(**values)


def _flag(text: str) -> bool:
    if (lowered := text.lower()) in ("1", "true", "t", "yes", "on"):
        return True
    if lowered in ("0", "false", "f", "no", "off"):
        return False
    raise ValueError("expected true or false")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


_Parse = Callable[[str], object]
_ENVIRONMENT: dict[str, tuple[str, _Parse]] = {
    "BROKER_DATA_DIR": ("data_dir", Path),
    "BROKER_HOST": ("host", str),
    "BROKER_PORT": ("port", int),
    "BROKER_HTTP_PORT": ("http_port", int),
    "BROKER_ALLOW_ORIGIN": ("allow_origin", _words),
    "BROKER_ZONE": ("zone", str),
    "BROKER_ID": ("suffix", str),
    "BROKER_FILE_ROOT": ("file_root", Path),
    "BROKER_FILE_ONLY": ("file_only", _flag),
    "BROKER_AUTH_KEYS": ("auth_keys", str),
    "BROKER_MAX_REPLICATION": ("max_replication", int),
    "BROKER_MAX_APPEND_RATE": ("max_append_rate", int),
    "BROKER_MIN_APPEND_RATE": ("min_append_rate", int),
    "BROKER_MAX_GRPC_RECV_SIZE": ("max_recv_size", int),
    "BROKER_FSYNC": ("fsync", cast("_Parse", str)),
}
