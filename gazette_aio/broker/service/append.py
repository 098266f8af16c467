"""Append: a stream of content that is committed as a whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.broker.fragments.append_writer import AppendWriter
from gazette_aio.broker.fragments.rolling import roll_offset
from gazette_aio.broker.host.clock import Deadline
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.flow_control import FlowControl, effective_max_rate
from gazette_aio.broker.journal.registers import (
    RegistersTooLongError,
    check_request,
    update_registers,
)
from gazette_aio.broker.journal.write_head import JournalDamagedError, ReplicaFailedError
from gazette_aio.broker.service.append_machine import AppendMachine, AppendStreamError
from gazette_aio.broker.service.append_rules import (
    ChangeSuspension,
    JournalState,
    RefuseAppend,
    RollTo,
    StreamAppend,
    decide_append,
    may_have_content,
)
from gazette_aio.broker.service.receive_guard import ReceiveGuard
from gazette_aio.protocol.journal_spec import desired_replication
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.journal.replica import Replica
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.broker.resolver import Resolution

_logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 1.0
"""Time for which the rest of a failed append is received."""

AppendMessage = pb.AppendRequest | bytes | memoryview
"""A message of a stream, or the content of a message without other fields."""

_Suspend = pb.AppendRequest.Suspend
_RESUME = _Suspend.SUSPEND_RESUME
_NONE = pb.JournalSpec.Suspend.Level.NONE
_SUSPENDING = (_Suspend.SUSPEND_IF_FLUSHED, _Suspend.SUSPEND_NOW)
_OK = pb.Status.OK
_SUSPENDED = pb.Status.SUSPENDED


async def serve_append(
    core: BrokerCore, claims: pb.Claims, messages: AsyncIterator[AppendMessage]
) -> pb.AppendResponse:
    """Receive an append to its end, and commit it.

    Args:
        core: The broker.
        claims: Claims of the client.
        messages: Messages of the client, up to the end of its stream.

    Raises:
        RpcError: The append is invalid or failed, and is rolled back.

    Cancellation: aborts — the append is rolled back, unless it was about to be acknowledged.
    """
    append = _Append(core, claims, messages)
    try:
        return await append.run()
    except AppendStreamError as error:
        raise RpcError(str(error)) from None
    except RegistersTooLongError as error:
        raise RpcError(f"append stream: {error}", "INVALID_ARGUMENT") from None
    except JournalDamagedError as error:
        raise RpcError(str(error), "DATA_LOSS") from None
    except ReplicaFailedError as error:
        raise RpcError(f"append stream: {error}") from None
    except OSError as error:
        await append.fail(reason := os_error_text(error))
        raise RpcError(f"append stream: {reason}") from error


class _Append:
    """One append."""

    def __init__(
        self, core: BrokerCore, claims: pb.Claims, messages: AsyncIterator[AppendMessage]
    ) -> None:
        self._core = core
        self._claims = claims
        self._messages = messages
        self._machine = AppendMachine()
        self._request = self._machine.request
        self._until = core.token_end(claims)
        self._time = asyncio.get_running_loop().time

    async def fail(self, reason: str) -> None:
        """Log a failure of the broker's files, and receive what the client still sends.

        Cancellation: safe.
        """
        if self._core.file_problem != reason:
            self._core.file_problem = reason
            _logger.warning("appends fail, as to journal %s: %s", self._request.journal, reason)
        # Wire: grpcio loses the status of a stream that ends while its client writes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in self._messages:
                    pass

    async def run(self) -> pb.AppendResponse:
        first = await anext(self._messages, None)
        if first is not None and not isinstance(first, pb.AppendRequest):
            first = pb.AppendRequest(content=bytes(first))
        if first is not None:
            check_request(first)
        self._request = self._machine.open(first)
        while True:
            resolved = await self._resolve()
            if (response := self._refusal(resolved)) is not None:
                return response
            assert resolved.item is not None
            # Before the journal is held: appends to an unhealthy store wait side by side.
            clock = self._core.runtime.clock
            give_up = Deadline(clock, clock.monotonic() + self._core.runtime.options.store_wait)
            replica = await self._open(resolved.item, give_up)
            if replica is None:
                return self._unhealthy(
                    resolved.item, "listing takes longer than an append may wait"
                )
            if (response := await self._wait_for_stores(replica, give_up)) is not None:
                return response
            async with replica.head.exclusive():
                response = await self._hold(replica, resolved)
            if response is not None:
                # The next append may stream meanwhile. A crash must not undo the state on which an
                # answer, or a refusal, is based.
                try:
                    await replica.head.synced()
                except asyncio.CancelledError:
                    # The append can't be undone: a client that still listens, as when the server
                    # stops, must receive the answer.
                    await finish(replica.head.synced())
                return response

    async def _resolve(self) -> Resolution:
        request = self._request
        while True:
            try:
                resolved = await self._core.resolver.resolve(
                    request.journal,
                    self._claims,
                    require_primary=True,
                    proxy_header=request.header if request.HasField("header") else None,
                    min_revision=request.min_etcd_revision,
                    until=self._until,
                )
            except RpcError as error:
                raise RpcError(f"resolve: {error.text}", error.code) from None
            if resolved.status != _SUSPENDED or request.suspend != _RESUME:
                return resolved
            assert resolved.item is not None
            offset = resolved.item.spec.suspend.offset
            await self._core.space_store.suspend(resolved.item, _NONE, offset)

    def _refusal(self, resolved: Resolution) -> pb.AppendResponse | None:
        status = resolved.status
        if status == _OK and resolved.item is not None:
            limit = self._core.runtime.options.max_replication
            if desired_replication(resolved.item.spec, limit) <= 1:
                return None
            status = pb.Status.INSUFFICIENT_JOURNAL_BROKERS
        return pb.AppendResponse(status=status, header=resolved.header)

    async def _hold(self, replica: Replica, resolved: Resolution) -> pb.AppendResponse | None:
        """Run an append that holds its journal; return None to resolve again."""
        core = self._core
        while True:
            # A resolution is valid while the revision of the key space is the same.
            if resolved.header is not core.headers.routed() or core.replicas.stopped:
                resolved = await self._resolve()
                if (response := self._refusal(resolved)) is not None:
                    return response
            # Race: the journal may be deleted, suspended or recreated while this append waited.
            if replica.life.closed or resolved.item is not replica.life.item:
                return None
            replica.head.check()
            if self._request.suspend in _SUSPENDING:
                await replica.head.synced()  # These look at the index, which has what's synced.
            decision = decide_append(
                self._request,
                replica.life.spec,
                _state(replica),
                roll_pending=replica.head.roll_pending,
                now_seconds=core.runtime.clock(),
            )
            match decision:
                case RefuseAppend():
                    response = pb.AppendResponse(status=decision.status, header=resolved.header)
                    if decision.status == pb.Status.REGISTER_MISMATCH:
                        response.registers.CopyFrom(replica.head.spool.registers)
                    return response
                case RollTo():
                    await replica.head.roll(decision.offset)
                case ChangeSuspension():
                    if decision.roll:
                        replica.head.request_roll()
                    await core.space_store.suspend(
                        replica.life.item, decision.level, decision.offset
                    )
                case StreamAppend():
                    return await self._stream(replica, decision, resolved.header)

    async def _open(self, item: JournalItem, give_up: Deadline) -> Replica | None:
        """Return the replica of a journal, or None if a remote store isn't listed in time."""
        core = self._core
        remote = any(core.runtime.stores.get(url).is_remote for url in item.spec.fragment.stores)
        try:
            if not remote:
                return await core.replica(item)
            async with give_up.clock.timeout_at(give_up.when):
                return await core.replica(item)
        except TimeoutError:
            return None
        except RpcError:
            await self._resolve()  # It fails by itself if the broker has stopped meanwhile.
            raise

    async def _wait_for_stores(
        self, replica: Replica, give_up: Deadline
    ) -> pb.AppendResponse | None:
        stores = replica.life.spec.fragment.stores
        if not stores:
            return None
        handle = self._core.runtime.stores.get(stores[0])
        wait = self._core.runtime.options.store_wait
        if handle.is_remote:
            wait = max(0.0, give_up.when - give_up.clock.monotonic())
        problem = await handle.wait_healthy(wait)
        if not problem and not replica.listing.is_listed:
            await replica.listing.refresh()
            problem = replica.listing.error
        return self._unhealthy(replica.life.item, problem) if problem else None

    def _unhealthy(self, item: JournalItem, problem: str) -> pb.AppendResponse:
        store = item.spec.fragment.stores[0]
        return pb.AppendResponse(
            status=pb.Status.FRAGMENT_STORE_UNHEALTHY,
            header=self._core.headers.routed(),
            store_health_error=f"fragment store {store} unhealthy: {problem}",
        )

    async def _stream(
        self, replica: Replica, decision: StreamAppend, header: pb.Header
    ) -> pb.AppendResponse:
        options = self._core.runtime.options
        spec = replica.life.spec
        offset = roll_offset(
            replica.head.spool.extent,
            spec.fragment,
            roll_to=decision.roll_to,
            now_seconds=self._core.runtime.clock(),
        )
        if offset is not None:
            await replica.head.roll(offset)
        spool = replica.head.spool
        flow = FlowControl(
            replica.head.flow,
            max_rate=effective_max_rate(spec.max_append_rate, options.max_append_rate),
            min_rate=options.min_append_rate,
            now_millis=int(self._time() * 1000),
        )
        content_allowed = may_have_content(self._request, spec)
        begin = spool.end
        committed = False
        writer: AppendWriter | None = None
        try:
            with ReceiveGuard(self._messages) as receive:
                while True:
                    content = await self._receive(receive, flow, replica)
                    if content is None:
                        break
                    if not content:
                        continue
                    if not content_allowed:
                        return pb.AppendResponse(status=pb.Status.NOT_ALLOWED, header=header)
                    if writer is None:
                        writer = self._open_writer(replica)
                    await writer.write(content)
            self._machine.end()
            if decision.status != _OK:
                return pb.AppendResponse(status=decision.status, header=header)
            if writer is not None:
                await writer.flush()
            # Race: a cancelled call first looks like an ended call.
            await asyncio.sleep(0)
            # Invariant: nothing is awaited from here to the commit.
            digest = replica.head.commit(self._updated_registers(replica))
            committed = True
            if self._core.file_problem and writer is not None:
                self._core.file_problem = ""
                _logger.warning("appends succeed again, as to journal %s", replica.name)
        finally:
            if writer is not None and not committed:
                await self._abort(writer)
        response = pb.AppendResponse(
            header=header,
            registers=spool.registers,
            total_chunks=flow.total_chunks,
            delayed_chunks=flow.delayed_chunks,
            commit=pb.Fragment(
                journal=replica.name,
                begin=begin,
                end=spool.end,
                sum=pb.sum_from_digest(digest),
                compression_codec=pb.CompressionCodec.ValueType(spool.codec),
            ),
        )
        if self._machine.content_bytes:
            self._core.replicas.appended(replica)
        return response

    async def _receive(
        self, receive: ReceiveGuard[AppendMessage], flow: FlowControl, replica: Replica
    ) -> bytes | memoryview | None:
        """Return the content of the next message, empty to commit, None at the end."""
        flow.skip(int(self._time() * 1000))
        until = math.inf if self._until is None else self._until.loop_time
        try:
            message = await receive.next(flow.patience_millis() / 1000, until)
        except TimeoutError:
            self._check_token()
            raise self._machine.underflow() from None
        if not flow.tick(int(self._time() * 1000), int(receive.waited * 1000)):
            raise self._machine.underflow()
        if self._until is not None:
            self._check_token()
        if message is None:
            return None
        if isinstance(message, pb.AppendRequest):
            content: bytes | memoryview = self._machine.receive(message)
        else:
            content = message
            self._machine.receive_content(len(content))
        flow.chunk(len(content))
        while hold := flow.hold_millis():
            if replica.life.closed:
                flow.lift()  # Whoever comes next isn't to wait for a journal of the past.
                continue
            await asyncio.sleep(hold / 1000)
            flow.tick(int(self._time() * 1000), hold)
        return content

    def _check_token(self) -> None:
        """Raise RpcError if the client's token has ended."""
        if self._until is not None and self._until.has_passed:
            raise RpcError("append stream: context deadline exceeded", "DEADLINE_EXCEEDED")

    def _open_writer(self, replica: Replica) -> AppendWriter:
        spool = replica.head.spool
        if not spool.exists:
            spool.create()
        spool.open()
        self._core.replicas.touched(replica)
        return AppendWriter(spool, self._core.runtime.appends)

    async def _abort(self, writer: AppendWriter) -> None:
        if dropped := await writer.abort():
            self._core.metrics.spool_rollbacks += 1
            self._core.metrics.spool_rollback_bytes += dropped

    def _updated_registers(self, replica: Replica) -> pb.LabelSet | None:
        request = self._request
        union = request.union_registers if request.HasField("union_registers") else None
        subtract = request.subtract_registers if request.HasField("subtract_registers") else None
        if union is None and subtract is None:
            return None
        return update_registers(replica.head.spool.registers, union=union, subtract=subtract)


def _state(replica: Replica) -> JournalState:
    cover = replica.index.cover
    return JournalState(
        begin=replica.head.spool.begin,
        head=replica.head.offset,
        registers=replica.head.spool.registers,
        index_begin=cover.begin,
        index_end=cover.end,
        last_mod_time=cover.last_mod_time,
    )
