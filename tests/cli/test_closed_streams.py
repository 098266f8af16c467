"""Commands whose standard streams the caller has closed."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

CLOSED = "gazette-aio: stdin or stdout is closed: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("command", "redirection", "code", "error"),
    [
        ("journals append test/journal", "<&-", 1, CLOSED),
        ("journals apply", "<&-", 1, CLOSED),
        ("attach-uuids", "<&-", 1, CLOSED),
        ("journals list", ">&-", 1, CLOSED),
        ("journals list -o json", ">&-", 1, CLOSED),
        ("journals read test/journal", ">&-", 1, CLOSED),
        ("journals read -l name=test/journal", ">&-", 1, CLOSED),
        ("journals list", "<&- 2>&-", 0, ""),
        ("journals list -o unknown", "2>&- >&-", 2, ""),
    ],
)
async def test_a_closed_stream_is_named(
    command: str,
    redirection: str,
    code: int,
    error: str,
    gazette_broker: Any,
    gazette_client: Any,
    journal: str,
) -> None:
    await gazette_client.append(journal, b"content\n")
    process = await asyncio.create_subprocess_shell(
        f"exec {sys.executable} -m gazette_aio {command} {redirection}",
        env=os.environ | {"BROKER_ADDRESS": gazette_broker.endpoint},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (code, error)
    assert (b"test/journal" in out) == (code == 0)
