"""Members of a consumer as processes of their own, and the Etcd they share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio

from gazette_aio.protocol import consumer as pc
from tests.waiting import eventually

Json = Any

ROOT = Path(__file__).parents[3]
AUTH_KEYS = "c2VjcmV0LWtleQ==,b3RoZXItc2VjcmV0"
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
_SERVES = b" serves at "
_markers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A key, or what happened to it."""

    key: str
    value: bytes
    lease: int
    mod_revision: int
    op: str = ""


class Keys:
    """Keys of an Etcd, over its JSON gateway."""

    def __init__(self, endpoint: str, session: aiohttp.ClientSession) -> None:
        self._endpoint = endpoint
        self._session = session

    async def _post(self, path: str, body: Json) -> Json:
        async with self._session.post(f"{self._endpoint}/v3/{path}", json=body) as response:
            response.raise_for_status()
            return await response.json()

    async def below(self, prefix: str) -> list[Entry]:
        """Return the keys that begin with a prefix."""
        body = {"key": _text(prefix), "range_end": _text(_end(prefix))}
        return [_entry(each) for each in (await self._post("kv/range", body)).get("kvs", [])]

    async def revision(self) -> int:
        """Return the present revision."""
        answer = await self._post("kv/range", {"key": _text("/none")})
        return int(answer["header"]["revision"])

    async def put(self, key: str, value: str | bytes) -> None:
        """Write a key, without a lease."""
        await self._post("kv/put", {"key": _text(key), "value": _text(value)})

    async def delete(self, key: str, *, is_prefix: bool = False) -> None:
        """Delete a key, or all below it."""
        end = {"range_end": _text(_end(key))} if is_prefix else {}
        await self._post("kv/deleterange", {"key": _text(key), **end})

    async def history(self, after: int, prefixes: list[str]) -> list[Entry]:
        """Return what happened after a revision up to now, but for puts of equal assignments."""
        marker = f"/scenario-marker/{next(_markers)}"
        await self.put(marker, "x")
        everything = {"key": _text("\0"), "range_end": _text("\0"), "prev_kv": True}
        body = {"create_request": {**everything, "start_revision": str(after + 1)}}
        found: list[Entry] = []
        async with self._session.post(f"{self._endpoint}/v3/watch", json=body) as response:
            async for line in response.content:
                for event in json.loads(line).get("result", {}).get("events", []):
                    entry = _entry(event["kv"], _op(event))
                    if entry.key == marker:
                        await self.delete(marker)
                        return found
                    is_again = "/assign/" in entry.key and entry.op == "update"
                    is_again = is_again and _value(event.get("prev_kv", {})) == entry.value
                    if entry.key.startswith(tuple(prefixes)) and not is_again:
                        found.append(entry)
        raise AssertionError("the watch ended")


def _op(event: Json) -> str:
    if event.get("type") == "DELETE":
        return "delete"
    pair = event["kv"]
    return "create" if pair.get("create_revision") == pair["mod_revision"] else "update"


def _entry(pair: Json, op: str = "") -> Entry:
    key = base64.b64decode(pair["key"]).decode()
    return Entry(key, _value(pair), int(pair.get("lease", 0)), int(pair["mod_revision"]), op)


def _value(pair: Json) -> bytes:
    return base64.b64decode(pair.get("value", ""))


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _end(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


@dataclasses.dataclass
class Member:
    """A member that runs."""

    name: str
    zone: str
    suffix: str
    endpoint: str
    lease: int
    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel

    @property
    def address(self) -> str:
        """Host and port."""
        return self.endpoint.removeprefix("http://")


class Group:
    """Members that share a prefix."""

    def __init__(self, keys: Keys, etcd: str, broker: str, prefix: str, *, auth: bool) -> None:
        self.keys = keys
        self.prefix = prefix
        self.broker = broker
        self.auth_keys = AUTH_KEYS if auth else ""
        self.members: dict[str, Member] = {}
        self._etcd = etcd

    async def start(self, name: str, zone: str = "local", limit: int = 64, lease: int = 20) -> None:
        """Start a member, and wait until it has announced itself."""
        suffix = f"member-{name}"
        arguments = {
            "consumer.zone": zone,
            "consumer.id": suffix,
            "consumer.host": "127.0.0.1",
            "consumer.bind": "127.0.0.1",
            "consumer.limit": str(limit),
            "consumer.auth-keys": self.auth_keys,
            "etcd.address": self._etcd,
            "etcd.lease": f"{lease}s",
            "etcd.prefix": self.prefix,
            "broker.address": self.broker,
            "log.level": "info",
        }
        with tempfile.TemporaryFile() as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.consumer.scenarios.counter", "serve"),
                *(f"--{flag}={value}" for flag, value in arguments.items()),
                cwd=ROOT,
                stderr=log,
            )
            found: list[Entry] = []

            async def is_announced() -> bool:
                assert process.returncode is None, f"{name} exited"
                # Race: only now do signals end it gracefully, which its key alone doesn't tell.
                if _SERVES not in os.pread(log.fileno(), 1 << 20, 0):
                    return False
                found[:] = await self.keys.below(f"{self.prefix}/members/{zone}#{suffix}")
                return bool(found)

            try:
                await eventually(is_announced)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
        endpoint = pc.ConsumerSpec.FromString(found[0].value).process_spec.endpoint
        channel = grpc.aio.insecure_channel(endpoint.removeprefix("http://"), options=_OPTIONS)
        self.members[name] = Member(name, zone, suffix, endpoint, found[0].lease, process, channel)

    def member(self, name: str | None, roles: dict[str, str]) -> Member:
        """Return the member of a name or role; the first one by default."""
        for member in self.members.values():
            if name in (member.name, roles.get(member.name)):
                return member
        return next(iter(self.members.values()))

    async def kill(self, member: Member) -> None:
        """Kill a member."""
        with contextlib.suppress(ProcessLookupError):
            member.process.send_signal(signal.SIGKILL)
        await member.process.wait()

    async def aclose(self) -> None:
        """Kill the members, and delete their keys."""
        for member in self.members.values():
            await self.kill(member)
            await member.channel.close()
        await self.keys.delete(f"{self.prefix}/", is_prefix=True)


@contextlib.asynccontextmanager
async def group(
    profile: str, keys: Keys, etcd: str, broker: str, prefix: str
) -> AsyncIterator[Group]:
    """Run the members of a profile; those of `life` are started by its scenarios."""
    members = Group(keys, etcd, broker, prefix, auth="auth" in profile)
    try:
        for name in {"life": "", "pair": "ab", "auth_pair": "ab"}.get(profile, "a"):
            await members.start(name)
        yield members
    finally:
        await members.aclose()
