"""Member of the soak of consumers: it counts numbers by key, and publishes each of them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio import ACK_TXN, json_adapter
from gazette_aio.consumer import Application, JSONFileStore, main

if TYPE_CHECKING:
    from gazette_aio import Envelope, Publisher
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

OUT = "soak/out"
LINES = "application/x-ndjson"


class Number(msgspec.Struct):
    """A number of a key. Those of a key ascend by one."""

    key: str
    number: int


Counts = dict[str, int]


class Counting(Application[Number, JSONFileStore[Counts]]):
    """Holds the last number of each key, and refuses any but the next one."""

    def adapter(self, spec: JournalSpec) -> Adapter[Number]:
        return json_adapter(Number)

    def output_adapter(self, shard: Shard) -> Adapter[Number]:
        return json_adapter(Number)

    def new_store(self, shard: Shard, recorder: Any) -> JSONFileStore[Counts]:
        return JSONFileStore(recorder, Counts(), loads=msgspec.json.Decoder(Counts).decode)

    async def consume_message(
        self,
        shard: Shard,
        store: JSONFileStore[Counts],
        envelope: Envelope[Number],
        publisher: Publisher[Number],
    ) -> None:
        if envelope.flags == ACK_TXN:
            return
        message = envelope.message
        last = store.state.get(message.key, 0)
        if message.number != last + 1:
            raise ValueError(f"BROKEN: {message.number} of {message.key} follows {last}")
        store.state[message.key] = message.number
        await publisher.publish_uncommitted(lambda _: (OUT, LINES), message)


if __name__ == "__main__":
    main(Counting())
