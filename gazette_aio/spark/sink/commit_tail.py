"""Reader and appender of a commit journal's lines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.listing.calls import get_journal
from gazette_aio.spark.reading.bounded import is_old
from gazette_aio.spark.sink import answers
from gazette_aio.spark.sink.commit_records import HEADER, MAX_LINE_BYTES, decode_lines
from gazette_aio.spark.sink.commit_rules import RECENT_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.client.retry import RetryPolicy
    from gazette_aio.spark.sink.commit_records import CommitRecord, Refused

_logger = logging.getLogger(__name__)

_READ_BYTES: Final = 128 << 10
_DECODE_BYTES: Final = 1 << 20
"""Bytes which are decoded at a time; most lines are decoded only in outline."""
_THREAD_BYTES: Final = 32 << 10
"""Bytes of lines from which a thread decodes them, to keep the event loop responsive."""
LISTINGS: Final = 1.25
"""Refresh intervals of the store to wait for missing content."""
POLL_SECONDS: Final = 1.0


class CommitTail:
    """Follows a commit journal. Methods must be called one at a time.

    Args:
        client: Client to use.
        journal: The commit journal.
        policy: Retry policy.
        fold: Called with each record in order, including appended records.
    """

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        policy: RetryPolicy,
        fold: Callable[[CommitRecord | Refused], None],
    ) -> None:
        self.journal = journal
        self.offset: int = 0
        """Offset up to which the journal was read."""
        self._client = client
        self._policy = policy
        self._fold = fold
        self._rest = b""  # Content after the last newline.

    async def refresh(self) -> None:
        """Read all records up to the head of the journal, which gets a header if it's empty.

        The first records may have expired. Unless the next content is old, this method waits until
        brokers list the store again, which takes minutes by default.

        Raises:
            DataLossError: Records after those already read are missing.
            OffsetNotYetAvailableError: The same, but the records may still appear.
            StoreError: A line is too long for a record.
            GazetteError: An RPC failed.

        Cancellation: safe — reading continues where it stopped.
        """
        response = await self._append(self.journal)
        if (head := response.commit.end) == 0:
            # Wire: offset zero means any offset. Repeated headers do no harm.
            response = await self._append(self.journal, HEADER)
            head = response.commit.end
        if head < self.offset:
            self._lost(head, "was replaced by another one")
        if head > self.offset:
            await self._read(head)

    async def append(self, line: bytes) -> None:
        """Append a line at the offset read so far.

        Raises:
            WrongAppendOffsetError: The journal has further content, possibly this line by an
                earlier attempt.
            GazetteError: The append failed. The line may still be appended, even later.

        Cancellation: aborts — the line may be appended, possibly later.
        """
        # An incomplete line isn't a record, and must not become part of this line.
        content = b"\n" + line if self._rest else line
        request = pb.AppendRequest(journal=self.journal, offset=self.offset)
        await self._append(request, content)
        await self._take(content)

    async def _append(self, request: pb.AppendRequest | str, *content: bytes) -> pb.AppendResponse:
        timeout = answers.ANSWER_SECONDS
        return await self._client.append(
            request, *content, retry_policy=self._policy, timeout=timeout
        )

    async def _read(self, head: int) -> None:
        request = pb.ReadRequest(journal=self.journal, offset=self.offset, end_offset=head)
        deadline: float | None = None
        async with self._client.read(request, retry_policy=self._policy) as reader:
            while self.offset < head:
                try:
                    await self._read_some(reader, head)
                except (pb.OffsetJumpError, pb.OffsetNotYetAvailableError) as error:
                    begin, has_expired = await self._next_begin(head)
                    if deadline is None:
                        deadline = 0.0 if has_expired else await self._deadline()
                    remaining = deadline - asyncio.get_running_loop().time()
                    # Race: a broker which took over the journal may not know yet the fragment which
                    # the previous broker persisted, which may have a decision.
                    if remaining > 0 and not has_expired:
                        await asyncio.sleep(min(POLL_SECONDS, remaining))
                    elif self.offset == 0 < begin:
                        self._skip(begin)
                    elif isinstance(error, pb.OffsetJumpError):
                        self._lost(min(error.offset, head), "lost records")
                    else:
                        raise
                    await reader.seek(self.offset)

    async def _read_some(self, reader: RetryReader, head: int) -> None:
        content = bytearray()
        try:
            while len(content) < min(head - self.offset, _DECODE_BYTES):
                content += await answers.answered(
                    self._client, reader.read(_READ_BYTES), "read", self.journal
                )
        except pb.GazetteError:
            if not content:
                raise
            # Process the content before the error. The next read raises the error again.
            await reader.seek(self.offset + len(content))
        await self._take(bytes(content))

    async def _deadline(self) -> float:
        """Return the loop time at which the broker should know all fragments of the journal."""
        timeout = answers.ANSWER_SECONDS
        spec = (await get_journal(self._client, self.journal, timeout=timeout)).spec
        seconds = LISTINGS * spec.fragment.refresh_interval.ToTimedelta().total_seconds()
        _logger.warning(
            "waiting up to %.0f s for records of the commit journal",
            seconds,
            extra={"journal": self.journal, "offset": self.offset},
        )
        return asyncio.get_running_loop().time() + seconds

    async def _next_begin(self, head: int) -> tuple[int, bool]:
        """Return the offset of the next content, and whether earlier content has surely expired."""
        timeout = answers.ANSWER_SECONDS
        listing = await self._client.list_fragments(self.journal, timeout=timeout)
        behind = [entry.spec for entry in listing.fragments if entry.spec.end > self.offset]
        first = min(behind, key=lambda fragment: fragment.begin, default=None)
        if first is None or first.begin <= self.offset:
            return head if first is None else self.offset, False
        return min(first.begin, head), is_old(first)

    def _skip(self, offset: int) -> None:
        """Continue after the first content, which has expired."""
        extra = {"journal": self.journal, "offset": offset}
        _logger.warning("records of the commit journal have expired", extra=extra)
        self.offset = offset

    def _lost(self, offset: int, what: str) -> None:
        first, last = sorted((offset, self.offset))
        raise pb.DataLossError(
            f"commit journal {self.journal} {what}: [{first}, {last})",
            journal=self.journal,
            offset=first,
            missing=((first, last),),
        )

    async def _take(self, data: bytes) -> None:
        """Fold the lines which new content completes."""
        if b"\n" in data:
            *lines, rest = (self._rest + data).split(b"\n")
        else:
            lines, rest = [], self._rest + data
        if len(rest) > MAX_LINE_BYTES:
            raise pb.StoreError(
                f"commit journal {self.journal} has a line of more than {MAX_LINE_BYTES} bytes"
            )
        if lines and len(data) + len(self._rest) > _THREAD_BYTES:
            records = await in_thread(decode_lines, lines, RECENT_RECORDS)
        else:
            records = decode_lines(lines, RECENT_RECORDS)
        # Invariant: also after a cancellation, all records up to the offset were folded.
        self._rest = rest
        self.offset += len(data)
        for record in records:
            self._fold(record)

    def __repr__(self) -> str:
        return f"<CommitTail of {self.journal!r} at {self.offset}>"
