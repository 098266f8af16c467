"""One append with retries, of content that can be sent again."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import Operation, RetryPolicy
from gazette_aio.protocol.journal import encodable

if TYPE_CHECKING:
    from gazette_aio.client.context import HasContext
    from gazette_aio.client.deadline import Deadline
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


Content: TypeAlias = (
    bytes
    | bytearray
    | memoryview
    | SeekableFile
    | Callable[[], AsyncIterable[bytes] | Iterable[bytes]]
)
"""Content to append: bytes, a seekable binary file, or a function that returns an iterable."""


async def append(
    client: HasContext,
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
    if isinstance(request, str):
        request = pb.AppendRequest(journal=encodable(request))
    else:
        # A copy, since the header of a refusal is set in it.
        given, request = request, pb.AppendRequest()
        request.CopyFrom(given)
    deadline = client.context.deadline(
        "append", timeout, journal=request.journal, doubt=MAYBE_APPENDED
    )
    policy = retry_policy or client.context.retry_policy
    work = deadline.run(_retried(client, request, content, policy, deadline))
    if (tracing := client.context.tracing) is not None:
        return await _traced(tracing, request.journal, work)
    return await work


def _require_content(item: object) -> None:
    if not isinstance(item, bytes | bytearray | memoryview | SeekableFile | Callable):
        raise TypeError(
            "content: expected bytes, a binary file or a function that returns an iterable, "
            f"not {type(item).__name__}"
        )


async def _retried(
    client: HasContext,
    request: pb.AppendRequest,
    content: Sequence[Content],
    policy: RetryPolicy,
    deadline: Deadline,
) -> pb.AppendResponse:
    attempts = Attempts(Operation.APPEND, policy, request, client.context.dispatcher.endpoint)
    while True:
        appender = Appender(client, request)
        error = await _attempt(appender, content)
        if error is None:
            attempts.succeeded()
            return appender.response
        deadline.note(error)
        await attempts.pause(error)


async def _traced(
    tracing: Tracing, journal: str, work: Awaitable[pb.AppendResponse]
) -> pb.AppendResponse:
    span = tracing.start("append", journal, current=True)
    error: BaseException | None = None
    try:
        response = await work
        set_commit(span, response.commit)
    except BaseException as failure:
        error = failure
        raise
    else:
        return response
    finally:
        span.end(error)


def set_commit(span: Span, commit: pb.Fragment) -> None:
    """Describe a committed append."""
    span.set("gazette.begin", commit.begin)
    span.set("gazette.end", commit.end)


async def _attempt(appender: Appender, content: Iterable[Content]) -> pb.GazetteError | None:
    """Append once, and return the error of the RPC. Exceptions of the content are raised."""
    async with appender:
        for item in content:
            async with contextlib.aclosing(_chunks(item)) as chunks:
                async for chunk in chunks:
                    try:
                        await appender.write(chunk)
                    except pb.GazetteError as error:
                        return error
        try:
            await appender.close()
        except pb.GazetteError as error:
            return error
    return None


async def _chunks(item: Content) -> AsyncGenerator[bytes | bytearray | memoryview, None]:
    """Yield the non-empty parts of `item`, from its start."""
    if isinstance(item, bytes | bytearray | memoryview):
        if item:
            yield item
    elif isinstance(item, SeekableFile):
        await _use(item.seek, 0)
        while data := await _use(item.read, _SLICE_BYTES):
            yield data
    else:
        parts = item()
        if isinstance(parts, AsyncIterable):
            async for part in parts:
                if part:
                    yield part
        else:
            for part in parts:
                if part:
                    yield part


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
