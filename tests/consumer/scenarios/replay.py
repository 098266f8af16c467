"""Replays recorded scenarios on members, and tells what differs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import signal
import string
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing.specs import create_journals, journal_spec
from tests.consumer.scenarios.commands import comparable, run_command
from tests.consumer.scenarios.comparing import difference
from tests.consumer.scenarios.group import Group, Member
from tests.consumer.scenarios.masks import Masks
from tests.consumer.scenarios.messages import lines, to_dict, to_message, token
from tests.consumer.scenarios.recorded import Log, producer_state
from tests.waiting import eventually

Json = Any
Step = dict[str, Any]

_METHODS: dict[str, tuple[Any, Any]] = {
    "List": (pc.ListRequest, pc.ListResponse),
    "Apply": (pc.ApplyRequest, pc.ApplyResponse),
    "Stat": (pc.StatRequest, pc.StatResponse),
    "GetHints": (pc.GetHintsRequest, pc.GetHintsResponse),
    "Unassign": (pc.UnassignRequest, pc.UnassignResponse),
}
_TRANSPORT_CODES = {
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
}
_PATIENCE_SECONDS = 40.0
"""How long what's to come is waited for, however soon it did when the scenario was recorded."""
_LATE_SECONDS = 60.0
"""How long a history of keys is waited for."""
_ALL = {"cap": 0xFFFFFFFF}


async def replay(client: JournalClient, group: Group, scenario: Json) -> str | None:
    """Replay a scenario; return what differs first, or None."""
    run = _Run(client, group)
    run.since = await group.keys.revision()
    index = -1
    try:
        for index, step in enumerate(scenario["steps"]):
            if (found := await run.difference(step)) is not None:
                return f"step {index}: {found}"
    except Exception as error:  # noqa: BLE001 - Told as what differs.
        return f"step {index}: {type(error).__name__}: {error}"
    finally:
        # Members of `life` may have ended, and their keys are deleted as a whole.
        await run.finish(with_shards=scenario["profile"] != "life")
    return None


class _Run:
    def __init__(self, client: JournalClient, group: Group) -> None:
        self.client = client
        self.group = group
        namespace = "v" + "".join(random.choices(string.ascii_lowercase, k=6))
        self.masks = Masks(group, namespace)
        self.namespace = namespace
        self.since = 0
        self.calls: dict[str, asyncio.Task[Json]] = {}
        self.raw: Json = None
        self.steps: dict[str, Callable[[Step], Coroutine[Any, Any, Json]]] = {
            "poll": self._poll,
            # Time is the subject: a scenario gives it.
            "sleep_ms": lambda step: asyncio.sleep(step["sleep_ms"] / 1000),
            "journals": self._journals,
            "delete_journal": self._delete_journal,
            "append": self._append,
            "read": self._read,
            "await_shard": self._await_shard,
            "await_read": self._await_read,
            "bind_roles": self._bind_roles,
            "state_file": self._state_file,
            "recovery_log": self._recovery_log,
            "etcd_put": self._etcd_put,
            "etcd_delete": lambda step: group.keys.delete(step["etcd_delete"]),
            "etcd_get": self._etcd_get,
            "etcd_bytes": self._etcd_bytes,
            "await_key": self._await_key,
            "mark": self._mark,
            "transcript": self._transcript,
            "start_member": lambda step: group.start(**step["start_member"]),
            "signal_member": self._signal_member,
            "kill_member": self._kill_member,
            "await_exit": self._await_exit,
            "raw_call": self._raw_call,
            "unknown_method": self._unknown_method,
            "begin_call": self._begin_call,
            "end_call": self._end_call,
            "call": self._call,
            "gazctl": self._command,
        }

    async def difference(self, step: Step) -> str | None:
        """Perform a step, and return what differs."""
        found: str | None = None

        async def is_as_expected() -> bool:
            nonlocal found
            outcome = json.loads(json.dumps(await self.step(step)))
            if step.get("columns"):
                # Ours show the primary and the lag unasked, after the reference's columns.
                columns = len(expected["stdout"][0])
                outcome["stdout"] = [row[:columns] for row in outcome["stdout"]]
            found = difference(expected, outcome) if "expect" in step else None
            return found is None

        expected = comparable(step) if "gazctl" in step else step.get("expect")
        if not {"transcript", "state_file", "read"} & step.keys():
            await is_as_expected()
            return found
        # What members write may come later than it did when it was recorded.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LATE_SECONDS):
                await eventually(is_as_expected)
        return found

    async def step(self, step: Step) -> Json:
        expected = {"expect", "until", "note", "capture"}
        bound = self.masks.bind({key: step[key] for key in step if key not in expected})
        for name, perform in self.steps.items():
            if name in step:
                # What is polled for has masks, which are bound when it's compared.
                outcome = await perform({**bound, **_only(step, "poll", "until")})
                for variable, path in step.get("capture", {}).items():
                    self.masks.variables[variable] = _dig(self.raw, path)
                return outcome
        raise AssertionError(f"unknown step {sorted(step)}")

    async def finish(self, *, with_shards: bool) -> None:
        for call in self.calls.values():
            call.cancel()
            await asyncio.wait([call])
        if with_shards:
            shards = [*await self._shards(self.namespace, is_prefix=True)]
            shards += await self._shards(f"/{self.namespace}", is_prefix=True)
            deletes = [{"delete": each.spec.id, "expect_mod_revision": -1} for each in shards]
            for start in range(0, len(deletes), 50):
                request = {"changes": deletes[start : start + 50]}
                await self._stub("Apply")(
                    to_message(pc.ApplyRequest, request), metadata=self._metadata({})
                )
        for prefix in (f"/hints/{self.namespace}/", f"/{self.namespace}/"):
            await self.group.keys.delete(prefix, is_prefix=True)
        listed = await self.client.list(f"name:prefix={self.namespace}")
        await self.client.apply(
            [pb.ApplyRequest.Change(delete=journal.spec.name, expect_mod_revision=-1)
             for journal in listed.journals]
        )  # fmt: skip

    # Journals

    async def _journals(self, step: Step) -> None:
        specs = []
        for journal in step["journals"]:
            labels = dict(journal.get("labels", []))
            if journal.get("content_type"):
                labels["content-type"] = journal["content_type"]
            codec = pb.CompressionCodec.NONE
            specs.append(journal_spec(journal["name"], labels=labels, codec=codec))
        await create_journals(self.client, *specs)

    async def _delete_journal(self, step: Step) -> None:
        change = pb.ApplyRequest.Change(delete=step["delete_journal"], expect_mod_revision=-1)
        await self.client.apply([change])

    async def _append(self, step: Step) -> Json:
        appended = step["append"]
        content = (
            appended["content"].encode() if "content" in appended else lines(appended["messages"])
        )
        commit = (await self.client.append(appended["journal"], content)).commit
        return {"begin": commit.begin, "end": commit.end}

    async def _content(self, journal: str) -> bytes:
        head = (await self.client.append(journal)).commit.end
        content = b""
        if head:
            async with self.client.read(journal, end_offset=head) as reader:
                while piece := await reader.read():
                    content += piece
        return content

    async def _read(self, step: Step) -> Json:
        return self.masks.lines((await self._content(step["read"])).decode())

    # Shards

    async def _shards(
        self, shard: str, member: str | None = None, *, is_prefix: bool = False
    ) -> list[pc.ListResponse.Shard]:
        label = {"name": "id", "value": shard, "prefix": is_prefix}
        request = {"selector": {"include": {"labels": [label]}}}
        message = to_message(pc.ListRequest, request)
        response = await self._stub("List", member)(message, metadata=self._metadata({}))
        return list(response.shards)

    async def _await_shard(self, step: Step) -> None:
        wanted = step["await_shard"]
        seen: list[list[str]] = []

        async def is_reached() -> bool:
            shards = await self._shards(
                wanted["id"], step.get("member"), is_prefix=wanted.get("prefix", False)
            )
            seen[:] = [[pc.ReplicaStatus.Code.Name(x.code) for x in s.status] for s in shards]
            if len(shards) != wanted.get("count", 1):
                return False
            if "codes" in wanted and any(sorted(c) != sorted(wanted["codes"]) for c in seen):
                return False
            if "codes" not in wanted and not all(map(_has_primary, shards)):
                return False
            if "primary" not in wanted:
                return True
            suffix = self._member(wanted["primary"]).suffix
            return not any(s.route.members[s.route.primary].suffix != suffix for s in shards)

        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await eventually(is_reached)
        except TimeoutError:
            raise TimeoutError(f"status of {wanted}: {seen}") from None

    async def _await_read(self, step: Step) -> Json:
        wanted = step["await_read"]
        head = (await self.client.append(wanted["journal"])).commit.end
        source = wanted.get("source", wanted["journal"])
        request = {"shard": wanted["shard"], "read_through": {source: head}}
        response = await self._stub("Stat", step.get("member"))(
            to_message(pc.StatRequest, request),
            metadata=self._metadata(step),
            timeout=_PATIENCE_SECONDS,
        )
        return {
            "status": pc.Status.Name(response.status),
            "read_through": self.masks.mask(dict(response.read_through)),
            "publish_at": self.masks.mask(dict(response.publish_at)),
        }

    async def _bind_roles(self, step: Step) -> None:
        (shard,) = await self._shards(step["bind_roles"])
        primary = shard.route.members[shard.route.primary].suffix
        for member in self.group.members.values():
            self.masks.roles[member.name] = "primary" if member.suffix == primary else "other"

    async def _state_file(self, step: Step) -> Json:
        content = Log(await self._content(step["state_file"])).files.get("/state.json")
        if content is None:
            return {"file": None}
        offsets, state, *rest = map(json.loads, content.decode().splitlines())
        checkpoint = self._checkpoint(rest[0]) if rest else None
        return {"offsets": self.masks.mask(offsets), "state": state, "checkpoint": checkpoint}

    def _checkpoint(self, checkpoint: Json) -> Json:
        sources: dict[str, Json] = {}
        for journal, source in sorted((checkpoint.get("sources") or {}).items()):
            states = [producer_state(each) for each in source.get("producers") or ()]
            sources[self.masks.text(journal)] = {
                "read_through": source.get("read_through", 0),
                "producers": sorted(states, key=lambda each: each["id"]),
            }
        intents: dict[str, Json] = {}
        for journal, content in sorted((checkpoint.get("ack_intents") or {}).items()):
            decoded = base64.b64decode(content).decode().splitlines()
            intents[self.masks.text(journal)] = [self.masks.line(line) for line in decoded]
        return {"sources": sources, "ack_intents": intents}

    async def _recovery_log(self, step: Step) -> Json:
        log = Log(await self._content(step["recovery_log"]))
        return {"authors": len(log.authors), "ops": log.operations, "files": sorted(log.files)}

    # Etcd

    async def _etcd_put(self, step: Step) -> None:
        value = step["value"]
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        await self.group.keys.put(step["etcd_put"], text)

    async def _etcd_get(self, step: Step) -> Json:
        entries = await self.group.keys.below(step["etcd_get"])
        return {
            "keys": {
                self.masks.text(each.key): {
                    "value": self.masks.stored(each),
                    "lease": self.masks.lease(each) is not None,
                }
                for each in entries
            }
        }

    async def _etcd_bytes(self, step: Step) -> Json:
        entry = (await self.group.keys.below(step["etcd_bytes"]))[0]
        return {"hex": entry.value.hex().replace(self.namespace.encode().hex(), "${ns_hex}")}

    async def _await_key(self, step: Step) -> None:
        async def is_as_wanted() -> bool:
            is_there = bool(await self.group.keys.below(step["await_key"]))
            return is_there is not bool(step.get("gone"))

        async with asyncio.timeout(_PATIENCE_SECONDS):
            await eventually(is_as_wanted)

    async def _mark(self, _: Step) -> None:
        self.since = await self.group.keys.revision()

    async def _transcript(self, step: Step) -> Json:
        wanted = step["transcript"]
        under = wanted.get("under", ["members/", "items/", "assign/"])
        prefixes = [f"{self.group.prefix}/{each}" for each in under] + wanted.get("hints", [])
        keys: dict[str, list[Json]] = {}
        revisions: dict[int, list[str]] = {}
        # Shards of other scenarios may have the same members.
        others = re.compile(
            rf"{self.group.prefix}/(items|assign)/(?!/?{self.namespace}\b)/?v[a-z]{{6}}\b"
        )
        for entry in await self.group.keys.history(self.since, prefixes):
            if wanted.get("only", "") not in entry.key and "/members/" not in entry.key:
                continue
            if others.match(entry.key):
                continue
            event: Json = {"op": entry.op}
            if entry.op != "delete":
                event |= {"lease": self.masks.lease(entry), "value": self.masks.stored(entry)}
            name = self.masks.text(entry.key)
            keys.setdefault(name, []).append(event)
            revisions.setdefault(entry.mod_revision, []).append(f"{entry.op} {name}")
        return {
            "keys": keys,
            "transactions": [sorted(each) for each in revisions.values() if len(each) > 1],
            "order": [event for each in revisions.values() for event in each],
        }

    # Members

    def _member(self, name: str | None) -> Member:
        return self.group.member(name, self.masks.roles)

    async def _signal_member(self, step: Step) -> None:
        self.group.members[step["signal_member"]].process.send_signal(signal.SIGTERM)

    async def _kill_member(self, step: Step) -> None:
        await self.group.kill(self.group.members[step["kill_member"]])

    async def _await_exit(self, step: Step) -> Json:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return {"exit": await self.group.members[step["await_exit"]].process.wait()}

    async def _command(self, step: Step) -> Json:
        member = self._member(step.get("member"))
        return self.masks.mask(await run_command(step, member.endpoint, self.group.broker))

    # Calls

    def _stub(self, name: str, member: str | None = None) -> Any:
        return self._member(member).channel.unary_unary(
            f"/consumer.Shard/{name}",
            request_serializer=lambda request: (
                request if isinstance(request, bytes) else request.SerializeToString()
            ),
            response_deserializer=_METHODS[name][1].FromString,
        )

    def _metadata(self, step: Step) -> list[tuple[str, str]]:
        metadata = list((step.get("metadata") or {}).items())
        auth = step.get("auth", _ALL if self.group.auth_keys else "none")
        if auth != "none":
            key = self.group.auth_keys.partition(",")[0]
            metadata.append(("authorization", f"Bearer {token(auth, key)}"))
        return metadata

    async def _call(self, step: Step) -> Json:
        request = to_message(_METHODS[step["call"]][0], step.get("request", {}))
        return await self._answer(step["call"], step, request)

    async def _raw_call(self, step: Step) -> Json:
        request = bytes.fromhex(step["body_hex"]) + step.get("append_utf8", "").encode()
        return await self._answer(step["raw_call"], step, request)

    async def _answer(self, name: str, step: Step, request: Any) -> Json:
        stub = self._stub(name, step.get("member"))
        timeout = step.get("timeout_s", _PATIENCE_SECONDS)
        try:
            response = await stub(request, metadata=self._metadata(step), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return {"error": self._error(error)}
        self.raw = to_dict(response)
        return {"response": self.masks.mask(self.raw)}

    async def _unknown_method(self, step: Step) -> Json:
        call: Any = self._member(None).channel.unary_unary(step["unknown_method"])
        try:
            return {"response_hex": (await call(b"")).hex()}
        except grpc.aio.AioRpcError as error:
            return {"error": self._error(error)}

    def _error(self, error: grpc.aio.AioRpcError) -> Json:
        code = error.code().name
        details = self.masks.text(error.details() or "")
        return {"code": code, "details": "${any}" if code in _TRANSPORT_CODES else details}

    async def _begin_call(self, step: Step) -> None:
        self.calls[step["begin_call"]] = asyncio.create_task(self._call(step))

    async def _end_call(self, step: Step) -> Json:
        return await self.calls[step["end_call"]]

    async def _poll(self, step: Step) -> None:
        found: str | None = "no answer"

        async def is_as_expected() -> bool:
            nonlocal found
            found = difference(step["until"], await self.step(step["poll"]))
            return found is None

        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await eventually(is_as_expected)
        except TimeoutError:
            raise TimeoutError(f"poll: {found}") from None


def _has_primary(shard: pc.ListResponse.Shard) -> bool:
    primary = shard.route.primary
    return bool(primary >= 0 and shard.status[primary].code == pc.ReplicaStatus.PRIMARY)


def _only(step: Step, *keys: str) -> Step:
    return {key: step[key] for key in keys if key in step}


def _dig(value: Json, path: str) -> Json:
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else value[part]
    return value
