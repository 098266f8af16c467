"""A consumer whose state is recorded, as an application and as a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio import json_adapter
from gazette_aio.consumer import Application, JSONFileStore, main

if TYPE_CHECKING:
    from gazette_aio import Envelope, Publisher
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

Sums = JSONFileStore[dict[str, int]]


class RecordedSum(Application[dict[str, Any], Sums]):
    """Sums the numbers of its shards."""

    def adapter(self, spec: JournalSpec) -> Adapter[dict[str, Any]]:
        """Messages are JSON."""
        return json_adapter()

    def new_store(self, shard: Shard, recorder: Any) -> Sums:
        """Return a store in the recovery log of the shard."""
        return JSONFileStore(recorder, dict[str, int]())

    def consume_message(
        self,
        shard: Shard,
        store: Sums,
        envelope: Envelope[dict[str, Any]],
        publisher: Publisher[Any],
    ) -> None:
        """Add a number."""
        store.state["sum"] = store.state.get("sum", 0) + envelope.message.get("number", 0)


if __name__ == "__main__":
    main(RecordedSum())
