"""Protocol of the RPCs of journals, which a JournalClient and an AppendService have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gazette_aio.protocol as pb
    from gazette_aio.client.reads.retry_reader import RetryReader


class JournalRPCs(Protocol):
    """RPCs of journals, as JournalClient describes them."""

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
