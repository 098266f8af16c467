"""Mutated and forged tokens: none that was changed is accepted."""

from __future__ import annotations

import base64
import random
import time
from datetime import timedelta

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import require


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    auth = pb.KeyedAuth(base64.b64encode(rng.randbytes(32)).decode())
    other = pb.KeyedAuth(base64.b64encode(rng.randbytes(32)).decode())
    claims = pb.Claims(capability=pb.Capability.READ)
    sound = auth.sign(claims, timedelta(hours=1), time.time())
    forged = other.sign(claims, timedelta(hours=1), time.time())
    require(_is_accepted(auth, sound), "a sound token is refused")
    require(not _is_accepted(auth, forged), "a token of another key is accepted")
    end, count = time.monotonic() + duration, 0
    while time.monotonic() < end:
        data = bytearray(rng.choice((sound, forged)).encode())
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[place] = rng.randrange(33, 127)
            else:
                del data[place : place + rng.randrange(1, 9)]
        token = data.decode()
        count += 1
        require(token == sound or not _is_accepted(auth, token), f"accepted: {token}")
    print(f"tokens: {count} refused, intact", flush=True)


def _is_accepted(auth: pb.KeyedAuth, token: str) -> bool:
    try:
        auth.verify(f"Bearer {token}", pb.Capability.READ, time.time())
    except pb.AuthorizationError:
        return False
    return True
