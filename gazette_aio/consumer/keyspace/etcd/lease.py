"""Lease that a thread keeps alive, so that the lease survives a blocked event loop.

The thread judges by its own clock: the lease is lost when its time to live has passed since the
last keep-alive that Etcd answered was *sent*. If the event loop stands still for too long, the
thread ceases to renew: a process that is stuck must not hold its shards for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.etcd import failures
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.client import LEASE_KEEP_ALIVE, metadata

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable

    from gazette_aio.consumer.keyspace.etcd.client import EtcdClient

_logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class EtcdLease:
    """Lease of Etcd.

    Attributes:
        id: Identity of the lease.
        ttl_seconds: Time after which Etcd ends the lease, unless it's kept alive.
        cluster_id: Identity of the cluster that granted the lease.
        lost: Set once the lease may have expired.
    """

    def __init__(self, lease_id: int, ttl_seconds: int, cluster_id: int) -> None:
        self.id = lease_id
        self.ttl_seconds = ttl_seconds
        self.cluster_id = cluster_id
        self.lost: asyncio.Event = asyncio.Event()

    def __repr__(self) -> str:
        state = "lost" if self.lost.is_set() else "alive"
        return f"<EtcdLease {self.id:x} ttl={self.ttl_seconds} {state}>"


class LeaseKeeper:
    """Thread that keeps a lease alive. Use `start()` and `stop()`.

    Args:
        lease: The lease.
        sent: Reading of the monotonic clock when the lease was asked for.
        client: Client of the cluster, whose endpoints and token the thread reads.
    """

    def __init__(self, lease: EtcdLease, sent: float, client: EtcdClient) -> None:
        self._lease = lease
        self._client = client
        self._interval = lease.ttl_seconds / 3
        self._deadline = sent + lease.ttl_seconds
        self._loop = asyncio.get_running_loop()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat = time.monotonic()
        self._is_stalled = False
        self._stopping = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"gazette lease {lease.id:x}", daemon=True
        )
        # Of the thread alone, but for what is pending, which `stop()` cancels.
        self._channel: grpc.Channel | None = None
        self._failed = 0
        self._pending: grpc.Future[bytes] | None = None
        self._new_token: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        """Start the thread."""
        self._beat_on()
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread, and wait for its end.

        Cancellation: safe — raised after that.
        """
        self._stopping.set()
        if (pending := self._pending) is not None:
            pending.cancel()
        try:
            await finish(self._over())
        finally:
            if self._new_token is not None:
                self._new_token.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()

    async def _over(self) -> None:
        await self._ended.wait()
        # It has told so with its last step, and may still be on its way out.
        await in_thread(self._thread.join)

    def _beat_on(self) -> None:
        """Note that the event loop runs."""
        self._beat = time.monotonic()
        self._heartbeat = self._loop.call_later(self._interval / 4, self._beat_on)

    def _run(self) -> None:
        try:
            self._keep()
        except Exception:
            _logger.exception("lease %x can't be renewed any longer", self._lease.id)
            self._tell(self._lease.lost.set)
        finally:
            self._hang_up()
            self._tell(self._ended.set)

    def _keep(self) -> None:
        pause = self._interval
        while True:
            left = self._deadline - time.monotonic()
            if self._stopping.wait(max(0.0, min(pause, left))):
                return
            now = time.monotonic()
            if now >= self._deadline:
                _logger.error("lease %x wasn't renewed within its time to live", self._lease.id)
                self._tell(self._lease.lost.set)
                return
            if self._stalls(now):
                pause = self._interval
                continue
            try:
                ttl = self._renew()
            except KeyValueStoreError as error:
                # The next attempt is at another member, if there's one.
                self._hang_up()
                self._failed += 1
                pause = _RETRY_SECONDS
                if not self._stopping.is_set():
                    _logger.warning(
                        "lease %x isn't renewed (will retry): %s", self._lease.id, error
                    )
                continue
            if ttl <= 0:
                _logger.error("lease %x has expired", self._lease.id)
                self._tell(self._lease.lost.set)
                return
            # Etcd counts from the arrival of the request, which isn't before it's sent.
            self._deadline = now + ttl
            _logger.debug("lease %x is renewed", self._lease.id)
            pause = self._interval

    def _renew(self) -> int:
        """Return the lease's new time to live, not more than 0 if the lease has expired."""
        if self._channel is None:
            endpoints = self._client.peers.endpoints
            self._channel = self._client.dialler.blocking(endpoints[self._failed % len(endpoints)])
        token = self._client.token
        try:
            answer = self._call(self._channel, token)
        except KeyValueStoreError as error:
            if failures.is_stale_token(error) and (
                self._new_token is None or self._new_token.done()
            ):
                # The event loop gets it for all calls, and the next attempt finds it.
                self._new_token = asyncio.run_coroutine_threadsafe(
                    self._client.replace_token(token), self._loop
                )
            raise
        if answer.header.cluster_id != self._lease.cluster_id:
            # The calls of the event loop may not have met this endpoint yet.
            raise KeyValueStoreError("the server belongs to another cluster")
        return answer.TTL

    def _stalls(self, now: float) -> bool:
        """Return whether the event loop stands still, so that the lease must expire."""
        silent = now - self._beat
        stalls = silent > self._client.options.stalled_ttls * self._lease.ttl_seconds
        if stalls and not self._is_stalled:
            _logger.error(
                "lease %x isn't renewed: the event loop stands still for %.0f s",
                self._lease.id,
                silent,
            )
        self._is_stalled = stalls
        return stalls

    def _call(self, channel: grpc.Channel, token: str) -> pb.LeaseKeepAliveResponse:
        timeout = min(
            max(self._interval, _RETRY_SECONDS),
            max(self._deadline - time.monotonic(), 0.0),
            self._client.options.timeout_seconds,
        )
        request = pb.LeaseKeepAliveRequest(ID=self._lease.id)
        method = cast("Any", channel.unary_unary(LEASE_KEEP_ALIVE.path))
        pending: grpc.Future[bytes] = method.future(
            request.SerializeToString(), timeout=timeout, metadata=metadata(token)
        )
        self._pending = pending
        # Race: `stop()` sets the event before it looks for a pending call.
        if self._stopping.is_set():
            pending.cancel()
        try:
            return LEASE_KEEP_ALIVE.decode(pending.result())
        except grpc.FutureCancelledError:
            raise KeyValueStoreError("the lease is given up") from None
        except grpc.RpcError as error:
            code = error.code().name
            raise failures.failure(code, error.details() or "", writes=False) from None
        finally:
            self._pending = None

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _tell(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)
