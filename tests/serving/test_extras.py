"""Health checks and reflection, by plain gRPC calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

import gazette_aio.protocol as pb
from gazette_aio.broker import BrokerOptions, EmbeddedBroker
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.extras import Health

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
REFLECTIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
JOURNAL = b"\x0a\x10protocol.Journal"


@asynccontextmanager
async def channel_of(broker: EmbeddedBroker) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(broker.endpoint.removeprefix("http://")) as channel:
        yield channel


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(
        tmp_path, grpc_extras=True, auth_keys="c2VjcmV0", http_port=None, fsync="off"
    ) as broker:
        yield broker


@pytest.fixture
async def channel(broker: EmbeddedBroker) -> AsyncIterator[grpc.aio.Channel]:
    async with channel_of(broker) as channel:
        yield channel


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


# Health


async def test_they_are_off_unless_asked_for(tmp_path: Path) -> None:
    assert not BrokerOptions().grpc_extras
    async with EmbeddedBroker(tmp_path, http_port=None, fsync="off") as broker:
        async with channel_of(broker) as channel:
            code = await code_of(channel.unary_unary(CHECK)(b""))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            for package in REFLECTIONS:
                # As a unary call, whose status isn't masked: a stream's write after the refusal
                # has INTERNAL instead (grpc/grpc#36066).
                path = f"/{package}.ServerReflection/ServerReflectionInfo"
                code = await code_of(channel.unary_unary(path)(b""))
                assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_health(channel: grpc.aio.Channel) -> None:
    check = channel.unary_unary(CHECK)
    # Wire: a string in field 1, and an enum in field 1. No token is needed.
    assert await check(b"") == SERVING
    assert await check(JOURNAL) == SERVING
    assert await code_of(check(b"\x0a\x05other")) is grpc.StatusCode.NOT_FOUND
    assert await code_of(check(b"\x0a\xff")) is grpc.StatusCode.INTERNAL


async def test_who_watches_is_told_the_end(
    broker: EmbeddedBroker, channel: grpc.aio.Channel
) -> None:
    known = channel.unary_stream(WATCH)(JOURNAL)
    unknown = channel.unary_stream(WATCH)(b"\x0a\x05other")
    abandoned = channel.unary_stream(WATCH)(b"")
    assert await known.read() == SERVING
    assert await unknown.read() == SERVICE_UNKNOWN
    assert await abandoned.read() == SERVING
    abandoned.cancel()
    told = asyncio.ensure_future(known.read())
    # Race: a call whose end is known tells nothing but that, so the answer is awaited before. Nor
    # does the server know that the first one was written just as its client does.
    await broker.stop(10.0)
    assert await told == NOT_SERVING
    assert await known.read() is grpc.aio.EOF
    assert await unknown.read() is grpc.aio.EOF
    await broker.start()
    async with channel_of(broker) as channel:
        assert await channel.unary_unary(CHECK)(b"") == SERVING


async def test_the_end_is_told_although_it_comes_within_the_first_answer() -> None:
    health = Health(["protocol.Journal"], Drain())
    written: list[bytes] = []

    class Context:
        async def write(self, answer: Any) -> None:
            written.append(answer.SerializeToString())
            health.end()

    watch = health.handlers().service(SimpleNamespace(method=WATCH)).unary_stream
    await watch(JOURNAL, Context())
    assert written == [SERVING, NOT_SERVING]
    await watch(JOURNAL, Context())
    assert written[2:] == [NOT_SERVING]


# Reflection


@pytest.fixture(params=REFLECTIONS)
def package(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def ask(channel: grpc.aio.Channel, package: str, *questions: dict[str, Any]) -> list[Any]:
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=ServerReflectionResponse.FromString,
    )([ServerReflectionRequest(**question) for question in questions])
    return [answer async for answer in call]


async def test_services(channel: grpc.aio.Channel, package: str) -> None:
    (answer,) = await ask(channel, package, {"list_services": "*"})
    assert [service.name for service in answer.list_services_response.service] == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "protocol.Journal",
    ]
    assert answer.original_request.list_services == "*"


async def test_a_tool_can_build_requests_of_what_it_is_told(
    channel: grpc.aio.Channel, package: str
) -> None:
    (answer,) = await ask(channel, package, {"file_containing_symbol": "protocol.Journal"})
    files = [
        FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    pool = DescriptorPool()
    for file in reversed(files):  # What it depends on comes after a file.
        pool.AddSerializedFile(file.SerializeToString())
    service = pool.FindServiceByName("protocol.Journal")
    assert {method.name for method in service.methods} == {
        "List", "Apply", "Read", "Append", "Replicate", "ListFragments", "FragmentStoreHealth",
    }  # fmt: skip
    assert service.methods_by_name["Read"].input_type.fields_by_name["offset"].number == 3


async def test_files_and_symbols(channel: grpc.aio.Channel) -> None:
    duration = "google/protobuf/duration.proto"
    broker = pb.ReadRequest.DESCRIPTOR.file.name
    for question, first in (
        ({"file_by_filename": duration}, duration),
        ({"file_by_filename": broker}, broker),
        ({"file_containing_symbol": "protocol.JournalSpec.Fragment"}, broker),
        ({"file_containing_symbol": "protocol.JournalSpec.Fragment.length"}, broker),
        ({"file_containing_symbol": "protocol.CompressionCodec"}, broker),
        ({"file_containing_symbol": "protocol.JournalSpec.Suspend.Level"}, broker),
        ({"file_containing_symbol": "google.protobuf.Duration"}, duration),
        ({"file_containing_symbol": "grpc.health.v1.Health"}, "grpc_health/v1/health.proto"),
    ):
        (answer,) = await ask(channel, REFLECTIONS[0], question)
        found = answer.file_descriptor_response.file_descriptor_proto
        assert FileDescriptorProto.FromString(found[0]).name == first, question


async def test_what_is_not_served_is_not_told(channel: grpc.aio.Channel) -> None:
    # The process has loaded these.
    consumer, descriptor = "protocol/consumer.proto", FileDescriptorProto.DESCRIPTOR.file
    questions: list[dict[str, Any]] = [
        {"file_by_filename": descriptor.name},
        {"file_by_filename": consumer},
        {"file_by_filename": "../../etc/passwd"},
        {"file_containing_symbol": FileDescriptorProto.DESCRIPTOR.full_name},
        {"file_containing_symbol": "consumer.Shard"},
        {"file_containing_symbol": ""},
        {"file_containing_extension": {"containing_type": "protocol.Label", "extension_number": 1}},
        {"all_extension_numbers_of_type": "protocol.NoType"},
    ]
    answers = await ask(channel, REFLECTIONS[0], *questions)
    assert [answer.error_response.error_code for answer in answers] == [5] * len(questions)


async def test_questions_without_content(channel: grpc.aio.Channel) -> None:
    nothing, extensions = await ask(
        channel, REFLECTIONS[0], {}, {"all_extension_numbers_of_type": "protocol.Label"}
    )
    assert nothing.error_response.error_code == 3
    assert extensions.all_extension_numbers_response.base_type_name == "protocol.Label"
    assert not extensions.all_extension_numbers_response.extension_number
    call = channel.stream_stream(f"/{REFLECTIONS[0]}.ServerReflection/ServerReflectionInfo")
    assert await code_of(call([b"\x0a\xff"]).read()) is grpc.StatusCode.INTERNAL
