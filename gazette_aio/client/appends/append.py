"""One append with retries, of content that can be sent again."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.appends.content_buffer import Bytes
from gazette_aio.client.attempts import until_success
from gazette_aio.client.retry import Operation, RetryPolicy
from gazette_aio.protocol.journal import encodable, require_request

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.tracing import Span, Tracing

T = TypeVar("T", bytes, int)

_SLICE_BYTES: Final = 256 << 10

MAYBE_APPENDED: Final = "the content may have been appended"


@runtime_checkable
class SeekableFile(Protocol):
    """A binary file, also of aiofiles, that can be read repeatedly from its start."""

    def read(self, size: int, /) -> bytes | Awaitable[bytes]:
        """Read up to `size` bytes."""
        ...

    def seek(self, offset: int, /) -> int | Awaitable[int]:
        """Go to an offset."""
        ...


_Parts: TypeAlias = Callable[[], AsyncIterable[bytes] | Iterable[bytes]]

Content: TypeAlias = Bytes | SeekableFile | _Parts
"""Content to append: bytes, a seekable binary file, or a function that returns an iterable."""


async def append(
    client: JournalClient,
    request: pb.AppendRequest | str,
    *content: Content,
    retry_policy: RetryPolicy | None = None,
    timeout: float | None = None,
) -> pb.AppendResponse:
    """Append content to a journal as a whole, as `JournalClient.append()`.

    Raises:
        GazetteError: As `JournalClient.append()`.

    Cancellation: aborts — rolled back, unless the broker is about to commit.
    """
    for item in content:
        _require_content(item)
    require_request(request, pb.AppendRequest)
    if isinstance(request, str):
        request = pb.AppendRequest(journal=encodable(request))
    else:
        # A copy, since the header of a refusal is set in it.
        given, request = request, pb.AppendRequest()
        request.CopyFrom(given)
    deadline = client.context.deadline(
        "append", timeout, journal=request.journal, doubt=MAYBE_APPENDED
    )
    work = deadline.run(
        until_success(
            partial(_append_once, client, request, content),
            Operation.APPEND,
            retry_policy or client.context.retry_policy,
            request,
            endpoint=client.context.dispatcher.endpoint,
            deadline=deadline,
        )
    )
    if (tracing := client.context.tracing) is not None:
        work = _traced(tracing, request.journal, work)
    try:
        return await work
    except _ContentError as failed:
        error = failed.error
    raise error


async def _append_once(
    client: JournalClient, request: pb.AppendRequest, content: tuple[Content, ...]
) -> pb.AppendResponse:
    async with Appender(client, request) as appender:
        for item in content:
            if isinstance(item, Bytes):
                await appender.write(item)
                continue
            async with contextlib.aclosing(_chunks(item)) as chunks:
                async for chunk in chunks:
                    await appender.write(chunk)
        return await appender.close()


def _require_content(item: object) -> None:
    if not isinstance(item, Bytes | SeekableFile | Callable):
        raise TypeError(
            "content: expected bytes, a binary file or a function that returns an iterable, "
            f"not {type(item).__name__}"
        )


class _ContentError(Exception):
    """An error of content, which isn't retried although it may be of the same class as ours."""

    def __init__(self, error: pb.GazetteError) -> None:
        super().__init__()
        self.error = error


async def _traced(
    tracing: Tracing, journal: str, work: Awaitable[pb.AppendResponse]
) -> pb.AppendResponse:
    span = tracing.start("append", journal, current=True)
    error: BaseException | None = None
    try:
        response = await work
        set_commit(span, response.commit)
    except BaseException as failure:
        error = failure.error if isinstance(failure, _ContentError) else failure
        raise
    else:
        return response
    finally:
        span.end(error)


def set_commit(span: Span, commit: pb.Fragment) -> None:
    """Describe a committed append."""
    span.set("gazette.begin", commit.begin)
    span.set("gazette.end", commit.end)


async def _chunks(item: SeekableFile | _Parts) -> AsyncGenerator[bytes, None]:
    """Yield the parts of `item`, from its start."""
    try:
        if isinstance(item, SeekableFile):
            await _use(item.seek, 0)
            while data := await _use(item.read, _SLICE_BYTES):
                yield data
        elif isinstance(parts := item(), AsyncIterable):
            async for part in parts:
                yield part
        else:
            for part in parts:
                yield part
    except pb.GazetteError as error:
        raise _ContentError(error) from None


async def _use(method: Callable[[int], T | Awaitable[T]], argument: int) -> T:
    """Call a method of a file, which may block, whatever it is.

    Cancellation: safe — raised after the call, so that the caller may close the file.
    """
    result: T | Awaitable[T]
    if inspect.iscoroutinefunction(method):
        result = method(argument)
    else:
        call: Callable[[int], T | Awaitable[T]] = method
        result = await in_thread(call, argument)
    return await finish(result) if isinstance(result, Awaitable) else result
