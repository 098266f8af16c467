"""Append: a stream of content that is committed as a whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, cast

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.broker.fragments.append_writer import AppendWriter
from gazette_aio.broker.fragments.rolling import roll_offset
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.flow_control import FlowControl, effective_max_rate
from gazette_aio.broker.journal.receive_guard import ReceiveGuard
from gazette_aio.broker.journal.registers import (
    RegistersTooLongError,
    check_request,
    registers_match,
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
from gazette_aio.broker.service.common import process, validate
from gazette_aio.protocol.journal_spec import desired_replication
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.journal.replica import Replica
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.serving.calls import Send

_logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 1.0
"""Time for which the rest of a failed append is received."""

_UNDERFLOW = "client stream didn't sustain the minimum append data rate"

AppendMessage = pb.AppendRequest | bytes | memoryview
"""A message of a stream, or the content of a message without other fields."""

_Suspend = pb.AppendRequest.Suspend
_RESUME = _Suspend.SUSPEND_RESUME
_NONE = pb.JournalSpec.Suspend.Level.NONE
_SUSPENDING = (_Suspend.SUSPEND_IF_FLUSHED, _Suspend.SUSPEND_NOW)
_OK = pb.Status.OK
_SUSPENDED = pb.Status.SUSPENDED


async def serve_append(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.AppendRequest | None,
    messages: AsyncIterator[AppendMessage],
    send: Send,
) -> None:
    """Receive an append to its end, commit it, and send its response.

    Args:
        core: The broker.
        claims: Claims of the client.
        request: First message of the client; None is the end of a stream without messages.
        messages: Further messages, up to the end of the stream.
        send: Sends the response.

    Raises:
        RpcError: The append is invalid or failed, and is rolled back.

    Cancellation: aborts — the append is rolled back, unless it was about to be acknowledged.
    """
    if request is None:
        raise RpcError("EOF")
    try:
        check_request(request)
        await validate(core, request)
        response = await _Append(core, claims, request, messages).run()
    except AppendStreamError as error:
        raise RpcError(str(error)) from None
    except RegistersTooLongError as error:
        raise RpcError(f"append stream: {error}", "INVALID_ARGUMENT") from None
    except JournalDamagedError as error:
        raise RpcError(str(error), "DATA_LOSS") from None
    except ReplicaFailedError as error:
        raise RpcError(f"append stream: {error}") from None
    except OSError as error:
        reason = os_error_text(error)
        if core.file_problem != reason:
            core.file_problem = reason
            _logger.warning("appends fail, as to journal %s: %s", request.journal, reason)
        # Wire: grpcio loses the status of a stream that ends while its client writes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for _ in messages:
                    pass
        raise RpcError(f"append stream: {reason}") from error
    await send(response)


class _Append:
    """One append."""

    def __init__(
        self,
        core: BrokerCore,
        claims: pb.Claims,
        request: pb.AppendRequest,
        messages: AsyncIterator[AppendMessage],
    ) -> None:
        self._core = core
        self._claims = claims
        self._messages = messages
        self._machine = AppendMachine(request)
        self._request = request
        self._header = pb.Header()
        self._until = core.token_end(claims)

    async def run(self) -> pb.AppendResponse:
        while True:
            replica = await self._open()
            if isinstance(replica, pb.AppendResponse):
                return replica
            async with replica.head.exclusive():
                response = await self._hold(replica)
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

    async def _resolve(self) -> JournalItem | pb.AppendResponse:
        """Return the journal at the present revision of the key space, or the refusal."""
        core, request = self._core, self._request
        while True:
            try:
                status, header, item = await core.resolver.resolve(
                    request.journal,
                    self._claims,
                    require_primary=True,
                    proxy_header=request.header if request.HasField("header") else None,
                    min_revision=request.min_etcd_revision,
                    until=self._until,
                )
            except RpcError as error:
                raise RpcError(f"resolve: {error.text}", error.code) from None
            if item is None or status != _SUSPENDED or request.suspend != _RESUME:
                break
            await core.space_store.suspend(item, _NONE, item.spec.suspend.offset)
        self._header = header
        if item is None or status != _OK:
            return self._refusal(status)
        if desired_replication(item.spec, core.options.max_replication) > 1:
            return self._refusal(pb.Status.INSUFFICIENT_JOURNAL_BROKERS)
        return item

    def _refusal(self, status: pb.Status.ValueType, problem: str = "") -> pb.AppendResponse:
        return pb.AppendResponse(status=status, header=self._header, store_health_error=problem)

    async def _open(self) -> Replica | pb.AppendResponse:
        """Return the replica of the journal once its stores are usable, or the refusal.

        Appends to a store that isn't usable wait side by side, since they don't hold the journal.
        """
        item = await self._resolve()
        if isinstance(item, pb.AppendResponse):
            return item
        if not (stores := item.spec.fragment.stores):
            return await self._replica(item)
        core = self._core
        replica = core.replicas.ready(item)
        if replica and replica.is_listed and core.stores.get(item.first_store).is_healthy:
            return replica
        clock, wait = core.clock, core.options.store_wait
        give_up = clock.monotonic() + wait
        is_remote = any(core.stores.get(url).is_remote for url in stores)
        problem = ""
        try:
            # A call of a local store is awaited, since it uses files.
            async with clock.timeout_at(give_up if is_remote else math.inf):
                replica = await self._replica(item)
        except TimeoutError:
            problem = "listing takes longer than an append may wait"
        else:
            item = replica.item
            if not item.first_store:
                return replica  # It has lost its stores meanwhile.
            handle = core.stores.get(item.first_store)
            if handle.is_remote:
                wait = max(0.0, give_up - clock.monotonic())
            problem = await handle.wait_healthy(wait)
            if not problem:
                if replica.is_listed:
                    return replica
                await replica.refresh()
                if not (problem := replica.listing_error):
                    return replica
        self._header = core.resolver.routed()
        return self._refusal(
            pb.Status.FRAGMENT_STORE_UNHEALTHY,
            f"fragment store {item.first_store} unhealthy: {problem}",
        )

    async def _replica(self, item: JournalItem) -> Replica:
        try:
            return await self._core.replica(item)
        except RpcError:
            await self._resolve()  # It fails by itself if the broker has stopped meanwhile.
            raise

    async def _hold(self, replica: Replica) -> pb.AppendResponse | None:
        """Run an append that holds its journal; return None to resolve again."""
        core, request = self._core, self._request
        head = replica.head
        matches = await self._registers_match(head.spool.registers)
        while True:
            # A resolution is valid while the revision of the key space is the same.
            if self._header.etcd.revision != core.space.revision or core.stopped:
                item = await self._resolve()
                if isinstance(item, pb.AppendResponse):
                    return item
                # Race: the journal may have been recreated while this append waited.
                if item is not replica.item:
                    return None
            if head.closed:
                return None
            head.check()
            if request.suspend in _SUSPENDING:
                await head.synced()  # These look at the index, which has what's synced.
            spool, cover = head.spool, replica.index.cover
            decision = decide_append(
                request,
                replica.item.spec,
                JournalState(
                    begin=spool.begin,
                    head=spool.end,
                    registers_match=matches,
                    index_begin=cover.begin,
                    index_end=cover.end,
                    last_mod_time=cover.last_mod_time,
                ),
                roll_pending=head.roll_pending,
                now_seconds=core.clock(),
            )
            match decision:
                case StreamAppend():
                    return await self._stream(replica, decision)
                case RefuseAppend():
                    response = self._refusal(decision.status)
                    if decision.status == pb.Status.REGISTER_MISMATCH:
                        response.registers.CopyFrom(spool.registers)
                    return response
                case RollTo():
                    await replica.roll(decision.offset)
                case ChangeSuspension():
                    if decision.roll:
                        head.roll_pending = True
                    await core.space_store.suspend(replica.item, decision.level, decision.offset)

    async def _stream(self, replica: Replica, decision: StreamAppend) -> pb.AppendResponse:
        core, head = self._core, replica.head
        options = core.options
        spec = replica.item.spec
        offset = roll_offset(
            head.spool,
            spec.fragment,
            roll_to=decision.roll_to,
            now_seconds=core.clock(),
        )
        if offset is not None:
            await replica.roll(offset)
        spool = head.spool
        content_allowed = may_have_content(self._request, spec)
        begin = spool.end
        committed = False
        writer: AppendWriter | None = None
        flow = FlowControl(
            head.flow,
            max_rate=effective_max_rate(spec.max_append_rate, options.max_append_rate),
            min_rate=options.min_append_rate,
            now_millis=_loop_millis(),
        )
        receive = ReceiveGuard(self._messages, flow, core.looks)
        try:
            with receive:
                while (content := await self._receive(receive, flow, replica)) is not None:
                    if not content:
                        continue
                    if not content_allowed:
                        return self._refusal(pb.Status.NOT_ALLOWED)
                    if writer is None:
                        writer = AppendWriter(spool, core.appends)
                        core.replicas.touched(replica)
                    await writer.write(content)
            self._machine.end()
            if decision.status != _OK:
                return self._refusal(decision.status)
            if writer is not None:
                await writer.flush()
            registers = await self._updated_registers(spool.registers)
            # Race: a cancelled call first looks like an ended call.
            await asyncio.sleep(0)
            # Invariant: nothing is awaited from here to the commit.
            digest = head.commit(registers)
            committed = True
            if writer is not None:
                core.space_store.forgive()
                if core.file_problem:
                    core.file_problem = ""
                    _logger.warning("appends succeed again, as to journal %s", replica.name)
        finally:
            if writer is not None and not committed and (dropped := await writer.abort()):
                core.metrics.spool_rollbacks += 1
                core.metrics.spool_rollback_bytes += dropped
        response = pb.AppendResponse(
            header=self._header,
            registers=spool.registers,
            total_chunks=flow.total_chunks,
            delayed_chunks=flow.delayed_chunks,
            commit=pb.Fragment(
                journal=replica.name,
                begin=begin,
                end=spool.end,
                sum=pb.sum_from_digest(digest),
                compression_codec=cast("pb.CompressionCodec.ValueType", spool.codec),
            ),
        )
        if self._machine.content_bytes:
            core.replicas.appended(replica)
        return response

    async def _receive(
        self, receive: ReceiveGuard[AppendMessage], flow: FlowControl, replica: Replica
    ) -> bytes | memoryview | None:
        """Return the content of the next message, empty to commit, None at the end."""
        until = math.inf if self._until is None else self._until.loop_time
        try:
            message = await receive.next(until)
        except TimeoutError:
            self._check_token()
            raise AppendStreamError(f"append stream: {_UNDERFLOW}") from None
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
            if replica.head.closed:
                flow.lift()  # Whoever comes next isn't to wait for a journal of the past.
                continue
            await asyncio.sleep(hold / 1000)
            flow.tick(_loop_millis(), hold)
        return content

    def _check_token(self) -> None:
        """Raise RpcError if the client's token has ended."""
        if self._until is not None and self._until.has_passed:
            raise RpcError("append stream: context deadline exceeded", "DEADLINE_EXCEEDED")

    async def _registers_match(self, registers: pb.LabelSet) -> bool:
        request = self._request
        if not request.HasField("check_registers"):
            return True
        return await process(self._core, registers_match, registers, request.check_registers)

    async def _updated_registers(self, registers: pb.LabelSet) -> pb.LabelSet | None:
        """Return the registers after the append, or None if it doesn't change them."""
        request = self._request
        if not (request.HasField("union_registers") or request.HasField("subtract_registers")):
            return None
        return await process(self._core, update_registers, registers, request)


def _loop_millis() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
