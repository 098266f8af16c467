"""A process of concurrent requests, which kills itself at one step of a shared commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from gazette_aio import IntentLog, Publisher, connect, json_adapter
from gazette_aio.message.publishing import commits
from tests.message.publishing.two_journals import JOURNALS, to

STEPS = ("persist", "decide", "append_intents", "half of append_intents", "mark_written")


def kill_before(log: Any, step: str) -> None:
    """Kill the process before a step of the next commit of several."""

    def killing(call: Any) -> Any:
        async def kill(*args: Any) -> Any:
            if step.startswith("half"):
                appends, intents = args
                await call(appends, intents[:1])
            os.kill(os.getpid(), signal.SIGKILL)

        return kill

    if step.endswith("append_intents"):
        commits.append_intents = killing(commits.append_intents)
    elif step:
        setattr(log, step, killing(getattr(log, step)))


async def main(endpoint: str, path: str, first: int, step: str) -> None:
    """Answer requests, each with the number that it has published."""
    async with connect(endpoint) as client, IntentLog(path) as log:
        publisher = Publisher(client.appends, json_adapter())

        async def answer(number: int) -> None:
            async with publisher.transaction(intents=log):
                for journal in JOURNALS:
                    await publisher.publish_uncommitted(to(journal), {"v": number})
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

        await asyncio.gather(*(answer(number) for number in range(first, first + 30)))
        kill_before(log, step)
        await asyncio.gather(*(answer(number) for number in range(first + 30, first + 60)))


if __name__ == "__main__":
    endpoint, path, first, step = sys.argv[1:]
    asyncio.run(main(endpoint, path, int(first), step))
