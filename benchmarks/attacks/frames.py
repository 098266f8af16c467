"""Malformed HTTP/2: cut and changed frames, header blocks without end, floods of resets, odd paths.

Invariants: another client is served all the time, and what was acknowledged to it is there; and the
broker's memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from benchmarks.attacks.bystander import MIB, Bystander, resident_bytes
from benchmarks.attacks.clients import fork
from benchmarks.attacks.raw_http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    LONGEST_FRAME,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    connected,
    frame,
    grpc_message,
    request_headers,
)
from benchmarks.soaks.invariant import require
from gazette_aio import connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

_PING, _CONTINUATION = 6, 9
_JOURNAL = "attack/frames"
_PATHS = tuple(f"/protocol.Journal/{name}".encode() for name in ("Read", "Append", "List", "None"))
_OPENING = PREFACE + frame(SETTINGS, 0, 0)
_MOST_BYTES: Final = 256 * MIB
"""Memory by which the broker may grow: that of many attackers at once, and of the allocator."""


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    counts = dict.fromkeys((way.__name__.strip("_") for way in _WAYS), 0)
    with tempfile.TemporaryDirectory() as directory:
        process = BrokerProcess(directory, options=["--fsync=off"])
        async with process as broker, connect(broker.endpoint) as client:
            await create_journals(client, journal_spec(_JOURNAL))
            bystander = Bystander(client, _JOURNAL)
            await bystander.append()
            before = resident_bytes(broker.pid)
            end = time.monotonic() + duration
            while time.monotonic() < end:
                async with asyncio.TaskGroup() as group:
                    for way in rng.choices(_WAYS, _WEIGHTS, k=8):
                        counts[way.__name__.strip("_")] += 1
                        data = b"".join(way(rng))
                        group.create_task(_send(broker.endpoint, data, fork(rng)))
                    group.create_task(bystander.append())
                grown = resident_bytes(broker.pid) - before
                require(grown < _MOST_BYTES, f"the broker has grown by {grown // MIB} MiB")
            await bystander.check()
    print(f"frames: {counts}, {bystander.appends} appends beside them, intact", flush=True)


async def _send(endpoint: str, data: bytes, rng: random.Random) -> None:
    """Send bytes over a new connection, which is cut some time after."""
    # Refused: the server is started anew after an odd path.
    with contextlib.suppress(ConnectionError):
        async with connected(endpoint) as raw:
            await raw.send(data)
            await asyncio.sleep(rng.choice((0, 0.001, 0.02)))


def _cut(rng: random.Random) -> Iterable[bytes]:
    """Make the frames of some RPCs up to any byte."""
    data = b"".join(_calls(rng))
    yield _OPENING + data[: rng.randrange(len(data))]


def _changed(rng: random.Random) -> Iterable[bytes]:
    """Make the frames of some RPCs with some bytes changed."""
    data = bytearray(_OPENING + b"".join(_calls(rng)))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(PREFACE), len(data))] = rng.randrange(256)
    yield data


def _calls(rng: random.Random) -> Iterable[bytes]:
    for number in range(rng.randrange(1, 6)):
        stream = 2 * number + 1
        yield frame(HEADERS, END_HEADERS, stream, request_headers(rng.choice(_PATHS)))
        request = grpc_message(pb.ReadRequest(journal=_JOURNAL, block=True))
        claimed = b"\0" + rng.getrandbits(32).to_bytes(4) + rng.randbytes(rng.randrange(60))
        yield frame(DATA, rng.randrange(2), stream, rng.choice((request, claimed)))


def _resets(rng: random.Random) -> Iterable[bytes]:
    """Begin RPCs, and reset each at once."""
    headers = request_headers(rng.choice(_PATHS))
    reset = rng.choice((0, 1, 8)).to_bytes(4)
    yield _OPENING
    for stream in range(1, 2 * rng.randrange(1, 400), 2):
        yield frame(HEADERS, END_HEADERS, stream, headers) + frame(RST_STREAM, 0, stream, reset)


def _endless_headers(rng: random.Random) -> Iterable[bytes]:
    """Begin a block of headers, and continue it without an end."""
    yield _OPENING + frame(HEADERS, 0, 1, request_headers(_PATHS[0]))
    for _ in range(rng.randrange(1, 100)):
        yield frame(_CONTINUATION, 0, 1, rng.randbytes(rng.choice((0, 1, LONGEST_FRAME))))


def _control(rng: random.Random) -> Iterable[bytes]:
    """Flood with settings and pings, and overflow windows."""
    yield _OPENING
    for _ in range(rng.randrange(1, 1000)):
        yield rng.choice(
            (
                frame(SETTINGS, 0, 0),
                frame(_PING, 0, 0, bytes(8)),
                frame(WINDOW_UPDATE, 0, 0, rng.getrandbits(31).to_bytes(4)),
            )
        )


def _odd_path(rng: random.Random) -> Iterable[bytes]:
    """Call a method whose name isn't UTF-8, or isn't one at all."""
    path = b"/protocol.Journal" + rng.choice((b"\xdd", b"/", b"", b"/Read\0")) + rng.randbytes(3)
    yield _OPENING + frame(HEADERS, END_HEADERS, 1, request_headers(path))


_WAYS = (_cut, _changed, _resets, _endless_headers, _control, _odd_path)
_WEIGHTS = (20, 20, 10, 10, 10, 1)
