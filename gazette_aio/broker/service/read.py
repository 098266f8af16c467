"""Read: content of a journal, from local and from persisted fragments."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.broker.fragments.cover_index import query
from gazette_aio.broker.fragments.stored_content import StoredContent
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.write_head import JournalDamagedError
from gazette_aio.broker.service.common import signed_urls, validate
from gazette_aio.protocol.journal_spec import may_read
from gazette_aio.protocol.varint import encode_varint
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Generator

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.fragments.cover_index import IndexEntry
    from gazette_aio.broker.host.clock import Deadline
    from gazette_aio.broker.journal.replica import Replica
    from gazette_aio.serving.calls import Send

_logger = logging.getLogger(__name__)

INLINE_BYTES = 64 << 10
BATCH_BYTES = 1 << 20


class ContentChunk(NamedTuple):
    """Content of a journal, as one message of a stream."""

    offset: int
    content: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 - As messages do.
        """Return the bytes of a ReadResponse, with fewer copies of the content."""
        # Wire: field 3 (offset) is a varint, field 7 (content) is length-delimited.
        offset, content = self
        head = b"\x18" + encode_varint(offset) if offset else b""
        return b"".join((head, b"\x3a", encode_varint(len(content)), content))


async def serve_read(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.ReadRequest,
    _messages: object,
    send: Send,
) -> None:
    """Send metadata of fragments, each followed by its content unless only metadata is wanted.

    A blocking read also returns if the journal is deleted, or the broker stops.

    Raises:
        RpcError: The request is invalid, or content can't be read. The code is DATA_LOSS if content
            is damaged.

    Cancellation: safe.
    """
    await validate(core, request)
    resolved = await core.resolver.resolve(
        request.journal,
        claims,
        require_primary=False,
        proxy_header=request.header if request.HasField("header") else None,
        min_revision=request.min_etcd_revision,
        until=core.token_end(claims),
    )
    status = resolved.status
    item = resolved.item
    if status == pb.Status.OK and item is not None and not may_read(item.spec.flags):
        status = pb.Status.NOT_ALLOWED
    if status != pb.Status.OK or item is None:
        await send(pb.ReadResponse(status=status, header=resolved.header))
        return
    replica = await core.replica(item)
    until = core.token_end(claims)
    header: pb.Header | None = resolved.header
    offset = replica.index.cover.end if request.offset == -1 else request.offset
    while True:
        hit, offset = await _find(core, replica, request, offset, until)
        if hit is None and request.block:
            return  # The replica, or the client's token, has ended.
        response = await _metadata(core, replica, hit, offset, header)
        header = None
        end = min(hit.end, request.end_offset or hit.end) if hit else 0
        if (
            hit is None
            or request.metadata_only
            or (hit.content is None and request.do_not_proxy)
            or offset >= end
        ):
            await send(response)
            return
        # Race: a local file may be persisted and removed as soon as something is awaited.
        with _in_use(hit):
            await send(response)
            offset = await _send_content(core, hit, offset, end, send, until=until)
        if offset == request.end_offset or _has_passed(until):
            return


def _has_passed(until: Deadline | None) -> bool:
    return until is not None and until.has_passed


@contextlib.contextmanager
def _in_use(entry: IndexEntry) -> Generator[None]:
    if (content := entry.content) is None:
        yield
        return
    try:
        content.acquire()
    except OSError as error:
        raise RpcError(os_error_text(error, "open", content.path.name)) from error
    try:
        yield
    finally:
        content.release()


async def _find(
    core: BrokerCore,
    replica: Replica,
    request: pb.ReadRequest,
    offset: int,
    until: Deadline | None,
) -> tuple[IndexEntry | None, int]:
    index = replica.index
    while True:
        # Race: take the event first, or a change between the look and the wait is lost.
        change = index.next_change() if request.block else None
        hit, effective = query(
            index.cover,
            offset,
            begin_mod_time=request.begin_mod_time,
            now_seconds=core.clock(),
        )
        if hit is None:
            try:
                replica.head.check_damage()
            except JournalDamagedError as error:
                raise RpcError(str(error), "DATA_LOSS") from None
        if hit is not None or change is None or index.ended:
            return hit, effective
        offset = effective
        if not await index.wait(change, until):
            return None, effective


async def _metadata(
    core: BrokerCore,
    replica: Replica,
    hit: IndexEntry | None,
    offset: int,
    header: pb.Header | None,
) -> pb.ReadResponse:
    response = pb.ReadResponse(offset=offset, write_head=replica.index.cover.end, header=header)
    if hit is None:
        response.status = pb.Status.OFFSET_NOT_YET_AVAILABLE
        return response
    fragment = hit.fragment
    response.fragment.CopyFrom(fragment)
    response.fragment.sum.SetInParent()
    # Race: only persisted fragments await here, since local files may be removed meanwhile.
    if fragment.backing_store and fragment.mod_time:
        (response.fragment_url,) = await signed_urls(core, [fragment])
    return response


async def _send_content(
    core: BrokerCore,
    entry: IndexEntry,
    offset: int,
    end: int,
    send: Send,
    *,
    until: Deadline | None,
) -> int:
    batches = (
        _local_batches(core, entry, offset, end)
        if entry.content is not None
        else _stored_batches(core, entry, offset, end)
    )
    size = core.options.chunk_size
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for start in range(0, len(batch), size):
                content = batch if len(batch) <= size else batch[start : start + size]
                await send(ContentChunk(offset, content))
                offset += len(content)
            if _has_passed(until):
                break
    return offset


async def _local_batches(
    core: BrokerCore, entry: IndexEntry, offset: int, end: int
) -> AsyncGenerator[bytes, None]:
    content = entry.content
    assert content is not None, "not a local fragment"
    ahead: asyncio.Future[bytes] | None = None
    io = core.io
    try:
        while offset < end:
            length = min(end - offset, BATCH_BYTES)
            if ahead is not None:
                job, ahead = ahead, None
                batch = await finish(job)
            elif length <= INLINE_BYTES:
                batch = content.read(length, offset - entry.begin)
            else:
                batch = await io.run(content.read, length, offset - entry.begin)
            if not batch:
                raise RpcError(f"content of {content.path.name} is short")
            offset += len(batch)
            if end - offset > INLINE_BYTES:
                # Read the next batch while this one is sent.
                following = min(end - offset, BATCH_BYTES)
                ahead = io.submit(content.read, following, offset - entry.begin)
            yield batch
    except OSError as error:
        raise RpcError(os_error_text(error, "read", content.path.name)) from error
    finally:
        if ahead is not None:
            # Invariant: no thread reads from the file after its user has released it.
            with contextlib.suppress(OSError):
                await finish(ahead)


async def _stored_batches(
    core: BrokerCore, entry: IndexEntry, offset: int, end: int
) -> AsyncGenerator[bytes, None]:
    handle = core.stores.get(entry.fragment.backing_store)
    workers = handle.workers
    try:
        verified = handle.verified if core.options.verify_fragments else None
        stored = StoredContent(handle.require(), entry.fragment, offset, end, verified=verified)
        try:
            while (batch := await workers.run(stored.next)) is not None:
                if batch:
                    yield batch
        finally:
            stored.close()
    except OSError as error:
        raise RpcError(os_error_text(error, "read", entry.fragment.journal)) from error
    except (pb.StoreError, pb.ConfigurationError) as error:
        raise RpcError(str(error)) from error
    except pb.ReadError as error:
        raise _data_loss(entry.fragment, error) from error


def _data_loss(fragment: pb.Fragment, error: pb.ReadError) -> RpcError:
    text = error.text
    if not isinstance(error, pb.FragmentError):  # Whose text has the place.
        span = f"[{fragment.begin}, {fragment.end})"
        text = f"{text} (fragment {span} of {fragment.journal} at {error.offset})"
    _logger.error(
        "fragment file is damaged: %s",
        text,
        extra={
            "journal": fragment.journal,
            "offset": error.offset,
            "store": fragment.backing_store,
            "path": pb.content_path(fragment),
        },
    )
    return RpcError(text, "DATA_LOSS")
