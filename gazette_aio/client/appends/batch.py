"""Batch of appends of one journal.

Rules:

* The pending batches of a journal are sent in their order, one at a time. Only the newest batch may
  be open, and only an open batch is written to.
* One holder at a time writes to the open batch. At its end its content is kept, and follows that of
  earlier holders, or is cut off without a trace.
* A holder shares the open batch if their requests are equal, if the batch has all dependencies of
  the holder, and if it isn't too long. Otherwise a new batch is opened after it.
* A batch is sealed when it's about to be sent, or when another one is opened after it.
* A failed batch dooms the batches after it, and the holders that were in line for the journal.
* A batch without kept holders needs no RPC. A kept append of no bytes is a barrier, and is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.appends.append import set_commit
from gazette_aio.client.appends.content_buffer import ContentBuffer
from gazette_aio.client.appends.futures import AsyncOperation

if TYPE_CHECKING:
    import asyncio

    from gazette_aio.client.appends.futures import Dependencies
    from gazette_aio.client.deadline import Deadline
    from gazette_aio.client.tracing import Span

NO_DEPENDENCIES: Dependencies = frozenset()


class Batch:
    """Content of several holders, which one RPC appends.

    Args:
        request: Request of the RPC, copied unless it's plain.
        dependencies: Operations that have to succeed before the batch is sent.
        is_plain: Whether the request names a journal and nothing else.
        deadline: Bound of each wait for the batch, or None.
        buffer: Takes the content.
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
        buffer: ContentBuffer,
        *,
        is_plain: bool,
        deadline: Deadline | None,
    ) -> None:
        if not is_plain:
            copy = pb.AppendRequest()
            copy.CopyFrom(request)
            request = copy
        self.request: pb.AppendRequest = request
        self.dependencies: Dependencies = dependencies
        self.is_plain: bool = is_plain
        self.deadline: Deadline | None = deadline
        self.buffer: ContentBuffer = buffer
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

    def complete(
        self, response: pb.AppendResponse | None, error: BaseException | None
    ) -> asyncio.Future[None] | None:
        """Resolve the operation.

        Returns:
            A future that completes when the file of the content is closed, or None without a file.
        """
        if (span := self.span) is not None:
            span.set("gazette.appends", self.kept)
            if response is not None:
                set_commit(span, response.commit)
            span.end(error)
        self.response = response
        closing = self.buffer.discard()
        # Handles may outlive the batch. They need neither its content nor its dependencies.
        self.buffer = ContentBuffer()
        self.dependencies = NO_DEPENDENCIES
        self.operation.resolve(error)
        return closing
