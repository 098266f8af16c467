"""Etcd as a key-value store of consumers."""

from __future__ import annotations

import asyncio
import logging
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Self

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.consumer.keyspace.errors import (
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd import client, failures, messages
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.client import EtcdClient
from gazette_aio.consumer.keyspace.etcd.lease import EtcdLease, LeaseKeeper
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.operations import Get

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gazette_aio.consumer.keyspace.operations import Compare, Operation
    from gazette_aio.consumer.keyspace.store import RangeResult, TransactionResult, WatchResponse

_logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 1.0
_REVOKE_SECONDS: Final = 5.0


class EtcdStore(Owner):
    """Client of Etcd 3.4 or newer. Use it as an async context manager, which connects.

    Connecting waits until a member answers, and logs warnings meanwhile.

    Args:
        options: Options of the client; by default, Etcd is at port 2379 of this machine.

    Raises:
        ConfigurationError: From `async with`, if a file of TLS can't be read.
        KeyValueStoreError: From `async with`, if the user or the password is wrong, or Etcd is too
            old.
    """

    def __init__(self, options: EtcdOptions | None = None) -> None:
        self._client = EtcdClient(options or EtcdOptions())

    def __repr__(self) -> str:
        return f"<EtcdStore {', '.join(self._client.peers.endpoints)}>"

    def __del__(self) -> None:
        if (opened := getattr(self, "_client", None)) is not None and opened.peers.is_open:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)

    async def __aenter__(self) -> Self:
        try:
            await self._connect()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.connect()
            except StoreUnavailableError as error:
                _logger.warning("Etcd isn't available yet: %s", error)
                await asyncio.sleep(_CONNECT_SECONDS)
            else:
                return

    async def aclose(self) -> None:
        """Close all connections, which ends their calls and watches. Idempotent.

        Cancellation: safe — raised after they are closed.
        """
        await finish(self._client.peers.aclose())

    async def range(
        self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0
    ) -> RangeResult:
        """Read the keys that begin with `prefix`. See `KeyValueStore.range`.

        Cancellation: safe.
        """
        request = messages.range_request(prefix, revision=revision, after=after, limit=limit)
        return messages.range_result(await self._client.unary(client.RANGE, request))

    async def transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run `operations` if all of `compares` hold. See `KeyValueStore.transact`.

        Etcd bounds comparisons and operations (128 of each), and the size (1.5 MiB), by default.

        Cancellation: aborts — whether the transaction took effect is unknown then.
        """
        request = messages.transaction_request(compares, operations, otherwise)
        only_reads = all(isinstance(each, Get) for each in (*operations, *otherwise))
        rpc = client.READING_TXN if only_reads else client.TXN
        try:
            response = await self._client.unary(rpc, request)
        except StoreRefusedError as error:
            raise failures.explained(
                error,
                request_bytes=request.ByteSize(),
                operations=max(len(compares), len(operations), len(otherwise)),
            ) from error.__cause__
        return messages.transaction_result(response, operations, otherwise)

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate changes from `start_revision` on. See `KeyValueStore.watch`.

        A broken watch resumes, at another member if there's one, and misses nothing.
        """
        return self._client.watch(prefix, start_revision)

    @asynccontextmanager
    async def lease(self, ttl_seconds: int) -> AsyncGenerator[EtcdLease, None]:
        """Grant a lease, and keep it alive for the time of the block, from a thread.

        Etcd grants no less than about twice its election time-out, which is 2 s by default.

        Raises:
            KeyValueStoreError: Etcd doesn't grant the lease.

        Cancellation: aborts — the lease is revoked, or expires if its grant was under way.
        """
        request = pb.LeaseGrantRequest(TTL=ttl_seconds)
        granted, sent = await self._client.timed_unary(client.LEASE_GRANT, request)
        if granted.error or not granted.ID:
            raise KeyValueStoreError(f"Etcd grants no lease: {granted.error}")
        lease = EtcdLease(granted.ID, granted.TTL, granted.header.cluster_id)
        keeper = LeaseKeeper(lease, sent, self._client)
        keeper.start()
        try:
            yield lease
        finally:
            await finish(self._end(lease, keeper))

    async def _end(self, lease: EtcdLease, keeper: LeaseKeeper) -> None:
        await keeper.stop()
        try:
            async with asyncio.timeout(_REVOKE_SECONDS):
                await self._client.unary(client.LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease.id))
        except (KeyValueStoreError, TimeoutError) as error:
            if isinstance(error, StoreRefusedError) and error.code == "NOT_FOUND":
                return  # It has expired.
            _logger.warning(
                "lease %x isn't revoked, and expires within %d s: %s",
                lease.id,
                lease.ttl_seconds,
                error or "no answer",
            )
