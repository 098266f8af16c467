"""Publishing and reading beside a Go client; the package's docstring has its arguments."""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from benchmarks.harness import Run, Subject, measure
from benchmarks.measures.events import JOURNAL, publish_transactions, served_journals
from benchmarks.peers.ours import ABOUT, TRANSACTION, WORKLOAD, Form, publishing, reading

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


def go(count: int, *arguments: str) -> Run:
    """Return what runs the program, and returns its messages per second."""

    async def run() -> float:
        program = os.environ["GAZETTE_GO_BENCH"]
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{program} {arguments[0]} exited with {process.returncode}")
        seen, seconds = output.split()
        assert int(seen) == count, seen
        return count / float(seconds)

    return run


async def published(batches: bool) -> AsyncGenerator[Subject]:
    """Publish the same messages by both."""
    messages = WORKLOAD.messages()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        encode = msgspec.json.Encoder().encode
        file.writelines(encode(message) + b"\n" for message in messages)
        file.flush()
        async with served_journals(JOURNAL) as client:
            yield Subject(
                publishing(client, messages, batches=batches),
                go(
                    len(messages),
                    "publish",
                    client.endpoint,
                    JOURNAL,
                    file.name,
                    str(TRANSACTION),
                ),
            )


async def read(form: Form) -> AsyncGenerator[Subject]:
    """Read the same messages by both."""
    messages = WORKLOAD.messages()
    async with served_journals(JOURNAL) as client:
        head = await publish_transactions(client, WORKLOAD.kind, messages, TRANSACTION)
        yield Subject(
            reading(client, len(messages), form),
            go(len(messages), "read", client.endpoint, JOURNAL, str(head)),
        )


for name, goal, own, setup in (
    ("publish", 0.65, "publish_uncommitted", partial(published, False)),
    ("publish_batch", 1.5, "publish_uncommitted_batch", partial(published, True)),
    ("read", None, "ReadCommittedIter", partial(read, "items")),
    ("read_batches", None, "batches()", partial(read, "batches")),
):
    measure(
        f"peers.{name}.go",
        goal=goal,
        unit="msg/s",
        about=f"{own} {ABOUT}, against the program at GAZETTE_GO_BENCH",
    )(setup)
