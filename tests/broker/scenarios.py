"""Replays recorded scenarios on a broker, over plain gRPC and HTTP, and tells what differs."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from tests.broker.gateway.http_steps import HttpSteps
from tests.waiting import eventually

Json = Any
Step = dict[str, Any]

_UNARY, _DOWN, _UP, _BOTH = "unary_unary", "unary_stream", "stream_unary", "stream_stream"
_METHODS: dict[str, tuple[Any, Any, str]] = {
    "List": (pb.ListRequest, pb.ListResponse, _DOWN),
    "Apply": (pb.ApplyRequest, pb.ApplyResponse, _UNARY),
    "Read": (pb.ReadRequest, pb.ReadResponse, _DOWN),
    "Append": (pb.AppendRequest, pb.AppendResponse, _UP),
    "Replicate": (pb.ReplicateRequest, pb.ReplicateResponse, _BOTH),
    "ListFragments": (pb.FragmentsRequest, pb.FragmentsResponse, _UNARY),
    "FragmentStoreHealth": (
        pb.FragmentStoreHealthRequest,
        pb.FragmentStoreHealthResponse,
        _UNARY,
    ),
}
_TRANSPORT_CODES = {
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
}
_STORE_STEPS = ("put_file", "files", "mkdir", "rmdir")
_PENDING = {"pending": True}
_PATIENCE_SECONDS = 40.0
"""How long what's to come is waited for, however soon it did when the scenario was recorded."""
_counter = itertools.count()


@dataclasses.dataclass(frozen=True)
class Target:
    """A broker to replay on."""

    address: str
    """Of its gRPC service."""
    endpoint: str
    zone: str
    suffix: str
    file_root: Path | None = None
    auth_key: str | None = None
    http_address: str | None = None
    """Of its HTTP gateway; `address` if None."""


def needs_store(scenario: Json) -> bool:
    """Return whether a scenario touches files below the broker's file root."""
    return any(key in step for step in scenario["steps"] for key in _STORE_STEPS)


async def replay(
    target: Target, scenario: Json, *, poll_seconds: float | None = None
) -> str | None:
    """Replay a scenario; return what differs first, or None.

    `poll_seconds` bounds how long a step polls for what it awaits.
    """
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target.address, options=options) as channel:
        run = _Run(target, channel, poll_seconds)
        index = -1
        try:
            for index, step in enumerate(scenario["steps"]):
                outcome = await run.step(step)
                if (difference := _judge(step, outcome)) is not None:
                    return f"step {index}: {difference}"
        except Exception as error:  # noqa: BLE001 - Told as what differs.
            return f"step {index}: {type(error).__name__}: {error}"
        finally:
            await run.finish()
    return None


def _judge(step: Step, outcome: Json) -> str | None:
    if "expect" in step:
        return difference(step["expect"], outcome)
    alternatives = step.get("expect_any", [])
    differences = [difference(expected, outcome) for expected in alternatives]
    return None if None in differences or not differences else f"none of: {differences}"


class _Stream:
    """An RPC which was begun by a step, and goes on behind later ones."""

    def __init__(self, call: Any, received: asyncio.Queue[Any]) -> None:
        self.call = call
        self.received = received
        self.pump: asyncio.Task[None] | None = None


class _Run:
    def __init__(
        self, target: Target, channel: grpc.aio.Channel, poll_seconds: float | None
    ) -> None:
        self.poll_seconds = poll_seconds
        self.target = target
        self.channel = channel
        self.variables: dict[str, Any] = {
            "ns": f"t{os.getpid() % 100000}x{next(_counter)}q",
            "zone": target.zone,
            "suffix": target.suffix,
        }
        self.streams: dict[str, _Stream] = {}
        self.revisions: dict[int, int] = {}
        self.raw: Json = None
        self.http = HttpSteps(target.http_address or target.address, self._unbind_text)

    async def step(self, step: Step) -> Json:
        plain = {
            k: v for k, v in step.items() if k not in ("expect", "expect_any", "poll", "until")
        }
        bound = self._bind(plain)
        bound.update({key: step[key] for key in ("poll", "until") if key in step})
        if "recv" in step:
            expected = [step.get("expect"), *step.get("expect_any", ())]
            nothing = any(each and each.get("end") == _PENDING for each in expected)
            bound["within_s"] = step["within_s"] if nothing else _PATIENCE_SECONDS
        outcome = await self._perform(bound)
        for normalization in step.get("normalize", ()):
            outcome = self._normalize(normalization, outcome)
        for name, path in step.get("capture", {}).items():
            self.variables[name] = _dig(self.raw, path)
        return _fold_headers(outcome)

    async def finish(self) -> None:
        for stream in self.streams.values():
            stream.call.cancel()
            if stream.pump is not None:
                stream.pump.cancel()
                await asyncio.wait([stream.pump])
        prefix = {"name": "name", "value": self.variables["ns"], "prefix": True}
        request = {"selector": {"include": {"labels": [prefix]}}}
        names: list[str] = []
        call = self._stub("List")(to_message(pb.ListRequest, request), metadata=self._metadata({}))
        async for response in call:
            names += [journal.spec.name for journal in response.journals]
        for batch in _batches(names):
            deletes = [{"delete": name, "expect_mod_revision": -1} for name in batch]
            message = to_message(pb.ApplyRequest, {"changes": deletes})
            await self._stub("Apply")(message, metadata=self._metadata({}))

    # Variables

    def _bind(self, value: Json) -> Json:
        if isinstance(value, str):
            whole = re.fullmatch(r"\$\{([^}]+)\}", value)
            if whole and whole[1] in self.variables:
                return self.variables[whole[1]]
            return re.sub(r"\$\{([^}]+)\}", lambda m: str(self.variables.get(m[1], m[0])), value)
        if isinstance(value, list):
            return [self._bind(item) for item in value]
        if isinstance(value, dict):
            return {self._bind(key): self._bind(item) for key, item in value.items()}
        return value

    def _unbind_text(self, text: str) -> str:
        text = text.replace(self.variables["ns"], "${ns}").replace(
            self.target.endpoint, "${endpoint}"
        )
        text = text.replace(self.target.suffix, "${suffix}")
        text = text.replace(f'zone:"{self.target.zone}"', 'zone:"${zone}"')
        if "cluster" in self.variables:
            text = text.replace(str(self.variables["cluster"]), "${cluster}")
        return text

    def _unbind(self, value: Json, key: str = "") -> Json:
        match value:
            case dict():
                if value == {"zone": self.target.zone, "suffix": self.target.suffix}:
                    return "${process_id}"
                if key == "etcd" and value.get("cluster_id"):
                    valid = all(value.get(k) for k in ("member_id", "raft_term", "revision"))
                    return "${etcd}" if valid else value
                return {name: self._unbind(item, name) for name, item in value.items()}
            case list():
                return [self._unbind(item, key) for item in value]
            case bytes():
                if len(value) > 420:
                    return {"len": len(value), "sha1": hashlib.sha1(value).hexdigest()}
                try:
                    return {"utf8": self._unbind_text(value.decode())}
                except UnicodeDecodeError:
                    return {"hex": value.hex()}
            case str():
                return self._unbind_text(value)
            case int() if key in ("mod_revision", "create_revision"):
                number = self.revisions.setdefault(value, len(self.revisions) + 1)
                return f"${{rev.{number}}}"
            case int() if key == "mod_time" and value > 10**9:
                return "${mod_time}"
            case _:
                return value

    def _normalize(self, how: str, outcome: Json) -> Json:
        match how:
            case "header_any":
                return _replace_key(outcome, "header", "${any}")
            case "route_any":
                for message in outcome.get("messages", ()):
                    for journal in message.get("journals", ()):
                        journal["route"] = "${route}"
                return outcome
            case "list_summary":
                messages = outcome["messages"]
                names = [j["spec"]["name"] for m in messages for j in m.get("journals", ())]
                return {
                    "journals_per_message": [len(m.get("journals", ())) for m in messages],
                    "headers": [m.get("header") for m in messages],
                    "sorted": names == sorted(names),
                    "end": outcome["end"],
                }
            case "utc_date_hour":
                now = time.gmtime()
                text = json.dumps(outcome)
                text = text.replace(time.strftime("date=%Y-%m-%d", now), "date=${utc_date}")
                text = text.replace(time.strftime("hour=%H", now), "hour=${utc_hour}")
                return json.loads(text)
            case "status_only" | "json_lines":
                return self.http.normalize(how, outcome)
            case "file_root":
                return json.loads(json.dumps(outcome).replace(str(self._root()), "${file_root}"))
            case _:
                raise AssertionError(f"unknown normalization {how}")

    def _metadata(self, step: Step) -> list[tuple[str, str]]:
        metadata = list((step.get("metadata") or {}).items())
        auth = step.get("auth")
        if auth is None and self.target.auth_key is not None:
            auth = {"cap": 0xFFFFFFFF, "exp_in_s": 600}
        if isinstance(auth, dict):
            metadata.append(("authorization", f"Bearer {_token(auth, self.target.auth_key)}"))
        return metadata

    # Steps

    async def _perform(self, step: Step) -> Json:
        for name, perform in self._performers().items():
            if name in step:
                return await perform(step)
        raise AssertionError(f"unknown step {sorted(step)}")

    def _performers(self) -> dict[str, Callable[[Step], Coroutine[Any, Any, Json]]]:
        return {
            "poll": self._poll,
            "call": self._call,
            "recv": self._recv,
            "send": self._send,
            "half_close": self._half_close,
            "finish": self._finish_call,
            "cancel": self._cancel,
            "raw_call": self._raw_call,
            "await_route": self._await_route,
            # Time is the subject: a scenario gives it.
            "sleep_ms": lambda step: asyncio.sleep(step["sleep_ms"] / 1000),
            "compute": self._compute,
            "now": self._now,
            "put_file": self._put_file,
            "mkdir": self._mkdir,
            "rmdir": self._rmdir,
            "files": self._files,
            "http": lambda step: self.http.http(step, self._metadata(step)),
            "http_raw": self.http.http_raw,
        }

    async def _poll(self, step: Step) -> None:
        within = self.poll_seconds or max(step.get("within_s", 20), _PATIENCE_SECONDS)
        found: str | None = "no answer"

        async def is_as_expected() -> bool:
            nonlocal found
            found = difference(step["until"], await self.step(step["poll"]))
            return found is None

        try:
            async with asyncio.timeout(within):
                await eventually(is_as_expected)
        except TimeoutError:
            raise TimeoutError(f"poll: {found}") from None

    async def _await_route(self, step: Step) -> None:
        label = {"name": "name", "value": step["await_route"]}
        request = to_message(pb.ListRequest, {"selector": {"include": {"labels": [label]}}})

        async def is_routed() -> bool:
            call = self._stub("List")(request, metadata=self._metadata({}))
            journals = [journal async for response in call for journal in response.journals]
            return any(each.route.members and each.route.primary >= 0 for each in journals)

        async with asyncio.timeout(_PATIENCE_SECONDS):
            await eventually(is_routed)

    async def _compute(self, step: Step) -> None:
        for name, formula in step["compute"].items():
            base, _, addend = formula.partition("+")
            self.variables[name] = self.variables[base] + int(addend)

    async def _now(self, step: Step) -> None:
        for name, addend in step["now"].items():
            self.variables[name] = int(time.time()) + addend

    async def _raw_call(self, step: Step) -> Json:
        call = self.channel.unary_unary(step["raw_call"])
        try:
            response = await call(bytes.fromhex(step.get("body_hex", "")))
        except grpc.aio.AioRpcError as error:
            return {"error": self._error(error)}
        return {"response_hex": response.hex()}

    async def _put_file(self, step: Step) -> None:
        path = self._root() / step["put_file"].lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_content(step["content"]))
        if "age_s" in step:
            os.utime(path, (time.time() - step["age_s"],) * 2)

    async def _mkdir(self, step: Step) -> None:
        (self._root() / step["mkdir"].lstrip("/")).mkdir(parents=True, exist_ok=True)

    async def _rmdir(self, step: Step) -> None:
        shutil.rmtree(self._root() / step["rmdir"].lstrip("/"))

    async def _files(self, step: Step) -> Json:
        base = self._root() / step["files"].lstrip("/")
        return {"files": sorted(str(p.relative_to(base)) for p in base.rglob("*") if p.is_file())}

    def _root(self) -> Path:
        assert self.target.file_root is not None
        return self.target.file_root

    # Calls

    def _stub(self, name: str, kind: str | None = None) -> Any:
        _, response, own_kind = _METHODS[name]
        return getattr(self.channel, kind or own_kind)(
            f"/protocol.Journal/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

    async def _call(self, step: Step) -> Json:
        outcome = await self._call_once(step)
        if outcome is not None and outcome.get("error", {}).get("code") == "INTERNAL":
            # A write which fails because the broker has answered already may hide the answer from
            # clients of grpc.aio, though not from others. Such an append was refused: repeat it.
            return await asyncio.to_thread(self._call_blocking, step)
        return outcome

    def _call_blocking(self, step: Step) -> Json:
        request, response, kind = _METHODS[step["call"]]
        with grpc.insecure_channel(self.target.address) as channel:
            stub = getattr(channel, kind)(
                f"/protocol.Journal/{step['call']}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString,
            )
            messages = [to_message(request, message) for message in step["requests"]]
            try:
                answer = stub(iter(messages), metadata=self._metadata(step), timeout=30)
            except grpc.RpcError as error:
                return {"error": self._error(error)}
            return {"response": self._seen(to_dict(answer))}

    async def _call_once(self, step: Step) -> Json:
        name = step["call"]
        if name not in _METHODS:
            return await self._raw_call({"raw_call": f"/protocol.Journal/{name}"})
        request, _, kind = _METHODS[name]
        metadata = self._metadata(step)
        if "stream" in step:
            return await self._begin(step, metadata)
        if step.get("as_unary"):
            kind = _UNARY
        stub = self._stub(name, kind)
        timeout = step.get("timeout_s", 30)
        if kind in (_UP, _BOTH):
            call = stub(timeout=timeout, metadata=metadata)
            messages = [to_message(request, m) for m in step["requests"]]
            writer = asyncio.create_task(_write(call, messages, step.get("gap_ms", 0)))
        else:
            message = to_message(request, step.get("request", {}))
            call = stub(message, timeout=timeout, metadata=metadata)
            writer = None
        try:
            return await self._outcome(call, single=kind in (_UNARY, _UP))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.wait([writer])

    async def _outcome(self, call: Any, *, single: bool) -> Json:
        if single:
            try:
                return {"response": self._seen(to_dict(await call))}
            except grpc.aio.AioRpcError as error:
                return {"error": self._error(error)}
        messages_in: list[Json] = []
        end = {"code": "OK", "details": ""}
        try:
            async for response in call:
                messages_in.append(to_dict(response))  # noqa: PERF401 - Kept also on errors.
        except grpc.aio.AioRpcError as error:
            end = self._error(error)
        return {"messages": self._seen(_join_content(messages_in)), "end": end}

    async def _begin(self, step: Step, metadata: list[tuple[str, str]]) -> None:
        request, _, kind = _METHODS[step["call"]]
        received: asyncio.Queue[Any] = asyncio.Queue()
        stub = self._stub(step["call"])
        timeout = step.get("timeout_s")
        if kind == _UP:
            call = stub(timeout=timeout, metadata=metadata)
        else:
            message = to_message(request, step.get("request", {}))
            call = stub(message, timeout=timeout, metadata=metadata)
        stream = self.streams[step["stream"]] = _Stream(call, received)
        for requested in step.get("requests", ()):
            await _write(call, [to_message(request, requested)], half_close=False)

        async def pump() -> None:
            try:
                if kind == _UP:
                    received.put_nowait(to_dict(await call))
                else:
                    async for response in call:
                        received.put_nowait(to_dict(response))
                    received.put_nowait(_End({"code": "OK", "details": ""}))
            except grpc.aio.AioRpcError as error:
                received.put_nowait(_End(self._error(error)))
            except asyncio.CancelledError:
                received.put_nowait(_End({"code": "CANCELLED", "details": "${any}"}))

        stream.pump = asyncio.create_task(pump())

    async def _recv(self, step: Step) -> Json:
        stream = self.streams[step["recv"]]
        messages: list[Json] = []
        end: Json = None
        deadline = time.monotonic() + step["within_s"]
        while len(messages) < step.get("count", 1) and end is None:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    item = await stream.received.get()
            except TimeoutError:
                end = _PENDING
                break
            if isinstance(item, _End):
                end = item.status
            else:
                messages.append(item)
        outcome: Json = {"messages": self._seen(_join_content(messages))}
        if end is not None:
            outcome["end"] = end
        return outcome

    async def _send(self, step: Step) -> None:
        messages = [to_message(pb.AppendRequest, message) for message in step["requests"]]
        await _write(self.streams[step["send"]].call, messages, half_close=False)

    async def _half_close(self, step: Step) -> None:
        await _write(self.streams[step["half_close"]].call, [])

    async def _finish_call(self, step: Step) -> Json:
        async with asyncio.timeout(max(step.get("within_s", 20), _PATIENCE_SECONDS)):
            item = await self.streams[step["finish"]].received.get()
        if isinstance(item, _End):
            return {"error": item.status}
        return {"response": self._seen(item)}

    async def _cancel(self, step: Step) -> None:
        self.streams[step["cancel"]].call.cancel()

    def _seen(self, value: Json) -> Json:
        self.raw = value
        return self._unbind(value)

    def _error(self, error: Any) -> Json:
        code = error.code().name
        details = self._unbind_text(error.details() or "")
        return {"code": code, "details": "${any}" if code in _TRANSPORT_CODES else details}


@dataclasses.dataclass(frozen=True)
class _End:
    status: Json


async def _write(
    call: Any, messages: list[Message], gap_ms: int = 0, *, half_close: bool = True
) -> None:
    try:
        for index, message in enumerate(messages):
            if index and gap_ms:
                await asyncio.sleep(gap_ms / 1000)  # Time is the subject: a scenario gives it.
            await call.write(message)
        if half_close:
            await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # Answered before all was sent: the answer tells.


# Messages


def to_message(cls: type[Message], value: Json) -> Any:
    """Build a message of the form which scenarios write it in."""
    message = cls()
    ParseDict(_to_proto_json(cls.DESCRIPTOR, value), message)
    return message


def _to_proto_json(descriptor: Descriptor, value: Json) -> Json:
    out: dict[str, Any] = {}
    for name, item in value.items():
        field = descriptor.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_BYTES:
            out[name] = base64.b64encode(_content(item)).decode()
        elif field.message_type is None or field.message_type.full_name.startswith("google."):
            out[name] = item
        elif field.message_type.name == "SHA1Sum":
            digest = bytes.fromhex(item)
            words = (digest[:8], digest[8:16], digest[16:])
            out[name] = {
                f"part{i}": int.from_bytes(word, "big") for i, word in enumerate(words, start=1)
            }
        elif isinstance(item, list):
            out[name] = [_to_proto_json(field.message_type, one) for one in item]
        else:
            out[name] = _to_proto_json(field.message_type, item)
    return out


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message in the form which scenarios expect it in; bytes are left as they are."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        repeated = not isinstance(value, (str, bytes, int, float, Message))
        out[field.name] = (
            [_to_value(field, item) for item in value] if repeated else _to_value(field, value)
        )
    return out


def _to_value(field: FieldDescriptor, value: Any) -> Json:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.message_type is None:
        return value
    if field.message_type.name == "SHA1Sum":
        return pb.sum_to_digest(value).hex()
    if field.message_type.name == "Duration":
        return f"{value.seconds + value.nanos / 1e9:g}s"
    return to_dict(value)


def _content(value: Json) -> bytes:
    if "utf8" in value:
        return value["utf8"].encode()
    if "hex" in value:
        return bytes.fromhex(value["hex"])
    text, count = value["repeat"]
    return text.encode() * count


def _join_content(messages: list[Json]) -> list[Json]:
    joined: list[Json] = []
    for message in messages:
        if "content" not in message:
            joined.append(message)
        elif joined and "chunk_lens" in joined[-1]:
            joined[-1]["content"] += message["content"]
            joined[-1]["chunk_lens"][0] += len(message["content"])
        else:
            joined.append({**message, "chunk_lens": [len(message["content"])]})
    return joined


def _token(auth: Json, default_key: str | None) -> str:
    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    now = int(time.time())
    claims = {
        "cap": auth.get("cap", 0),
        "sel": auth.get("sel", {"include": {}, "exclude": {}}),
        "iat": now + auth.get("iat_in_s", 0),
    }
    if "exp_in_s" in auth:
        claims["exp"] = now + auth["exp_in_s"]
    algorithm = auth.get("alg", "HS256")
    head = part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    signed = head + b"." + part(json.dumps(claims).encode())
    key = base64.b64decode(auth.get("key") or default_key or "AA==")
    signature = hmac.new(key, signed, f"sha{algorithm[2:]}").digest()
    return (signed + b"." + part(signature)).decode()


# Comparison


def _fold_headers(value: Json) -> Json:
    if isinstance(value, list):
        return [_fold_headers(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"process_id": "${process_id}", "route": route, "etcd": "${etcd}"}:
            if route == {"primary": -1}:
                return "${unrouted_header}"
            if route == {"members": ["${process_id}"], "endpoints": ["${endpoint}"]}:
                return "${routed_header}"
        case {"process_id": {**process}, "route": {**route}, "etcd": {**etcd}}:
            if not process and not route and not etcd:
                return "${empty_header}"
    return {key: _fold_headers(item) for key, item in value.items()}


def difference(expected: Json, actual: Json, path: str = "$") -> str | None:
    """Return where and how a value differs from what's expected, or None."""
    match expected:
        case "${any}":
            return None
        case "${rev}":
            sound = str(actual).startswith("${rev") or (isinstance(actual, int) and actual > 0)
            return None if sound else f"{path}: {actual!r} is no revision"
        case str() if expected.startswith("~"):
            found = isinstance(actual, str) and re.search(expected[1:], actual)
            return None if found else f"{path}: {actual!r} doesn't match {expected[1:]!r}"
        case dict():
            return _object_difference(expected, actual, path)
        case list():
            return _list_difference(expected, actual, path)
        case _:
            return None if expected == actual else f"{path}: {actual!r}, expected {expected!r}"


def _object_difference(expected: Json, actual: Json, path: str) -> str | None:
    if not isinstance(actual, dict):
        return f"{path}: {actual!r}, expected {expected!r}"
    for key, item in expected.items():
        if key == "$partial":
            continue
        if key not in actual:
            return f"{path}.{key}: missing in {actual!r}"
        if key == "chunk_lens":
            item = [sum(item)]
        if (found := difference(item, actual[key], f"{path}.{key}")) is not None:
            return found
    unexpected = [] if expected.get("$partial") else [key for key in actual if key not in expected]
    return f"{path}: unexpected {unexpected} in {actual!r}" if unexpected else None


def _list_difference(expected: Json, actual: Json, path: str) -> str | None:
    if not isinstance(actual, list):
        return f"{path}: {actual!r}, expected {expected!r}"
    open_ended = bool(expected) and expected[-1] == "${...}"
    wanted = expected[:-1] if open_ended else expected
    if len(actual) < len(wanted) or (len(actual) > len(wanted) and not open_ended):
        return f"{path}: {len(actual)} elements, expected {len(wanted)}: {actual!r}"
    for index, item in enumerate(wanted):
        if (found := difference(item, actual[index], f"{path}[{index}]")) is not None:
            return found
    return None


def _replace_key(value: Json, key: str, replacement: Json) -> Json:
    if isinstance(value, list):
        return [_replace_key(item, key, replacement) for item in value]
    if isinstance(value, dict):
        return {
            k: replacement if k == key else _replace_key(v, key, replacement)
            for k, v in value.items()
        }
    return value


def _dig(value: Json, path: str) -> Json:
    for part in path.split("."):
        value = value[int(part)] if part.isdigit() else value[part]
    return value


def _batches(names: list[str]) -> list[list[str]]:
    return [names[start : start + 25] for start in range(0, len(names), 25)]
