"""Foreign keys and values among those of a group of consumers, on a real Etcd.

Invariants: no member ends, nor does a new one when it loads the keys; no decoder fails by an
error of another kind than its own; and once the foreign keys are gone, each shard has one replica.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.attacks.decoders import mutated
from benchmarks.soaks.invariant import BrokenInvariantError, require
from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.keyspace.etcd.messages import key_bytes, key_text
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS, Compare, Delete, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from gazette_aio.testing.etcd_process import EtcdProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.consumer.keyspace.store import KeyValueStore

_KEYS: Final = GroupKeys("/group")
_SHARDS: Final = tuple(f"shard-{number}" for number in range(5))
_MEMBERS: Final = ("member-a", "member-b")
_NUMBERS: Final = (0, 1, 2, 3, 127, 128, 2**31 - 1, 2**32 - 1)
_READY: Final = ReplicaStatus(code=ReplicaStatus.PRIMARY).SerializeToString()
_KEPT_KEYS: Final = 600
"""Foreign keys that are there at a time, about."""
_DOOMED: Final = 0.1
_SETTLE_SECONDS: Final = 30.0


def _member(suffix: str, limit: int) -> ConsumerSpec:
    spec = ConsumerSpec(shard_limit=limit)
    spec.process_spec.id.zone, spec.process_spec.id.suffix = "zone", suffix
    spec.process_spec.endpoint = "http://127.0.0.1:1"
    return spec


def _shard(name: str) -> ShardSpec:
    spec = ShardSpec(id=name)
    spec.sources.add(journal="a/journal")
    spec.max_txn_duration.seconds = 1
    return spec


def _sound(rng: random.Random) -> tuple[str, bytes]:
    """Return a key and a value that mean something, or nearly."""
    match rng.randrange(3):
        case 0:
            suffix = f"fake-{rng.randrange(9)}"
            member = _member(suffix, rng.choice(_NUMBERS))
            member.exiting = rng.random() < 0.2
            return _KEYS.member("zone", suffix), member.SerializeToString()
        case 1:
            spec = _shard(f"fake-shard-{rng.randrange(99)}")
            spec.hint_backups = min(rng.choice(_NUMBERS), 2**31 - 1)
            spec.hot_standbys = rng.choice(_NUMBERS)
            spec.ring_buffer_size, spec.read_channel_size = rng.choices(_NUMBERS, k=2)
            return _KEYS.item(spec.id), spec.SerializeToString()
        case _:
            shard = rng.choice((*_SHARDS, "fake-shard-1", "none"))
            suffix = rng.choice((*_MEMBERS, "fake-1", "none"))
            slot = rng.choice((0, 1, 2, 10**9 - 1, 10**9, 10 ** rng.randrange(5000)))
            status = ReplicaStatus(code=ReplicaStatus.Code.Name(rng.randrange(0, 5) * 100))
            key = _KEYS.assignment(shard, "zone", suffix, 0).removesuffix("0")
            return key + _digits(slot), status.SerializeToString()


def _digits(number: int) -> str:
    # The interpreter refuses to convert numbers of so many digits.
    return str(number) if number < 10**4000 else "9" * 5000


def foreign(rng: random.Random) -> Put:
    """Return what another program may write among the keys of a group."""
    key, value = _sound(rng)
    name = key_bytes(key)
    if rng.random() < 0.5:
        value = mutated(rng, (value,))
    if rng.random() < 0.3:
        name = _KEYS.prefix.encode() + mutated(rng, (name.removeprefix(_KEYS.prefix.encode()),))
    return Put(key_text(name), value)


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    failures = _Failures()
    logger = logging.getLogger("gazette_aio")
    logger.addHandler(failures)
    try:
        async with AsyncExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            etcd = EtcdProcess(Path(directory) / "etcd")
            await asyncio.to_thread(etcd.start)
            stack.callback(etcd.stop)
            options = EtcdOptions(endpoints=(etcd.endpoint,))
            store = await stack.enter_async_context(EtcdStore(options))
            count = await _attack(store, rng, duration)
    finally:
        logger.removeHandler(failures)
    require(not failures.texts, "\n".join(failures.texts))
    print(f"keys of groups: {count} keys, intact", flush=True)


class _Failures(logging.Handler):
    """Keeps errors of decoders that weren't foreseen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.texts.append(self.format(record))


async def _attack(store: KeyValueStore, rng: random.Random, duration: float) -> int:
    specs = {name: _shard(name).SerializeToString() for name in _SHARDS}
    await store.transact([], [Put(_KEYS.item(name), spec) for name, spec in specs.items()])
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                MemberSession(store, _KEYS, _member(each, 100), apply_delay_seconds=0)
            )
            for each in _MEMBERS
        ]
        writing = asyncio.create_task(_write(store, rng, duration, members))
        waits = [asyncio.create_task(each.wait()) for each in members]
        try:
            await asyncio.wait([writing, *waits], return_when=asyncio.FIRST_COMPLETED)
            ended = [each for each in waits if each.done()]
            require(not ended, f"members have ended: {ended}")
            return writing.result()
        finally:
            for task in (writing, *waits):
                task.cancel()
            await asyncio.wait([writing, *waits])


async def _write(
    store: KeyValueStore, rng: random.Random, duration: float, members: Sequence[MemberSession]
) -> int:
    own = [_KEYS.item(name) for name in _SHARDS] + [_KEYS.member("zone", x) for x in _MEMBERS]
    count, present, end = 0, dict[str, None](), time.monotonic() + duration
    while not count or time.monotonic() < end:
        puts = {put.key: put for put in (foreign(rng) for _ in range(64)) if put.key not in own}
        present |= dict.fromkeys(puts)
        doomed = [key for key in present if key not in puts and rng.random() < _DOOMED]
        doomed = doomed[: 60 if len(present) > _KEPT_KEYS else 8]
        for key in doomed:
            del present[key]
        destroyed = Put(rng.choice(own), b"\xff", ignore_lease=True)
        operations = [destroyed, *puts.values(), *map(Delete, doomed)]
        result = await store.transact([], operations)
        count += len(puts)
        await members[0].key_space.wait_for_revision(result.header.revision)
    async with MemberSession(store, _KEYS, _member("member-c", 100)):
        keys = list(present)
        for begin in range(0, len(keys), MAX_OPERATIONS):
            await store.transact([], [Delete(key) for key in keys[begin : begin + MAX_OPERATIONS]])
    end = time.monotonic() + _SETTLE_SECONDS
    while not await _is_settled(store, members[0]):
        if time.monotonic() > end:
            stored = (await store.range(_KEYS.prefix)).entries
            raise BrokenInvariantError(f"the group doesn't come to rest: {stored}")
        await asyncio.sleep(0.05)
    return count


async def _is_settled(store: KeyValueStore, session: MemberSession) -> bool:
    stored = (await store.range(f"{_KEYS.root}/assign/")).entries
    for entry in stored:
        if entry.value != _READY:  # Replicas of vanished members stay until others have caught up.
            unchanged = Compare.mod_revision(entry.key, entry.mod_revision)
            await store.transact([unchanged], [Put(entry.key, _READY, ignore_lease=True)])
    held = [assignment for shard in _SHARDS for assignment in session.group.assignments(shard)]
    return len(stored) == len(held) == len(_SHARDS) and not any(each.slot for each in held)
