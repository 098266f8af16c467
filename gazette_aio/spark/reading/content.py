"""Content of a range, cut at records and read ahead."""

from __future__ import annotations

import asyncio
import functools
import logging
import warnings
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol.errors import ConfigurationError, DataLossError
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.pieces import STEP_BYTES, Pieces

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.record_bounds import RecordBounds

_logger = logging.getLogger(__name__)

_SLACK_BYTES: Final = 64 << 10
"""Bytes after a range which are requested with it, because its last record may extend there."""


@functools.cache
def _warn_of_root(root: str | None) -> None:
    where = root or "$BROKER_FILE_ROOT"
    _logger.warning("fragment files not found in %s: reading through brokers", where)


class RangeContent(Owner):
    """Reads the records of a range, one step ahead of the caller.

    Args:
        client: Client to use.
        journal: Name of the journal.
        bounds: Bounds of the records.
        options: Options of the source.
        step_bytes: Approximate number of bytes which `take()` returns.
    """

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        bounds: RecordBounds,
        options: SourceOptions,
        *,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._client = client
        self.journal = journal
        """Name of the journal."""
        self._bounds = bounds
        self._options = options
        self._step_bytes = step_bytes
        self._gaps: list[tuple[int, int]] = []
        end = min(bounds.end + _SLACK_BYTES, bounds.limit)
        self._reader = self._reader_of(bounds.begin, end)
        self._ahead: asyncio.Task[Pieces] | None = None
        self.is_closed: bool = False
        """Whether the content is closed."""

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Lost and skipped ranges, as (begin, end) pairs."""
        return tuple(self._gaps)

    def begin(self) -> None:
        """Start reading ahead. Idempotent."""
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._collect())

    async def take(self) -> Pieces:
        """Return the next content, or nothing at the end.

        Raises:
            ConfigurationError: Fragment files can't be fetched from their store, and io=direct.
            GazetteError: As `BoundedReader`.

        Cancellation: poisons — close the content.
        """
        self.begin()
        assert self._ahead is not None
        pieces = await self._ahead
        if pieces:
            self._ahead = None
            self.begin()
        return pieces

    async def _collect(self) -> Pieces:
        bounds, pieces, size = self._bounds, Pieces(), 0
        while size < self._step_bytes and not bounds.is_done:
            try:
                offset, chunk = await anext(self._reader)
            except DataLossError as error:
                if error.missing != ((bounds.begin, bounds.start),):
                    raise
                # Only the byte before the range is lost, and a fragment begins with a record.
                await self._reader.aclose()
                self._reader = self._reader_of(bounds.start, self._reader.end)
                continue
            except StopAsyncIteration:
                if self._reader.end >= bounds.limit:
                    break
                # The last record extends beyond the requested content.
                await self._reader.aclose()
                self._reader = self._reader_of(self._reader.end, bounds.limit)
                continue
            if self._options.io == "direct" and not self._reader.is_direct:
                raise ConfigurationError(
                    f"option 'io' is direct, but files of journal {self.journal} can't be fetched"
                    " from their store: set 'fileRoot' to the mounted directory, or use io=auto"
                )
            offset, chunk = bounds.clip(offset, chunk)
            if chunk:
                pieces.append((offset, chunk))
                size += len(chunk)
        return pieces

    def _reader_of(self, begin: int, end: int) -> BoundedReader:
        options, gaps = self._options, self._gaps

        def on_gap(begin: int, end: int) -> None:
            gaps.append((begin, end))

        def warn() -> None:
            _warn_of_root(options.connection.file_root)

        return BoundedReader(
            self._client,
            self.journal,
            begin,
            max(begin, end),
            direct=options.io != "broker",
            on_missing_file=warn if options.io == "auto" else None,
            fetch_timeout=options.fetch_timeout,
            fail_on_data_loss=options.fail_on_data_loss,
            on_gap=on_gap,
        )

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — raised once reading has ended.
        """
        await finish(self._close())

    async def _close(self) -> None:
        if (ahead := self._ahead) is not None:
            if not self.is_closed:
                ahead.cancel()
            self.is_closed = True
            await asyncio.wait((ahead,))
            if not ahead.cancelled():
                ahead.exception()  # Mark the exception as retrieved.
        self.is_closed = True
        await self._reader.aclose()

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None and not self.is_closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"at {self._reader.offset}"
        return f"<RangeContent of {self.journal} up to {self._bounds.end}, {state}>"
