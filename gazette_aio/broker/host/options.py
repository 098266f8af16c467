"""Options of a broker."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import FileOps
from gazette_aio.serving.address import MAX_PORT, http_origin
from gazette_aio.serving.tls import TLSFiles
from gazette_aio.serving.unix_socket import check_socket_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from obstore.store import ObjectStore as Client

FsyncMode = Literal["commit", "interval", "off"]
NestedJournals = Literal["separate", "shared"]
ClaimChecks = Literal["strict", "gazette"]

_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "int": int,
    "int | None": (int, type(None)),
    "float": (int, float),
    "str": str,
}
_CHOICES: Final = {
    "fsync": FsyncMode,
    "nested_journals": NestedJournals,
    "claim_checks": ClaimChecks,
}
StrPath: TypeAlias = "str | os.PathLike[str] | None"


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Options of a broker. Rates are in bytes per second, durations in seconds."""

    data_dir: StrPath = field(default=None, kw_only=False)
    """Directory of all durable state; None uses a temporary directory, which is removed at stop."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; zero takes any free one."""
    socket: StrPath = None
    """Absolute path of a Unix socket for gRPC, instead of `port` and without TLS."""
    socket_mode: int = 0o600
    """Permissions of the socket's file: users who may write to the file may connect."""
    server_cert_file: StrPath = None
    """File of the certificate in PEM format, which turns TLS on for gRPC and the gateway."""
    server_cert_key_file: StrPath = None
    """File of the certificate's private key in PEM format."""
    server_ca_file: StrPath = None
    """File of authorities in PEM format, one of which must certify each client."""
    grpc_extras: bool = False
    """Whether the gRPC services of health checks and of reflection are served, without tokens."""
    http_port: int | None = 0
    """Port of the HTTP gateway; zero takes any free one, None runs no gateway."""
    http_allow_unauthenticated: bool = False
    """Whether the gateway serves journals to clients without a token although there are keys."""
    allow_origin: Sequence[str] = ()
    """Origins whose scripts may use the gateway's JSON form from a browser."""
    advertise: str | None = None
    """Endpoint URL to advertise to clients, if it isn't the address of the broker's port."""
    zone: str = "local"
    suffix: str | None = None
    """ID of the broker within its zone; None keeps the ID in the data directory."""
    file_root: StrPath = None
    """Local directory of `file://` stores; None is `fragments` within the data directory."""
    file_only: bool = False
    """Whether stores of all schemes are kept below the file root."""
    store_endpoint: Sequence[str] = ()
    """Origins of the S3 servers that stores may name by their argument `endpoint`."""
    auth_keys: str | None = field(default=None, repr=False)
    """Base64 keys, separated by commas or blanks, which verify the tokens of clients."""
    auth_keys_file: StrPath = None
    """File of the keys, instead of `auth_keys`; read when the broker starts."""
    claim_checks: ClaimChecks = "strict"
    """Whether the selector of a token limits Apply and health checks too, unlike in Gazette."""
    assign_delay: float = 0.0
    """Time for which a new journal has no broker, as for a moment in clusters."""
    nested_journals: NestedJournals = "separate"
    """With `shared`, journal `a` also lists files of journal `a/b` in a common store."""
    max_replication: int = 1
    """Upper bound of the replication of every journal. More than 1 can't be satisfied."""
    min_append_rate: int = 1 << 16
    max_append_rate: int = 0
    """Upper bound of the append rate of journals that have a rate limit; zero is none."""
    max_recv_size: int = 4 << 20
    """Longest accepted message, in bytes."""
    watch_delay: float = 0.03
    """Time for which changes of journals are gathered before watches show them."""
    chunk_size: int = 1 << 17
    """Longest content of a read message, in bytes."""
    verify_fragments: bool = True
    """Whether reads check stored fragments against the SHA-1 sum in their names. The first read of
    a part then reads the whole fragment."""
    fsync: FsyncMode = "commit"
    """`commit` syncs before an append is acknowledged, `interval` every `sync_interval`."""
    sync_interval: float = 0.05
    pulse_interval: float = 60.0
    """Interval at which a journal with recent appends checks whether its fragment is due."""
    persist_delay: float = 0.2
    """Pause between the completion of a fragment and its write to a store."""
    persist_retry: float = 5.0
    """Pause after a failed write to a store."""
    store_wait: float = 5.0
    """Time for which an append waits for an unhealthy store before it's refused."""
    drain_seconds: float = 10.0
    """Time limit for persisting complete fragments at the end of `serve`."""
    clock: Callable[[], float] | None = None
    """Source of Unix time, or None for that of the system; a `ManualClock` also moves all timers of
    the broker."""
    files: FileOps = field(default_factory=FileOps, repr=False)
    """File operations, where tests inject faults."""
    object_stores: Callable[[pb.FragmentStoreURL], Client] | None = None
    """Returns the `obstore` client of a fragment store whose scheme isn't `file`, in a worker
    thread; tests inject stores in memory here. None uses the client of the URL's scheme."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name, kind in _CHOICES.items():
            *others, last = get_args(kind)
            if (value := getattr(self, name)) not in (*others, last):
                raise pb.ConfigurationError(
                    f"{name} must be {', '.join(others)} or {last} (not {value})"
                )
        if self.auth_keys and self.auth_keys_file is not None:
            raise pb.ConfigurationError("auth_keys and auth_keys_file can't both be given")
        if self.max_replication < 1:
            raise pb.ConfigurationError("max_replication must be at least 1")
        if isinstance(self.allow_origin, str):
            raise pb.ConfigurationError("allow_origin must be several origins, not a string")
        _ = self.store_origins
        if self.chunk_size < 1:
            raise pb.ConfigurationError("chunk_size must be at least 1")
        _ = self.tls_files
        for name, port in (("port", self.port), ("http_port", self.http_port)):
            if port is not None and not 0 <= port <= MAX_PORT:
                raise pb.ConfigurationError(f"{name} must be 0 to {MAX_PORT} (not {port})")
        if self.socket is not None:
            check_socket_path(os.fspath(self.socket))
        if not 0 <= self.watch_delay < math.inf:
            raise pb.ConfigurationError(
                f"watch_delay must not be negative (not {self.watch_delay})"
            )
        _check_identity(self)

    @property
    def syncs(self) -> bool:
        """Whether files are synced."""
        return self.fsync != "off"

    @property
    def store_origins(self) -> frozenset[str]:
        """Origins of `store_endpoint`, in one spelling."""
        if isinstance(self.store_endpoint, str):
            raise pb.ConfigurationError("store_endpoint must be several origins, not a string")
        try:
            return frozenset(http_origin(each, bare=True) for each in self.store_endpoint)
        except ValueError as error:
            raise pb.ConfigurationError(f"store_endpoint: {error}") from None

    @property
    def tls_files(self) -> TLSFiles:
        """Files of TLS."""
        return TLSFiles(
            server_cert_file=_path(self.server_cert_file),
            server_cert_key_file=_path(self.server_cert_key_file),
            server_ca_file=_path(self.server_ca_file),
        )


def _path(path: StrPath) -> Path | None:
    return None if path is None else Path(path)


def _check_types(options: BrokerOptions) -> None:
    for each in fields(options):
        value = getattr(options, each.name)
        if not isinstance(value, _TYPES.get(str(each.type), object)):
            raise pb.ConfigurationError(f"{each.name} must be {each.type} (not {value!r})")


def _check_identity(options: BrokerOptions) -> None:
    # Clients refuse all answers of a broker with an invalid ID or endpoint.
    suffix = "suffix" if options.suffix is None else options.suffix
    endpoint = "http://host" if options.advertise is None else options.advertise
    process_id = pb.ProcessSpec.ID(zone=options.zone, suffix=suffix)
    try:
        pb.validate(pb.ProcessSpec(id=process_id, endpoint=endpoint))
    except pb.ValidationError as error:
        field_name, _, problem = str(error).removeprefix("Id.").partition(": ")
        name = {"Zone": "zone", "Suffix": "suffix (id)", "Endpoint": "advertise"}[field_name]
        raise pb.ConfigurationError(f"{name}: {problem}") from None
