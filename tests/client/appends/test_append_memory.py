"""How much memory appends take which can't be sent."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
MOST_RESIDENT = 300 * MIB

SCRIPT = """
import asyncio

from gazette_aio.client import connect


async def main():
    # One who accepts connections, and says nothing.
    accepted = asyncio.Event()
    silent = await asyncio.start_server(lambda *_: accepted.set(), "127.0.0.1", 0)
    address = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    client = connect(address, drain_timeout=0.1)
    for number in range(10_000):
        async with client.appends.append(f"many/{number % JOURNALS:04}") as append:
            append.write(number.to_bytes(2, "big") * (5 << 10))
    await accepted.wait()
    status = client.appends.status()
    assert (status.journals, status.pending_bytes) == (JOURNALS, 10_000 * (10 << 10)), status
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await client.aclose()
    assert loop.time() - begin < 30
    assert client.appends.status().batches == 0
    silent.close()


asyncio.run(main())
lines = open("/proc/self/status").read().splitlines()
(peak,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
print(peak)
"""


@pytest.mark.slow  # It's another process, which imports everything.
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from /proc")
@pytest.mark.parametrize("journals", [1, 1000])
async def test_pending_appends(journals: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.replace("JOURNALS", str(journals)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"GRPC_VERBOSITY": "NONE"},
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    print(f"{int(output) / MIB:.0f} MiB with {journals} journals")  # noqa: T201
    assert int(output) < MOST_RESIDENT
