"""One append with retries, of content that can be sent again."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.appender import Appender
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import Operation, RetryPolicy
from gazette_aio.protocol.journal import encodable

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


Content: TypeAlias = (
    bytes
    | bytearray
    | memoryview
    | SeekableFile
    | Callable[[], AsyncIterable[bytes] | Iterable[bytes]]
)
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
    if isinstance(request, str):
        request = pb.AppendRequest(journal=encodable(request))
    else:
        # A copy, since the header of a refusal is set in it.
        given, request = request, pb.AppendRequest()
        request.CopyFrom(given)
    deadline = client.context.deadline(
        "append", timeout, journal=request.journal, doubt=MAYBE_APPENDED
    )
    attempts = Attempts(
        Operation.APPEND,
        retry_policy or client.context.retry_policy,
        request,
        client.context.dispatcher.endpoint,
    )

    async def append_once() -> pb.AppendResponse:
        async with Appender(client, request) as appender:
            for item in content:
                async with contextlib.aclosing(_chunks(item)) as chunks:
                    async for chunk in chunks:
                        await appender.write(chunk)
        return appender.response

    async def append_content() -> pb.AppendResponse:
        try:
            return await attempts.until_success(append_once, note=deadline.note)
        except _ContentError as failed:
            error = failed.error
        raise error

    work = deadline.run(append_content())
    if (tracing := client.context.tracing) is not None:
        return await _traced(tracing, request.journal, work)
    return await work


def _require_content(item: object) -> None:
    if not isinstance(item, bytes | bytearray | memoryview | SeekableFile | Callable):
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


async def _chunks(item: Content) -> AsyncGenerator[bytes | bytearray | memoryview, None]:
    """Yield the parts of `item`, from its start."""
    try:
        if isinstance(item, bytes | bytearray | memoryview):
            yield item
        elif isinstance(item, SeekableFile):
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
