"""How appends of one journal share batches, and in which order those are sent.

Rules:

* A `Chain` is what is pending of one journal: batches in the order in which they're sent, one at
  a time. Only its newest batch may be open, and only an open batch is written to.
* One holder at a time writes to the open batch. When it's done its content is kept, and follows
  that of earlier holders, or cut off as if it had never been.
* A holder shares the open batch if that asks for the same thing (an equal request), waits for
  whatever the holder must wait for (its dependencies are a subset of the batch's), and isn't too
  long already. Otherwise a new batch is opened behind it.
* A batch is sealed when it's about to be sent, or when another one is opened behind it.
* A batch which fails dooms those behind it.
* A batch which nobody has put anything into needs no RPC. Nothing differs from nothing put into it
  on purpose: a kept append of no bytes is a barrier, and is sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.appends.content_buffer import ContentBuffer
from gazette_aio.client.appends.futures import AsyncOperation

if TYPE_CHECKING:
    from gazette_aio.client.appends.futures import Dependencies

NO_DEPENDENCIES: Dependencies = frozenset()


class Batch:
    """Content of several holders which is appended by one RPC.

    Args:
        request: Request of the RPC, copied unless it's plain.
        dependencies: Operations which have to succeed before it's sent.
        cutoff_bytes: Length beyond which it takes no further holders.
        is_plain: Whether the request names a journal and nothing else.
    """

    __slots__ = (
        "buffer",
        "dependencies",
        "doom",
        "is_plain",
        "kept",
        "operation",
        "request",
        "response",
    )

    def __init__(
        self,
        request: pb.AppendRequest,
        dependencies: Dependencies,
        cutoff_bytes: int,
        *,
        is_plain: bool,
    ) -> None:
        if not is_plain:
            copy = pb.AppendRequest()
            copy.CopyFrom(request)
            request = copy
        self.request = request
        self.dependencies = dependencies
        self.is_plain = is_plain
        self.buffer = ContentBuffer(cutoff_bytes)
        self.kept = 0
        """Number of holders whose content is kept."""
        self.operation = AsyncOperation()
        """Resolved once the batch was appended, or failed."""
        self.response: pb.AppendResponse | None = None
        self.doom: Exception | None = None
        """Error of a batch before it, which was to be followed."""

    def suits(self, request: pb.AppendRequest, dependencies: Dependencies) -> bool:
        """Whether an append of `request` which waits for `dependencies` may join."""
        return (not dependencies or dependencies <= self.dependencies) and (
            request is self.request or request == self.request
        )


class Chain:
    """Pending batches of one journal, oldest first.

    Args:
        cutoff_bytes: Length beyond which a batch takes no further holders.
    """

    __slots__ = ("batches", "cutoff_bytes", "open")

    def __init__(self, cutoff_bytes: int) -> None:
        self.cutoff_bytes = cutoff_bytes
        self.batches: deque[Batch] = deque()
        self.open: Batch | None = None
        """The batch which may be written to. If there's one it's the newest."""

    @property
    def is_full(self) -> bool:
        """Whether the next holder can't join the open batch because of its length."""
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
    ) -> Batch:
        """Return the batch for the next holder, which is open."""
        batch = self.open
        if batch is None or self.is_full or not batch.suits(request, dependencies):
            batch = self.open = Batch(request, dependencies, self.cutoff_bytes, is_plain=is_plain)
            self.batches.append(batch)
        return batch

    def seal(self) -> Batch:
        """Close the oldest batch for good, and return it to be sent."""
        batch = self.batches[0]
        if batch is self.open:
            self.open = None
        return batch

    def doom(self, error: Exception) -> None:
        """Have all batches behind the oldest one fail with its error. None of them stays open."""
        # Invariant: nothing is appended behind an append which is missing, even if whoever hears
        # of that lets new ones proceed at once.
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
        # Handles may outlive the batch for long; its content need not.
        batch.buffer = ContentBuffer()
        batch.dependencies = NO_DEPENDENCIES  # Nor need what went before it.
        batch.operation.resolve(error)
