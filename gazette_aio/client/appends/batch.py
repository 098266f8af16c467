"""Batches of the appends of one journal.

Rules:

* A `Chain` holds the pending batches of a journal in the order in which they're sent, one at a
  time. Only its newest batch may be open, and only an open batch is written to.
* One holder at a time writes to the open batch. At its end its content is kept, and follows that of
  earlier holders, or is cut off without a trace.
* A holder shares the open batch if their requests are equal, if the batch has all dependencies of
  the holder, and if it isn't too long. Otherwise a new batch is opened after it.
* A batch is sealed when it's about to be sent, or when another one is opened after it.
* A failed batch dooms the batches after it, and the holders that were in line for the journal.
* A batch without kept holders needs no RPC. A kept append of no bytes is a barrier, and is sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.appends.content_buffer import ContentBuffer
from gazette_aio.client.appends.futures import AsyncOperation

if TYPE_CHECKING:
    from gazette_aio.client.append_memory import AppendMemory
    from gazette_aio.client.appends.futures import Dependencies
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.tracing import Span

NO_DEPENDENCIES: Dependencies = frozenset()


class Batch:
    """Content of several holders, which one RPC appends.

    Args:
        request: Request of the RPC, copied unless it's plain.
        dependencies: Operations that have to succeed before the batch is sent.
        cutoff_bytes: Length beyond which the batch takes no further holders.
        is_plain: Whether the request names a journal and nothing else.
        deadline: Bound of each wait for the batch, or None.
        memory: Memory that pending appends share.
    """

    __slots__ = (
        "buffer",
        "deadline",
        "dependencies",
        "doom",
        "is_plain",
        "kept",
        "operation",
        "request",
        "response",
        "span",
    )

    def __init__(
        self,
        request: pb.AppendRequest,
        dependencies: Dependencies,
        cutoff_bytes: int,
        *,
        is_plain: bool,
        deadline: Deadline | None,
        memory: AppendMemory,
    ) -> None:
        if not is_plain:
            copy = pb.AppendRequest()
            copy.CopyFrom(request)
            request = copy
        self.request: pb.AppendRequest = request
        self.dependencies: Dependencies = dependencies
        self.is_plain: bool = is_plain
        self.deadline: Deadline | None = deadline
        self.buffer: ContentBuffer = ContentBuffer(cutoff_bytes, memory)
        self.kept: int = 0
        """Number of holders whose content is kept."""
        self.operation: AsyncOperation = AsyncOperation()
        """Resolved when the batch was appended, or has failed."""
        self.response: pb.AppendResponse | None = None
        self.doom: Exception | None = None
        """Error of an earlier batch that failed."""
        self.span: Span | None = None
        """Span of the batch, which the first holder has begun."""

    def suits(self, request: pb.AppendRequest, dependencies: Dependencies) -> bool:
        """Return whether an append of `request` that waits for `dependencies` may join."""
        return (not dependencies or dependencies <= self.dependencies) and (
            request is self.request or request == self.request
        )


class Chain:
    """Pending batches of one journal, oldest first.

    Args:
        cutoff_bytes: Length beyond which a batch takes no further holders.
        deadline: Bound of each wait for a batch, or None.
        memory: Memory that pending appends share.
    """

    def __init__(self, cutoff_bytes: int, deadline: Deadline | None, memory: AppendMemory) -> None:
        self.deadline = deadline
        self._memory = memory
        self.cutoff_bytes = cutoff_bytes
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        """The open batch, which is the newest, or None."""

    @property
    def is_full(self) -> bool:
        """Whether the open batch is too long for a further holder."""
        return self.open is not None and self.open.buffer.length > self.cutoff_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes of content of all batches."""
        return sum(batch.buffer.length for batch in self.batches)

    def admit(
        self,
        request: pb.AppendRequest,
        dependencies: Dependencies,
        *,
        is_plain: bool,
        doom: Exception | None = None,
    ) -> Batch:
        """Return the open batch for the next holder, or a doomed one."""
        batch = self.open
        if batch is None or doom or self.is_full or not batch.suits(request, dependencies):
            batch = self.open = Batch(
                request,
                dependencies,
                self.cutoff_bytes,
                is_plain=is_plain,
                deadline=self.deadline,
                memory=self._memory,
            )
            self.batches.append(batch)
            if doom is not None:
                batch.doom = doom
                self.open = None
        return batch

    def seal(self) -> Batch:
        """Seal the oldest batch, and return it to be sent."""
        batch = self.batches[0]
        if batch is self.open:
            self.open = None
        return batch

    def doom(self, error: Exception) -> None:
        """Doom the batches after the oldest one, which failed. None of them stays open."""
        # Invariant: nothing is appended after a missing append, even if a caller clears the error
        # at once.
        for batch in self.batches:
            batch.doom = error
        self.open = None

    def complete(
        self, response: pb.AppendResponse | None = None, error: BaseException | None = None
    ) -> None:
        """Resolve the oldest batch, and drop it."""
        batch = self.batches.popleft()
        if batch is self.open:
            self.open = None
        batch.response = response
        batch.buffer.discard()
        # Handles may outlive the batch. They need neither its content nor its dependencies.
        batch.buffer = ContentBuffer()
        batch.dependencies = NO_DEPENDENCIES
        batch.operation.resolve(error)
