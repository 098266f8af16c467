"""Core of a broker: the state and services behind its front ends.

Front ends authorize a request, and pass it to the functions of `gazette_aio.broker.service`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.broker.control.control import BrokerControl
from gazette_aio.broker.host.clock import Deadline, ManualClock
from gazette_aio.broker.host.files import make_durable_directory, os_error_text
from gazette_aio.broker.host.workers import Workers
from gazette_aio.broker.journal.receive_guard import Looks
from gazette_aio.broker.journal.replicas import Replicas
from gazette_aio.broker.journal.write_head import ReplicaFailedError
from gazette_aio.broker.keyspace.data_directory import ClusterIdentity, DataDirectory
from gazette_aio.broker.keyspace.meta_log import MetaLog
from gazette_aio.broker.keyspace.space_store import KeySpaceStore
from gazette_aio.broker.resolver import Resolver, excluding_prefixes
from gazette_aio.broker.runtime import Runtime
from gazette_aio.protocol.journal import strip_meta
from gazette_aio.serving.auth_keys import read_auth
from gazette_aio.serving.calls import verified_claims
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.broker.host.options import BrokerOptions
    from gazette_aio.broker.journal.replica import Replica
    from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace, KeySpaceTransaction

_logger = logging.getLogger(__name__)

_IO_THREADS = 8

DATA_DIRECTORY = "data directory"
"""Name of the data directory among stores that fail."""

STORE_GRACE_SECONDS = 1.0
"""Seconds by which calls of local stores may outlast the requests that wait for them."""


class BrokerCore(Runtime):
    """State and services of a running broker.

    Args:
        data: The locked data directory.
        space: The key space as loaded.
        io: Threads for short work of requests.
        root: Local directory of `file://` stores.
        identity: Identity of the key space.
        log: Log of the key space.
        verifier: Checks tokens of clients, or None to accept all.
    """

    resolver: Resolver

    def __init__(
        self,
        options: BrokerOptions,
        data: DataDirectory,
        space: KeySpace,
        *,
        io: Workers,
        root: Path,
        identity: ClusterIdentity,
        log: MetaLog,
        verifier: pb.Verifier | None,
        control: BrokerControl,
    ) -> None:
        super().__init__(options, control.clock, data, space, io=io, root=root)
        self.control = control
        self.identity = identity
        suffix = options.suffix or identity.suffix
        self.process_id: pb.ProcessSpec.ID = pb.ProcessSpec.ID(zone=options.zone, suffix=suffix)
        self.looks: Looks = Looks()
        self.space_store: KeySpaceStore = KeySpaceStore(space, log, io, self._follow, self.ending)
        self.replicas: Replicas = Replicas(self)
        self.file_problem: str = ""
        """Why the latest append failed that the broker's files refused; empty after a success."""
        self._verifier = verifier
        self._closed = False
        control.attach(self.scheduler, self.stores)

    def __repr__(self) -> str:
        return f"<BrokerCore {self.space_store!r} {self.replicas!r}>"

    @classmethod
    async def open(
        cls,
        options: BrokerOptions,
        path: Path,
        control: BrokerControl | None = None,
    ) -> BrokerCore:
        """Lock and load a data directory.

        Args:
            options: Options of the broker.
            path: The directory.
            control: Control by tests, with the clock of the broker; None follows the system's.

        Raises:
            ConfigurationError: The directory is in use, or an option is invalid.
            StoreError: Its key space is damaged.

        Cancellation: safe — the directory is unlocked again.
        """
        verifier = await in_thread(read_auth, options.auth_keys, options.auth_keys_file)
        control = control or BrokerControl(ManualClock(follow=time.time))
        files, syncs = options.files, options.syncs
        io = Workers(_IO_THREADS, "broker-io")
        data = DataDirectory(files, path, sync=syncs)
        try:
            identity = await io.run(data.open)
            root = Path(options.file_root or path / "fragments")
            if options.file_root is None:
                await io.run(make_durable_directory, files, root, sync=syncs)
            log = MetaLog(files, data.meta, data.heads, sync=syncs)
            space = await io.run(log.load)
            return cls(
                options,
                data,
                space,
                io=io,
                root=root,
                identity=identity,
                log=log,
                verifier=verifier,
                control=control,
            )
        except BaseException as error:
            data.close()
            io.close()
            if isinstance(error, OSError):
                text = f"data directory {path}: {os_error_text(error)}"
                raise pb.ConfigurationError(text) from error
            raise

    async def serve_at(self, endpoint: str) -> None:
        """Begin to answer, at an advertised endpoint.

        Cancellation: safe.
        """
        self.resolver = Resolver(self, self.space_store, self.identity, self.process_id, endpoint)
        await self.replicas.recover_later()

    # For front ends

    def authorize(self, header: Callable[[], str | None], capability: pb.Capability) -> pb.Claims:
        """Return the claims of a request.

        Args:
            header: Returns its `authorization` header.
            capability: Capability which the request needs.

        Raises:
            RpcError: The request isn't authorized.
        """
        if self._verifier is None:
            return open_claims(capability)
        options = self.options
        claims = verified_claims(self._verifier, header(), capability, self.clock())
        return excluding_prefixes(claims) if options.claim_checks == "strict" else claims

    def token_end(self, claims: pb.Claims) -> Deadline | None:
        """Return the time when the token of a request expires, or None without a token.

        The time bounds only waits: an RPC must never be cancelled while it sends.
        """
        if claims.expires_at is None or self._verifier is None:
            return None
        clock = self.clock
        return Deadline(clock, clock.monotonic() + max(0.0, claims.expires_at - clock()))

    @property
    def is_open(self) -> bool:
        """Whether there are no keys, so that every client is authorized."""
        return self._verifier is None

    def failing(self) -> dict[str, str]:
        """Return the errors of journals' stores that fail, and that of the data directory, by name.

        The data directory fails if it refused the latest append or the latest change of specs, or
        if a journal takes no appends until a restart. The error names no journal.
        """
        found = self.stores.failing()
        heads = (each.head for each in self.replicas)
        failed = next((head.failure for head in heads if head.failure and not head.is_damaged), "")
        if problem := self.file_problem or self.space_store.failure or failed:
            found[DATA_DIRECTORY] = problem
        return found

    async def replica(self, item: JournalItem) -> Replica:
        """Return the opened replica of a journal.

        Raises:
            RpcError: The replica can't be opened.

        Cancellation: safe.
        """
        try:
            return await self.replicas.get(item)
        except OSError as error:
            raise RpcError(f"opening {item.name}: {os_error_text(error)}") from error
        except (ReplicaFailedError, pb.StoreError) as error:
            raise RpcError(str(error)) from error

    # For control

    async def flush(self, journal: str | None = None) -> None:
        """Complete fragments in progress, and persist all complete ones.

        Raises:
            JournalNotFoundError: The journal doesn't exist.
            StoreError, OSError: A fragment can't be persisted.

        Cancellation: safe.
        """
        if journal is None:
            await self.replicas.flush_all()
            return
        for replica in await self.replicas_of(journal):
            try:
                await replica.flush()
            except ReplicaFailedError as error:
                raise pb.StoreError(f"{replica.name}: {error}") from None

    async def replicas_of(self, journal: str | None) -> Iterable[Replica]:
        """Return the opened replica of a journal; None returns all open replicas.

        Raises:
            JournalNotFoundError: The journal doesn't exist.

        Cancellation: safe.
        """
        if journal is None:
            return iter(self.replicas)
        item = self.space.get(strip_meta(journal))
        if item is None:
            raise pb.JournalNotFoundError(journal=journal)
        return (await self.replicas.get(item),)

    # End

    def end_waits(self, grace: float = 0.0) -> None:
        """End blocked reads and watches, now and later. Other requests are served as before.

        Clients see the end of these streams. Remaining requests end too: calls of local stores that
        hang fail soon after `grace` seconds.
        """
        self.stores.give_up_after(grace + STORE_GRACE_SECONDS)
        self.control.detach()
        self.ending.set()
        self.space_store.wake()
        self.replicas.end_reads()

    async def stop_serving(self) -> None:
        """End all waits, and stop serving journals. Appends that hold their journal continue.

        Cancellation: safe.
        """
        self.end_waits()
        self.stopped = True
        self.stores.begin_close()
        await self.replicas.close()

    async def aclose(self) -> None:
        """Make all state durable, and unlock the data directory. Idempotent.

        Cancellation: safe — takes effect when the directory is unlocked.
        """
        if not self._closed:
            self._closed = True
            await finish(self._close())

    async def _close(self) -> None:
        self.stores.begin_close()
        await self.replicas.sync_acknowledged()
        await self.background.aclose()
        with contextlib.suppress(RpcError):
            await self.space_store.close()
        await self.stores.aclose()
        for workers in (self.bulk, self.appends, self.io):
            await workers.aclose()
        self.data.close()

    def _follow(self, transaction: KeySpaceTransaction, removed: list[JournalItem]) -> None:
        for spec in transaction.puts:
            if (item := self.space.get(spec.name)) is not None:
                self.resolver.is_assigned(item)
        self.replicas.follow(transaction, removed)


@functools.cache
def open_claims(capability: pb.Capability) -> pb.Claims:
    """Return the claims of clients that need no token."""
    return pb.Claims(capability)
