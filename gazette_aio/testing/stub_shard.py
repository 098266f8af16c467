"""Shard for tests of stores and applications, without brokers and without Etcd."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gazette_aio.client.appends.futures import AsyncOperation, OpFuture
from gazette_aio.consumer.application import Progress
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from gazette_aio.client import AsyncJournalClient, JournalClient
    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.message import Publisher
    from gazette_aio.protocol.consumer import GetHintsResponse

_ROOT: Final = "/gazette/consumers/tests"


class StubShard:
    """Shard for tests of stores and applications, without brokers and without Etcd.

    Args:
        spec: Spec of the shard, or its ID.
        root: Root of its key in Etcd.
    """

    def __init__(self, spec: ShardSpec | str, *, root: str = _ROOT) -> None:
        self.spec: ShardSpec = ShardSpec(id=spec) if isinstance(spec, str) else spec
        """Current spec."""
        self.id: str = self.spec.id
        """ID of the shard."""
        self.fqn: str = f"{root}/items/{self.id}"
        """Key of the shard's spec, by which stores fence."""
        self.recovered_hints: GetHintsResponse | None = None
        """Hints of a recovery: none."""
        self.reached: Progress = Progress({}, {})
        """What `progress()` returns, for tests to set."""
        self.primary_loop: OpFuture[None] = AsyncOperation()
        """Pending: the shard is a primary."""
        self.cancelled: asyncio.Event = asyncio.Event()
        """Whether the assignment is lost, for tests to set."""

    def progress(self) -> Progress:
        """Return `reached`."""
        return self.reached

    @property
    def assignment(self) -> Assignment:
        """Raise, because the stub has no assignment.

        Raises:
            UsageError: Always.
        """
        self._refuse("assignment")

    @property
    def client(self) -> JournalClient:
        """Raise, because the stub has no client.

        Raises:
            UsageError: Always.
        """
        self._refuse("client")

    @property
    def appends(self) -> AsyncJournalClient:
        """Raise, because the stub has no append service.

        Raises:
            UsageError: Always.
        """
        self._refuse("appends")

    @property
    def publisher(self) -> Publisher[Any]:
        """Raise, because the stub has no publisher.

        Raises:
            UsageError: Always.
        """
        self._refuse("publisher")

    def _refuse(self, name: str) -> NoReturn:
        raise UsageError(f"a StubShard has no {name}")

    def __repr__(self) -> str:
        return f"<StubShard {self.id!r}>"
