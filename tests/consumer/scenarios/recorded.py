"""What shards wrote: the operations and files of recovery logs, and messages of journals."""

from __future__ import annotations

import base64
import json
from typing import Any

from gazette_aio.protocol.recoverylog import RecordedOp
from tests.consumer.scenarios.messages import CLOCK0, uuid_parts

Json = Any

_MAGIC = bytes.fromhex("66339336")


class Log:
    """Operations of a recovery log in order, without those that races lose: there's no race."""

    def __init__(self, content: bytes) -> None:
        self.operations: list[list[str | None]] = []
        self.authors: set[int] = set()
        self._links: dict[str, int] = {}
        self._contents: dict[int, bytearray] = {}
        while content:
            content = self._apply(content)

    def _apply(self, content: bytes) -> bytes:
        assert content[:4] == _MAGIC
        end = 8 + int.from_bytes(content[4:8], "little")
        operation = RecordedOp.FromString(content[8:end])
        rest = content[end:]
        if operation.author:
            self.authors.add(operation.author)
        told: list[str | None]
        if operation.HasField("create"):
            told = ["create", operation.create.path]
            self._links[operation.create.path] = operation.seq_no
            self._contents[operation.seq_no] = bytearray()
        elif operation.HasField("link"):
            told = ["link", operation.link.path]
            self._links[operation.link.path] = operation.link.fnode
        elif operation.HasField("unlink"):
            told = ["unlink", operation.unlink.path]
            self._links.pop(operation.unlink.path, None)
        elif operation.HasField("write"):
            write = operation.write
            held = self._contents[write.fnode]
            held[write.offset : write.offset + write.length] = rest[: write.length]
            rest = rest[write.length :]
            told = ["write", next((p for p, f in self._links.items() if f == write.fnode), None)]
        else:
            told = ["handoff" if operation.author else "no-op"]
        if told[0] != "write" or self.operations[-1:] != [told]:
            self.operations.append(told)
        return rest

    @property
    def files(self) -> dict[str, bytes]:
        """Files at the end, by path."""
        return {path: bytes(self._contents[fnode]) for path, fnode in self._links.items()}


def producer_state(producer: Json) -> Json:
    """Return the state of a producer of a checkpoint, with its clock as a tick."""
    state = dict(producer.get("state", {}))
    if (clock := state.get("last_ack", 0)) >= CLOCK0 - 1:
        tick, rest = divmod(clock - CLOCK0 + 1, 160)
        less_or_more = {0: " - 1", 1: ""}.get(rest, f" + {rest - 1}")
        state["last_ack"] = f"tick {tick}{less_or_more}"
    return {"id": base64.b64decode(producer["id"]).hex(), **state}


def message_and_clock(line: str) -> tuple[Json, int]:
    """Return a line of a journal as scenarios show it, and its clock."""
    message = json.loads(line)
    producer, clock, flags = uuid_parts(message.pop("uuid"))
    return {"producer": producer, "flags": flags, **message}, clock
