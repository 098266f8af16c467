"""Reads of raw content into one output, up to write heads or forever."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from typing import TYPE_CHECKING, Final

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.cli.journals.fragments import served_names
from gazette_aio.cli.journals.read_offsets import format_offsets
from gazette_aio.cli.shell.failures import CommandError, explain
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.shell.quantities import size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.cli.journals.read_outputs import Output
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient, RetryReader

    ContentForm = Callable[[str, int, bytes], bytes]
    """Returns what is written for a journal, an offset, and the content that begins there."""

_WRITE_HEAD: Final = -1
_CATCHING_UP: Final = 16
"""Most lagging journals to read concurrently."""


def plain(_journal: str, _begin: int, content: bytes) -> bytes:
    """Return content as it is."""
    return content


def json_line(journal: str, begin: int, content: bytes) -> bytes:
    """Return a line of JSON with the journal and offset of content, and the content as base64."""
    # Content may end within a character, so it can't be text.
    line = {
        "journal": journal,
        "begin": begin,
        "end": begin + len(content),
        "content": base64.b64encode(content).decode(),
    }
    return msgspec.json.encode(line) + b"\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """How journals are read.

    Args:
        block: Whether to wait for more content at write heads, and for more journals.
        tail: Whether journals without an offset are read from their write heads.
        begin_mod_time: Unix seconds; fragments stored earlier are skipped.
        direct: Whether to fetch the files of fragments from their stores.
        end_offset: Offset before which to stop; 0 is the write head.
        count: Messages, or lines of raw content, after which to stop.
        form: Form in which raw content is written.
    """

    block: bool
    tail: bool
    begin_mod_time: int
    direct: bool | None
    end_offset: int = 0
    count: int | None = None
    form: ContentForm = plain

    def request(self, journal: str, offset: int | None, *, block: bool) -> pb.ReadRequest:
        """Return the request of a journal, from an offset or, without one, from where it begins."""
        if offset is None:
            offset = _WRITE_HEAD if self.tail else 0
        return pb.ReadRequest(
            journal=journal,
            offset=offset,
            end_offset=self.end_offset,
            block=block,
            begin_mod_time=self.begin_mod_time,
        )


class RawRead:
    """Reads one or many journals, and keeps the offset up to which content of each was written.

    The content of one append, or of one stored fragment, isn't interleaved with other content.

    Args:
        client: Client to use.
        source: Name of a journal, or a selector.
        plan: How to read.
        output: Takes content.
        offsets: Offsets by journal at which to begin.
        progress: Shows bytes and lag.
    """

    def __init__(
        self,
        client: JournalClient,
        source: str | pb.LabelSelector,
        plan: ReadPlan,
        output: Output,
        offsets: dict[str, int],
        *,
        progress: Progress,
    ) -> None:
        self._client = client
        self._source = source
        self._plan = plan
        self._output = output
        self._offsets = dict(offsets)
        self._progress = progress
        self._resumed = frozenset(offsets)
        self._written: set[str] = set()
        self._lags: dict[str, int] = {}
        self._lag = 0
        self._lines_left = plan.count
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)

    async def run(self) -> None:
        """Read up to write heads, or the plan's count of lines, or forever.

        Raises:
            CommandError: The offset of the one journal is beyond its write head.
            GazetteError: A read failed for good.
            OSError: Writing failed.

        Cancellation: aborts — offsets are those of the content that was written.
        """
        try:
            async with asyncio.TaskGroup() as group:
                if isinstance(self._source, str):
                    await self._read_once(self._source, block=self._plan.block)
                elif self._plan.block:
                    await self._follow(self._source, group)
                else:
                    names = served_names((await self._client.list(self._source)).journals)
                    if not names:
                        text = "gazette-aio: no journals were matched by the selector"
                        print_line(text, err=True)
                    for name in names:
                        group.create_task(self._read(name))
        except BaseExceptionGroup as errors:
            if errors.subgroup(_EnoughError) is None:
                raise errors.exceptions[0] from None

    def checkpoint(self) -> str:
        """Return a line of JSON with the offsets from which a read resumes."""
        return format_offsets(self._offsets)

    async def _follow(self, selector: pb.LabelSelector, group: asyncio.TaskGroup) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        async with self._client.watch(selector) as journals:
            async for change in journals.changes():
                for item in change.removed:
                    if task := tasks.pop(item.spec.name, None):
                        task.cancel()
                added = (*change.added, *(each.after for each in change.changed))
                for name in served_names(added):
                    # A journal that was suspended is read once it's resumed.
                    if name not in tasks or tasks[name].done():
                        tasks[name] = group.create_task(self._read(name))

    async def _read(self, journal: str) -> None:
        """Read a journal up to its write head, and beyond if reads block."""
        try:
            async with self._catching_up:
                await self._read_once(journal, block=False)
            if self._plan.block:
                await self._read_once(journal, block=True)
        except (pb.JournalNotFoundError, pb.SuspendedError) as error:
            print_line(f"gazette-aio: {explain(error)}", err=True)

    async def _read_once(self, journal: str, *, block: bool) -> None:
        request = self._plan.request(journal, self._offsets.get(journal), block=block)
        async with self._client.read(request, direct=self._plan.direct) as reader:
            while (content := await self._next(reader)) is not None:
                if content:
                    async with self._output.turn(journal):
                        await self._copy_unit(reader, content)
            if reader.offset >= 0:
                self._offsets[journal] = reader.offset

    async def _copy_unit(self, reader: RetryReader, content: bytes) -> None:
        """Write content up to the end of its append, or of its stored fragment."""
        await self._put(reader, content)
        while reader.offset < reader.response.fragment.end:
            following = await self._next(reader)
            if not following:
                return
            await self._put(reader, following)

    async def _next(self, reader: RetryReader) -> bytes | None:
        """Return the next content: nothing after a gap of offsets, and None at the end."""
        begin = reader.offset
        try:
            return await reader.read() or None
        except pb.OffsetJumpError as error:
            # Content of many journals is often skipped, as by --from.
            if isinstance(self._source, str):
                text = f"{reader.journal}: no content from {begin}, continuing at {error.offset}"
                print_line(f"gazette-aio: {text}", err=True)
            return b""
        except pb.OffsetNotYetAvailableError as error:
            if error.is_beyond_head and isinstance(self._source, str):
                head = reader.response.write_head
                text = f"offset {begin} is beyond the write head {head}: {reader.journal}"
                raise CommandError(text) from None
            if error.is_beyond_head:
                await reader.check_head()
            if error.is_below_head:
                print_line(f"gazette-aio: {explain(error)}", err=True)
            return None

    async def _put(self, reader: RetryReader, content: bytes) -> None:
        journal, offset, head = str(reader.journal), reader.offset, reader.response.write_head
        if self._lines_left is not None:
            if not self._lines_left:  # Another journal has got them while this one waited.
                raise _EnoughError
            lines = _first_lines(content, self._lines_left)
            self._lines_left -= lines.count(b"\n")
            offset -= len(content) - len(lines)
            content = lines

        async def write() -> None:
            afresh = journal not in self._written and journal not in self._resumed
            written = self._plan.form(journal, offset - len(content), content)
            await self._output.write(journal, written, afresh=afresh)
            self._written.add(journal)
            self._offsets[journal] = offset

        # Invariant: an offset counts as written if and only if its content is written.
        await finish(write())
        lag = max(head - offset, 0)
        self._lag += lag - self._lags.get(journal, 0)
        self._lags[journal] = lag
        self._progress.advance(len(content), f"lag {size_of(self._lag)}")
        if self._lines_left == 0:
            raise _EnoughError


class _EnoughError(Exception):
    """All lines that are wanted are written."""


def _first_lines(content: bytes, count: int) -> bytes:
    end = 0
    for _ in range(count):
        if not (end := content.find(b"\n", end) + 1):
            return content
    return content[:end]
