"""Protocol of a client that appends in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    import gazette_aio.protocol as pb
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.client.appends.handle import AsyncAppend
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.client.reads.retry_reader import RetryReader


class AsyncJournalClient(Protocol):
    """A client of journals that appends in the background, as AppendService does.

    Its RPCs are those of a JournalClient.

    A Publisher takes any object with these members, such as a wrapper of an AppendService that
    checks or counts appends.
    """

    async def list(self, selector: str | pb.LabelSelector | pb.ListRequest = "") -> pb.ListResponse:
        """Return all journals that a selector matches. Cancellation: safe."""
        ...

    async def apply(
        self, request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change]
    ) -> pb.ApplyResponse:
        """Create, update and delete journals.

        Cancellation: aborts — changes that were applied remain.
        """
        ...

    def read(self, request: pb.ReadRequest | str) -> RetryReader:
        """Return a reader of a journal."""
        ...

    async def list_fragments(self, request: pb.FragmentsRequest | str) -> pb.FragmentsResponse:
        """Return all fragments of a journal. Cancellation: safe."""
        ...

    async def fragment_store_health(self, store: str) -> pb.FragmentStoreHealthResponse:
        """Have a broker check a fragment store, and return the result. Cancellation: safe."""
        ...

    @property
    def cutoff_bytes(self) -> int:
        """Length of content after which a large append should be continued by another one."""
        ...

    async def start_append(
        self,
        request: pb.AppendRequest | str,
        dependencies: Iterable[asyncio.Future[Any]] = (),
        /,
    ) -> AsyncAppend:
        """Lock a journal, and return an append to write to and to `release()`.

        Appends of one journal commit in the order of these calls. See
        `AppendService.start_append()`.

        Cancellation: safe — nothing was started.
        """
        ...

    def try_append(self, journal: str, data: bytes, /) -> AsyncAppend | None:
        """Append `data` without suspension, if that's possible at this moment.

        Returns:
            The released append; or None, always permitted, to have `start_append()` called.
        """
        ...

    def pending_except(self, journal: str, /) -> set[OpFuture[Any]]:
        """Return operations that complete when all appends pending now have completed.

        Args:
            journal: Journal whose pending appends to leave out, or empty.
        """
        ...

    def cleared_error(self, journal: str, /) -> ClearedError | None:
        """Return the latest error that was cleared, or that a new append passed over, or None.

        While it's the same object, the success of an append means that all earlier appends of the
        journal have succeeded.
        """
        ...

    def clear_error(self, journal: str, /) -> BaseException | None:
        """Have barriers and new appends of a journal succeed after a failed one.

        Returns:
            The error that was cleared, or None.
        """
        ...
