"""A process that publishes numbered rows exactly once, and stops itself at one step of a commit."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Any

from gazette_aio import Fence, FencedError, IntentLog, Publisher, connect, json_adapter
from gazette_aio.message.publishing import commits, intents
from gazette_aio.protocol.errors import LockedError

STEPS = ("publish", "persist", "decide", "acknowledge", "mark_written")
FENCED, LOCKED = 3, 4
NDJSON = "application/x-ndjson"


async def publish(options: argparse.Namespace) -> None:
    """Publish the rows that the log doesn't know of."""
    fence = Fence(options.fence, "rows") if options.fence else None
    async with (
        connect(options.broker) as client,
        IntentLog(options.log, fence=fence, lock_timeout=options.lock_timeout) as log,
    ):
        publisher = Publisher(client.appends, json_adapter())
        state = await log.recover(client.appends)
        assert state is None or isinstance(state, dict)
        for row in range(state["rows"] if state else 0, options.rows):
            is_halting = row == options.halt_at
            async with publisher.transaction(intents=log) as open_transaction:
                for number, journal in enumerate(options.journals):
                    await publisher.publish_uncommitted(
                        lambda _, journal=journal: (journal, NDJSON), {"row": row}
                    )
                    if is_halting and options.step == "publish" and number == 0:
                        await publisher.flush()
                        os.kill(os.getpid(), options.signal)
                open_transaction.state = {"rows": row + 1}
                if is_halting:
                    halt_before(log, options)


def halt_before(log: IntentLog, options: argparse.Namespace) -> None:
    """Have the process stop before a step of the commit."""

    def halting(call: Any):
        async def halt(*args: Any):
            os.kill(os.getpid(), options.signal)
            return await call(*args)

        return halt

    if options.step == "acknowledge":
        commits.append_intents = halting(intents.append_intents)
    elif options.step != "publish":
        setattr(log, options.step, halting(getattr(log, options.step)))


def main() -> int:
    """Run one process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--fence")
    parser.add_argument("--lock-timeout", type=float, default=0.0)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--halt-at", type=int)
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--signal", type=lambda name: signal.Signals[name])
    parser.add_argument("journals", nargs="+")
    try:
        asyncio.run(publish(parser.parse_args()))
    except FencedError:
        return FENCED
    except LockedError as error:
        sys.stderr.write(str(error))
        return LOCKED
    return 0


if __name__ == "__main__":
    sys.exit(main())
