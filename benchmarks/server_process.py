"""A server in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def server_process(module: str) -> AsyncGenerator[str]:
    """Run `python -m module`, and yield its first line.

    It serves until its standard input ends.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        await process.communicate(b"")  # Its standard input ends with that.
