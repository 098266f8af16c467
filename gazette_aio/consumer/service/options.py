"""Options of a member of a consumer."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import socket as sockets
from collections.abc import Sequence  # noqa: TC003 - Type hints are evaluated.
from pathlib import Path  # noqa: TC003 - As above.
from typing import Final

import gazette_aio.protocol as pb
from gazette_aio.consumer.shards.restarts import RestartPolicy  # noqa: TC001 - As above.
from gazette_aio.serving.address import MAX_PORT
from gazette_aio.serving.tls import TLSFiles
from gazette_aio.serving.unix_socket import check_socket_path

DEFAULT_PREFIX: Final = "/gazette/consumers"

_FIRST_NAMES: Final = (
    "amber", "brave", "calm", "clear", "early", "fair", "gentle", "happy", "keen", "kind", "lively",
    "mild", "noble", "proud", "quick", "quiet", "rapid", "ready", "sharp", "silver", "smart",
    "steady", "sunny", "swift", "warm", "wise",
)  # fmt: skip
_LAST_NAMES: Final = (
    "badger", "beaver", "crane", "dove", "eagle", "falcon", "finch", "fox", "hare", "heron", "ibis",
    "jay", "lark", "lynx", "magpie", "marten", "otter", "owl", "plover", "raven", "robin", "seal",
    "stork", "swan", "tern", "wren",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """Options of a member of a consumer. Durations are seconds.

    Raises:
        ConfigurationError: An option is invalid.
    """

    prefix: str = ""
    """Prefix of the consumer's keys, which names the deployment: members that share it share its
    shards. Empty for `/gazette/consumers/` and the name of the application's class."""
    zone: str = "local"
    """Availability zone of this process."""
    id: str = ""
    """Name of this process within its zone; empty for a random one."""
    host: str = ""
    """Name or address by which others reach this process; empty for that of the machine."""
    bind: str = ""
    """Address to listen on; empty for all addresses."""
    port: int = 0
    """Port to listen on; zero takes any free one."""
    socket: Path | None = None
    """Absolute path of a Unix socket to listen on in place of `port`, without TLS."""
    http_port: int | None = None
    """Port of diagnostics by HTTP, on the address `bind`; zero takes any free one, None is none."""
    limit: int = 32
    """Most shards that this member may be assigned."""
    max_hot_standbys: int | None = 3
    """Most hot standbys of a shard, whatever its spec says; None for no limit. It's the allocating
    member whose limit matters."""
    lease_ttl: int = 20
    """Time after which a member that is gone loses its shards; whole seconds."""
    watch_delay: float = 0.03
    """Time for which changes of keys are gathered before they are applied."""
    exit_timeout: float = math.inf
    """Most time that handing over shards may take at a graceful exit."""
    zero_limit_on_exit: bool = False
    """Whether an exiting member also sets its limit to zero, as members of Gazette before v0.103
    understand it."""
    stop_timeout: float = 15.0
    """Time within which tasks of the application, and then RPCs, may end when the member stops."""
    release_timeout: float = 60.0
    """Time within which resolutions of a shard that left this member must be released, and after
    that, time within which its store must be destroyed. Then the shard ends nevertheless, which the
    log and a metric tell: the store is destroyed in use, or is left behind. `math.inf` for no
    bound."""
    restarts: RestartPolicy | None = None
    """When failed replicas are restarted; by default, they aren't: they stay failed until they're
    unassigned."""
    recovery_directory: Path | None = None
    """Directory below which shards are recovered into temporary ones, made if it's missing; None
    for the system's. Members that are killed leave files there."""
    hints_bytes: int = 64 << 20
    """Bytes of a recovery log after which hints are stored before their time, which is each five
    minutes, so that a recovery has not much more to play."""
    auth_keys: str = dataclasses.field(default="", repr=False)
    """Base64 keys, separated by commas or blanks, that sign (the first one) and verify tokens."""
    auth_keys_file: Path | None = None
    """File of the keys, in place of `auth_keys`; read at the start."""
    server_cert_file: Path | None = None
    """File in PEM format of the certificate, which turns TLS on."""
    server_cert_key_file: Path | None = None
    """File in PEM format of the certificate's private key."""
    server_ca_file: Path | None = None
    """File in PEM format of authorities one of which must have certified each client."""
    peer_cert_file: Path | None = None
    """File in PEM format of the certificate shown to other members."""
    peer_cert_key_file: Path | None = None
    """File in PEM format of its private key."""
    peer_ca_file: Path | None = None
    """File in PEM format of authorities of other members; None trusts the built-in ones."""
    max_grpc_recv_size: int = 4 << 20
    """Longest message that the server accepts, in bytes."""
    allow_origin: Sequence[str] = ()
    """Origins, such as `https://example.com`, whose scripts may read diagnostics from a browser."""

    def __post_init__(self) -> None:
        for name, port in (("port", self.port), ("http_port", self.http_port)):
            if port is not None and not 0 <= port <= MAX_PORT:
                raise pb.ConfigurationError(f"{name} must be 0 to {MAX_PORT} (not {port})")
        if self.socket is not None:
            check_socket_path(os.fspath(self.socket))
        for name, least in (
            ("limit", 0),
            ("lease_ttl", 1),
            ("hints_bytes", 1),
            ("max_grpc_recv_size", 1024),
        ):
            if (value := getattr(self, name)) < least:
                raise pb.ConfigurationError(f"{name} must be at least {least} (not {value})")
        if self.max_hot_standbys is not None and self.max_hot_standbys < 0:
            raise pb.ConfigurationError("max_hot_standbys must not be negative")
        for name in ("watch_delay", "exit_timeout", "stop_timeout", "release_timeout"):
            if not (value := getattr(self, name)) >= 0:
                raise pb.ConfigurationError(f"{name} must not be negative (not {value})")
        if isinstance(self.allow_origin, str):
            raise pb.ConfigurationError("allow_origin must be several origins, not a string")
        if self.auth_keys and self.auth_keys_file is not None:
            raise pb.ConfigurationError("auth_keys and auth_keys_file can't both be given")
        if (self.peer_cert_file is None) != (self.peer_cert_key_file is None):
            raise pb.ConfigurationError(
                "peer_cert_file and peer_cert_key_file must be given together"
            )
        _ = self.tls_files

    @property
    def tls_files(self) -> TLSFiles:
        """Files of the server's TLS."""
        return TLSFiles(
            server_cert_file=self.server_cert_file,
            server_cert_key_file=self.server_cert_key_file,
            server_ca_file=self.server_ca_file,
        )

    def process_id(self) -> pb.ProcessSpec.ID:
        """Return the identity of the process, with a random name unless there is one."""
        return pb.ProcessSpec.ID(zone=self.zone, suffix=self.id or random_name())

    def advertised_host(self) -> str:
        """Return the host by which others reach this process."""
        return self.host or sockets.gethostname()


def random_name() -> str:
    """Return a random name of two words and four digits, such as `quiet-heron-0042`."""
    first, last = secrets.choice(_FIRST_NAMES), secrets.choice(_LAST_NAMES)
    return f"{first}-{last}-{secrets.randbelow(10_000):04}"
