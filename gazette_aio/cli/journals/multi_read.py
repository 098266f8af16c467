"""Reads of all journals of a selector into one output, up to their write heads or forever."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.cli.journals.read_offsets import first_offset
from gazette_aio.cli.shell.content_forms import plain
from gazette_aio.cli.shell.failures import explain
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.shell.quantities import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.cli.journals.read_outputs import Output
    from gazette_aio.cli.shell.content_forms import ContentForm
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import JournalClient, RetryReader

_CATCHING_UP: Final = 16
"""Most lagging journals to read concurrently."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """How journals are read.

    Args:
        block: Whether to wait for more content at write heads, and for more journals.
        tail: Whether journals without an offset are read from their write heads.
        begin_mod_time: Unix seconds; fragments stored earlier are skipped.
        direct: Whether to fetch the files of fragments from their stores.
        form: Form in which raw content is written.
    """

    block: bool
    tail: bool
    begin_mod_time: int
    direct: bool | None
    form: ContentForm = plain


class MultiRead:
    """Reads journals, and keeps the offset up to which the content of each was written.

    The content of one append, or of one stored fragment, isn't interleaved with other content.

    Args:
        client: Client to use.
        plan: How to read.
        output: Takes content.
        offsets: Offsets by journal, which are updated.
        progress: Shows bytes and lag.
    """

    def __init__(
        self,
        client: JournalClient,
        plan: ReadPlan,
        output: Output,
        offsets: dict[str, int],
        progress: Progress,
    ) -> None:
        self._client = client
        self._plan = plan
        self._output = output
        self._offsets = offsets
        self._progress = progress
        self._resumed = frozenset(offsets)
        self._written: set[str] = set()
        self._lags: dict[str, int] = {}
        self._lag = 0
        self._catching_up = asyncio.Semaphore(_CATCHING_UP)

    async def run(self, selector: pb.LabelSelector) -> None:
        """Read the journals of a selector.

        Raises:
            GazetteError: A read failed for good.
            OSError: Writing failed.

        Cancellation: aborts — offsets are those of the content that was written.
        """
        if self._plan.block:
            await self._follow(selector)
            return
        listing = await self._client.list(selector)
        names = _served(listing.journals)
        if not names:
            print_line("gazette-aio: no journals were matched by the selector", err=True)
        remaining = iter(names)

        async def read_some() -> None:
            for name in remaining:
                await self._read(name)

        await _all(asyncio.create_task(read_some()) for _ in range(min(_CATCHING_UP, len(names))))

    async def _follow(self, selector: pb.LabelSelector) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) and not failed.done():
                failed.set_exception(error)

        async def keep_up() -> None:
            async with self._client.watch(selector) as journals:
                async for change in journals.changes():
                    for item in change.removed:
                        if task := tasks.pop(item.spec.name, None):
                            task.cancel()
                    added = (*change.added, *(each.after for each in change.changed))
                    for name in _served(added):
                        # A journal that was suspended is read once it's resumed.
                        if name not in tasks or tasks[name].done():
                            tasks[name] = asyncio.create_task(self._read(name))
                            tasks[name].add_done_callback(ended)

        watching = asyncio.create_task(keep_up())
        watching.add_done_callback(ended)
        try:
            await failed
        finally:
            await _end([watching, *tasks.values()])

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
        request = pb.ReadRequest(
            journal=journal,
            offset=first_offset(self._offsets, journal, tail=self._plan.tail),
            block=block,
            begin_mod_time=self._plan.begin_mod_time,
        )
        async with self._client.read(request, direct=self._plan.direct) as reader:
            while True:
                try:
                    content = await anext(reader)
                except StopAsyncIteration:
                    return
                except pb.OffsetJumpError:
                    continue  # Content was skipped, or removed.
                except pb.OffsetNotYetAvailableError as error:
                    if error.is_beyond_head:
                        await reader.check_head()
                    if reader.offset >= 0:
                        self._offsets[journal] = reader.offset
                    return
                async with self._output.turn(journal):
                    await self._copy_unit(reader, content)

    async def _copy_unit(self, reader: RetryReader, content: bytes) -> None:
        """Write content up to the end of its append, or of its stored fragment."""
        journal = str(reader.journal)
        await self._put(journal, reader, content)
        while reader.offset < reader.response.fragment.end:
            try:
                content = await reader.read()
            except (pb.OffsetJumpError, pb.OffsetNotYetAvailableError):
                return
            if not content:
                return
            await self._put(journal, reader, content)

    async def _put(self, journal: str, reader: RetryReader, content: bytes) -> None:
        offset, head = reader.offset, reader.response.write_head

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


def _served(journals: Iterable[pb.ListResponse.Journal]) -> list[str]:
    full = pb.JournalSpec.Suspend.FULL
    return [item.spec.name for item in journals if item.spec.suspend.level != full]


async def _all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Await tasks, and cancel the others when one fails."""
    started = list(tasks)
    try:
        for task in asyncio.as_completed(started):
            await task
    finally:
        await _end(started)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await finish(asyncio.gather(*tasks, return_exceptions=True))
