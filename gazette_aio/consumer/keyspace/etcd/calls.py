"""Calls of Etcd: with a deadline, the user's token, and retries where they are safe."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc.aio

from gazette_aio.client.rpc.errors import is_being_cancelled
from gazette_aio.consumer.keyspace.errors import (
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd import failures, rpcs
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.peers import Peer, Peers
    from gazette_aio.consumer.keyspace.etcd.rpcs import RPC

Q = TypeVar("Q", bound="Message")
R = TypeVar("R", bound="Message")

_logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.025
_LAST_PAUSE_SECONDS: Final = 1.0


class Calls:
    """Calls the members of a cluster.

    Args:
        peers: Members of the cluster.
        options: Options of the client.
    """

    def __init__(self, peers: Peers, options: EtcdOptions) -> None:
        self._peers = peers
        self._options = options
        self._token = ""
        self._is_auth_disabled = False
        self._authenticating = asyncio.Lock()
        self._checked: set[str] = set()
        self.cluster_id: int = 0
        """Identity of the cluster, 0 before the first call."""

    @property
    def has_user(self) -> bool:
        """Whether calls have a token."""
        return bool(self._options.user) and not self._is_auth_disabled

    async def call(self, rpc: RPC[Q, R], request: Q) -> R:
        """Call an RPC, and return its response.

        A call that surely had no effect is repeated while Etcd is unavailable, for the time that
        options say; so is any call that may be repeated.

        Raises:
            KeyValueStoreError: It failed.

        Cancellation: aborts — if the RPC writes, whether it took effect is unknown.
        """
        return (await self.timed_call(rpc, request))[0]

    async def timed_call(self, rpc: RPC[Q, R], request: Q) -> tuple[R, float]:
        """Call an RPC as `call` does.

        Returns:
            The response, and a reading of `time.monotonic()` before the request was sent.

        Cancellation: aborts — whether a write took effect is unknown then.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                peer = await self.peer(max(end - loop.time(), 0.0))
                began = time.monotonic()
                return await self._authorized(peer, rpc, request), began
            except StoreUnavailableError as error:
                if loop.time() >= end or not (rpc.repeats or failures.may_repeat(error)):
                    raise
                _logger.info("%s is repeated: %s", rpc.path, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    async def peer(self, timeout_seconds: float | None = None) -> Peer:
        """Return a connected member that is new enough.

        Args:
            timeout_seconds: Time to wait for a connection, or None to wait for ever.

        Raises:
            StoreRefusedError: The member is too old, or of another cluster.
            StoreUnavailableError: No member can be reached, or it fails.

        Cancellation: safe.
        """
        peer = await self._peers.ready(timeout_seconds)
        if peer.endpoint not in self._checked:
            self._check(peer, await self._authorized(peer, rpcs.STATUS, pb.StatusRequest()))
        return peer

    def _check(self, peer: Peer, status: pb.StatusResponse) -> None:
        """Check a member at its first use."""
        if failures.too_old(status.version):
            raise StoreRefusedError(
                f"Etcd {status.version} at {peer.endpoint} is too old: 3.4 or newer is needed"
            )
        cluster = status.header.cluster_id
        self.cluster_id = self.cluster_id or cluster
        if cluster != self.cluster_id:
            raise StoreRefusedError(f"Etcd at {peer.endpoint} is of another cluster")
        self._checked.add(peer.endpoint)

    async def token(self, peer: Peer, stale: str | None = None) -> str:
        """Return the user's token, empty without a user.

        Args:
            peer: Member to ask for a new token.
            stale: Token that is refused, so that a new one is needed.

        Raises:
            KeyValueStoreError: The user or the password is wrong, or Etcd fails.

        Cancellation: safe.
        """
        if not self.has_user:
            return ""
        if self._token not in ("", stale):
            return self._token
        async with self._authenticating:
            if self._token in ("", stale):
                self._token = await self._new_token(peer)
            return self._token

    async def _new_token(self, peer: Peer) -> str:
        request = pb.AuthenticateRequest(name=self._options.user, password=self._options.password)
        try:
            return (await self._attempt(peer, rpcs.AUTHENTICATE, request, "")).token
        except KeyValueStoreError as error:
            if not failures.is_auth_disabled(error):
                raise
            _logger.warning("Etcd asks for no user, so that none is named")
            self._is_auth_disabled = True
            return ""

    async def _authorized(self, peer: Peer, rpc: RPC[Q, R], request: Q) -> R:
        token = await self.token(peer)
        try:
            return await self._attempt(peer, rpc, request, token)
        except KeyValueStoreError as error:
            if not (self._options.user and failures.is_stale_token(error)):
                raise
        self._is_auth_disabled = False
        # Etcd refused the request before it looked at it, so that even a write can be repeated.
        token = await self.token(peer, stale=token)
        return await self._attempt(peer, rpc, request, token)

    async def _attempt(self, peer: Peer, rpc: RPC[Q, R], request: Q, token: str) -> R:
        method = peer.methods.unary(rpc.path)
        options = {"timeout": self._options.timeout_seconds, "metadata": rpcs.metadata(token)}
        try:
            return rpc.decode(await answer(method(request, **options), writes=rpc.writes))
        except StoreUnavailableError:
            self._peers.avoid(peer)
            raise


async def answer(waiting: Any, *, writes: bool = False) -> Any:
    """Await what a call of grpcio answers.

    Raises:
        KeyValueStoreError: The call failed, or its channel was closed.

    Cancellation: aborts — the call is cancelled.
    """
    try:
        return await waiting
    except grpc.aio.AioRpcError as error:
        raise failures.failure(
            error.code().name, error.details() or "", writes=writes
        ) from error.with_traceback(None)
    except asyncio.InvalidStateError:
        raise StoreUnavailableError("the call has ended", outcome_unknown=writes) from None
    except asyncio.CancelledError as error:
        error.with_traceback(None)
        if is_being_cancelled():
            raise
        # Wire: so grpcio reports that a channel was closed.
        raise StoreUnavailableError(
            "the connection to Etcd was closed", code="CANCELLED", outcome_unknown=writes
        ) from None
    finally:
        # Invariant: an error that is kept doesn't keep its call, which tracebacks lead to.
        del waiting
