"""Opening of fragment files by the URLs that brokers provide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.client.fragments.fetcher import HTTPFragmentFetcher
from gazette_aio.client.fragments.file_transport import (
    FileBody,
    FileTransport,
    installed_file_transport,
)
from gazette_aio.client.fragments.reader import FragmentReader
from gazette_aio.client.fragments.request import check_answer, request_headers
from gazette_aio.client.fragments.stream import FragmentStream
from gazette_aio.client.metrics import NoMetrics
from gazette_aio.protocol.codecs.content import FragmentContent
from gazette_aio.protocol.fragment import codec_name
from gazette_aio.protocol.url import parse_url, redacted

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import BinaryIO

    from gazette_aio.client.fragments.fetcher import FragmentBody, FragmentFetcher
    from gazette_aio.client.metrics import Metrics

PROGRESS_TIMEOUT: Final = 60.0


async def open_fragment_url(
    fragment: pb.Fragment,
    offset: int,
    url: str,
    *,
    transport: FragmentFetcher | None = None,
    metrics: Metrics | None = None,
    verify: bool = False,
    progress_timeout: float = PROGRESS_TIMEOUT,
) -> FragmentReader:
    """Open a fragment at the URL that a broker provided, and skip to an offset.

    Of an uncompressed file only the part from the offset on is fetched, if its store supports
    ranges. The last slice of content, of up to 1 MiB, is withheld until the file has ended well, so
    that the end of a damaged file isn't reached.

    Args:
        fragment: The fragment.
        offset: Offset of the first byte to read, within the fragment or at its end.
        url: URL of the fragment file; `http`, `https`, or `file` if there is a file transport.
        transport: Fetches the file; None for the installed file transport, or an HTTP connection.
        metrics: Counts bytes; None counts nothing.
        verify: Whether to verify the SHA-1 sum of the fragment if it's read to its end. The whole
            file is fetched then.
        progress_timeout: Seconds within which the response, and then each further byte, must
            arrive; 60 by default. The time of a body has no other limit, and local files have none.

    Raises:
        ValidationError: The offset isn't within the fragment, or the URL is invalid.
        ConfigurationError: There is no transport for the URL, or it leads out of the file root, or
            the codec isn't supported. A broker may still be able to read the fragment.
        TransportError: The store doesn't answer, or refuses.
        ReadError: The file doesn't hold the fragment.

    Cancellation: aborts.
    """
    fetcher = HTTPFragmentFetcher()
    source = FragmentSource(fetcher=fetcher, metrics=metrics, progress_timeout=progress_timeout)
    async with AsyncExitStack() as resources:
        if transport is None:
            resources.push_async_callback(fetcher.aclose)
            transport = source.transport(url)
        return await source.begin(fragment, offset, url, transport.open, resources, verify=verify)


async def open_fragment(
    content: BinaryIO | AsyncIterable[bytes],
    fragment: pb.Fragment,
    offset: int | None = None,
    *,
    metrics: Metrics | None = None,
    verify: bool = False,
    progress_timeout: float = PROGRESS_TIMEOUT,
) -> FragmentReader:
    """Read a fragment from its file, which you opened, and skip to an offset.

    Args:
        content: Raw bytes of the file, as stored: a binary file, or an async iterable of bytes. The
            reader closes it.
        fragment: The fragment.
        offset: Offset of the first byte to read, within the fragment or at its end; None for its
            begin.
        metrics: Counts bytes; None counts nothing.
        verify: Whether to verify the SHA-1 sum of the fragment if it's read to its end.
        progress_timeout: Seconds within which each further byte must arrive; 60 by default.

    Raises:
        ValidationError: The offset isn't within the fragment.
        ConfigurationError: The codec isn't supported.
        ReadError: The content isn't that of the fragment.

    Cancellation: aborts — the content is closed.
    """
    source = FragmentSource(metrics=metrics, progress_timeout=progress_timeout)
    if isinstance(content, AsyncIterable):
        body: FragmentBody = _GivenBody(content)
    else:
        body = FileBody(HTTPStatus.OK, {}, content)
    at = fragment.begin if offset is None else offset

    async def give(_url: str, _headers: Mapping[str, str]) -> FragmentBody:
        return body

    async with AsyncExitStack() as resources:
        resources.push_async_callback(body.aclose)
        return await source.begin(fragment, at, "", give, resources, verify=verify)


class FragmentSource:
    """Fragment files of a client, and connections to their stores.

    Constructing does nothing. From its first use on, a source belongs to the running event loop.

    Args:
        file_root: Directory of `file` URLs; None for that of `install_file_transport()`.
        fallback_root: Directory of `file` URLs if none is installed.
        fetcher: Fetches `http` and `https` URLs, and is closed with the source. None for an
            HTTPFragmentFetcher.
        metrics: Counts bytes; None counts nothing.
        progress_timeout: Seconds within which the response, and then each further byte, must
            arrive; 60 by default.
    """

    def __init__(
        self,
        *,
        file_root: str | os.PathLike[str] | None = None,
        fallback_root: str | os.PathLike[str] | None = None,
        fetcher: FragmentFetcher | None = None,
        metrics: Metrics | None = None,
        progress_timeout: float = PROGRESS_TIMEOUT,
    ) -> None:
        self.progress_timeout = progress_timeout
        """Seconds within which the response, and then each further byte, must arrive."""
        self._files = None if file_root is None else FileTransport(file_root)
        self._fallback = None if fallback_root is None else FileTransport(fallback_root)
        self._fetcher: FragmentFetcher = fetcher or HTTPFragmentFetcher()
        self._metrics = metrics or NoMetrics()
        self._streams: set[FragmentStream] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def open(
        self, fragment: pb.Fragment, offset: int, url: str, *, verify: bool = False
    ) -> FragmentReader:
        """Open a fragment, as `open_fragment_url()`.

        Raises:
            GazetteError: As `open_fragment_url()`.
            UsageError: The client is closed, or belongs to another event loop.

        Cancellation: aborts.
        """
        loop = asyncio.get_running_loop()
        if self._closed:
            raise pb.UsageError("the client is closed")
        if self._loop not in (None, loop):
            raise pb.UsageError(
                "the client belongs to another event loop; create a client in each event loop"
            )
        self._loop = loop
        opening = self.transport(url).open
        async with AsyncExitStack() as resources:
            return await self.begin(fragment, offset, url, opening, resources, verify=verify)

    async def begin(
        self,
        fragment: pb.Fragment,
        offset: int,
        url: str,
        opening: Callable[[str, Mapping[str, str]], Awaitable[FragmentBody]],
        resources: AsyncExitStack,
        *,
        verify: bool,
    ) -> FragmentReader:
        """Open a fragment, and skip to an offset.

        Args:
            fragment: The fragment.
            offset: Offset of the first byte to read.
            url: URL of the fragment file.
            opening: Returns the response to a request of a URL with headers.
            resources: What to close at the end, besides the response.
            verify: Whether to verify the sum of the fragment.

        Raises:
            GazetteError: As `open_fragment_url()`.

        Cancellation: aborts.
        """
        if not fragment.begin <= offset <= fragment.end:
            raise pb.ValidationError(
                f"offset {offset} isn't within the fragment [{fragment.begin}, {fragment.end})"
            )
        requested = request_headers(fragment, offset, verify=verify)
        body = await self._answer(fragment, url, opening(url, requested))
        resources.push_async_callback(body.aclose)
        as_stored = isinstance(body, FileBody | _GivenBody)
        answer = check_answer(fragment, requested, body, url=url, as_stored=as_stored)
        stream = FragmentStream(
            FragmentContent(fragment, answer.begin, answer.codec, verify=verify),
            body,
            resources.pop_all(),
            url=redacted(url),
            journal=fragment.journal,
            progress_timeout=self.progress_timeout,
        )
        self._streams.add(stream)
        stream.on_end(self._streams.discard)
        if self._closed:
            stream.abandon()  # Race: the store answered after the source was closed.
        self._metrics.fragment_open(
            fragment.journal,
            codec_name(fragment.compression_codec),
            fragment.end - fragment.begin,
            answer.content_length,
        )
        reader = FragmentReader(fragment, answer.begin, stream, self._metrics)
        try:
            await reader.skip_to(offset)
        except BaseException:
            await reader.aclose()
            raise
        return reader

    async def _answer(
        self, fragment: pb.Fragment, url: str, opening: Awaitable[FragmentBody]
    ) -> FragmentBody:
        """Return the response to a request, or raise errors without secrets."""
        try:
            async with asyncio.timeout(self.progress_timeout):
                return await opening
        except pb.TransportError as error:
            error.journal = error.journal or fragment.journal
            raise
        except TimeoutError:
            code, text = "DEADLINE_EXCEEDED", f"no answer within {self.progress_timeout:g} s"
        except OSError as error:
            code, text = "UNAVAILABLE", error.strerror or type(error).__name__
        raise pb.TransportError(
            code, f'fetching "{redacted(url)}": {text}', journal=fragment.journal, retryable=True
        )

    def transport(self, url: str) -> FragmentFetcher:
        """Return what fetches the file of a URL.

        Raises:
            ValidationError: The URL is invalid.
            ConfigurationError: Nothing does.
        """
        scheme = _scheme(url)
        if scheme in ("http", "https"):
            return self._fetcher
        files = self._files or installed_file_transport() or self._fallback
        if scheme == "file" and files is not None:
            return files
        raise pb.ConfigurationError(
            f'no transport for "{redacted(url)}": `file` URLs need a file_root of the client, '
            "$BROKER_FILE_ROOT or install_file_transport()"
        )

    async def aclose(self) -> None:
        """Close all readers, and all connections. Idempotent.

        A file of a file system that hangs isn't waited for, which is logged.

        Cancellation: safe — all of it is closed anyway.
        """
        self._closed = True
        streams = tuple(self._streams)
        try:
            await FragmentStream.close_all(streams)
        finally:
            await self._fetcher.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._streams)} open"
        return f"<FragmentSource, {state}>"


class _GivenBody:
    """Raw bytes of a fragment file that a caller iterates, as a response to a request for it."""

    status = HTTPStatus.OK.value
    reason = HTTPStatus.OK.phrase

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self.headers: Mapping[str, str] = {}
        self._content: Any = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._content)

    async def aclose(self) -> None:
        if (close := getattr(self._content, "aclose", None)) is not None:
            await close()


def _scheme(url: str) -> str:
    try:
        return parse_url(url).scheme
    except pb.ValidationError:
        pass
    # The error of the parser shows a user without a password, which may be a token.
    raise pb.ValidationError(f'invalid URL "{redacted(url)}"')
