"""Public parts of the client: routers, readers of fragments and of listings."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import (
    DispatchRouter,
    Members,
    RouteCache,
    connect,
    list_snapshots,
    members_of,
    open_fragment,
)
from gazette_aio.testing import journal_spec

CONTENT = b"".join(b"line %d\n" % number for number in range(1000))


class Router:
    """A router that notes its calls."""

    def __init__(self) -> None:
        self.routes: dict[str, pb.Route] = {}
        self.asked: list[str] = []

    def __len__(self) -> int:
        return 0  # A router may be falsy.

    def route(self, journal: str) -> pb.Route:
        return self.routes.get(journal, pb.Route(primary=-1))

    def members(self, journal: str) -> Members | None:
        self.asked.append(journal)
        known = self.routes.get(journal)
        return None if known is None else members_of(known)

    def update_route(self, journal: str, route: pb.Route | None) -> None:
        if route is not None and route.members:
            self.routes[journal] = route

    def is_noop_router(self) -> bool:
        return False


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("a/journal"))])
            await client.append("a/journal", b"content")
        yield broker


async def test_a_router_is_used_by_the_client(broker: EmbeddedBroker) -> None:
    router = Router()
    async with connect(broker.endpoint, router=router) as client:
        assert client.router is router
        await client.list()
        assert router.routes["a/journal"].endpoints == [broker.endpoint]
        await client.append("a/journal", b"more")
    assert "a/journal" in router.asked


async def test_clients_share_a_router(broker: EmbeddedBroker) -> None:
    router: DispatchRouter = RouteCache()
    async with connect(broker.endpoint, router=router) as one:
        await one.list()
    async with connect(broker.endpoint, router=router) as other:
        assert other.router.route("a/journal").endpoints == [broker.endpoint]


@pytest.mark.parametrize("options", [{"cache_size": 3}, {"cache_ttl": 3.0}])
def test_a_router_has_its_own_cache(options: dict[str, float]) -> None:
    with pytest.raises(pb.ConfigurationError, match="a router has its own cache"):
        connect("http://localhost:1", router=RouteCache(), **options)  # type: ignore[arg-type]


def fragment(codec: pb.CompressionCodec.ValueType) -> pb.Fragment:
    digest = pb.sum_from_digest(hashlib.sha1(CONTENT, usedforsecurity=False).digest())
    return pb.Fragment(
        journal="a/journal", begin=100, end=100 + len(CONTENT), compression_codec=codec, sum=digest
    )


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), 100):
        yield content[begin : begin + 100]


CODECS = [
    pb.CompressionCodec.NONE,
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("offset", [None, 100, 350, 100 + len(CONTENT)])
@pytest.mark.parametrize("is_file", [False, True])
async def test_fragments_that_you_opened(
    codec: pb.CompressionCodec.ValueType, offset: int | None, is_file: bool
) -> None:
    stored = CONTENT if codec == pb.CompressionCodec.NONE else gzip.compress(CONTENT)
    file = io.BytesIO(stored)

    reader = await open_fragment(
        file if is_file else pieces(stored), fragment(codec), offset, verify=True
    )
    async with reader:
        assert reader.offset == (100 if offset is None else offset)
        content = b"".join([chunk async for chunk in reader])

    assert content == CONTENT[(offset or 100) - 100 :]
    assert file.closed == is_file


async def test_fragments_whose_content_ends_early() -> None:
    file = io.BytesIO(CONTENT[:500])
    async with await open_fragment(file, fragment(pb.CompressionCodec.NONE)) as reader:
        with pytest.raises(pb.UnexpectedEOFError):
            _ = [chunk async for chunk in reader]
    assert file.closed


async def test_offsets_outside_of_the_fragment_close_the_content() -> None:
    file = io.BytesIO(CONTENT)
    with pytest.raises(pb.ValidationError, match="isn't within the fragment"):
        await open_fragment(file, fragment(pb.CompressionCodec.NONE), 99)
    assert file.closed


class Responses:
    """Responses of a List RPC."""

    def __init__(self, *responses: pb.ListResponse) -> None:
        self._responses = list(responses)

    async def receive(self) -> pb.ListResponse | None:
        return self._responses.pop(0) if self._responses else None


def response(*names: str) -> pb.ListResponse:
    listing = pb.ListResponse()
    listing.header.etcd.cluster_id = listing.header.etcd.member_id = 1
    listing.header.etcd.revision = listing.header.etcd.raft_term = 1
    listing.header.process_id.zone, listing.header.process_id.suffix = "a", "b"
    listing.header.route.primary = -1
    for name in names:
        listed = listing.journals.add(create_revision=1, mod_revision=1)
        listed.spec.CopyFrom(journal_spec(name))
        listed.route.primary = -1
    return listing


async def test_listings_of_streams_of_your_own() -> None:
    further = response("c/journal")
    further.ClearField("header")
    stream = Responses(response("a/journal", "b/journal"), further)

    (listing,) = [each async for each in list_snapshots(stream, pb.ListRequest())]

    assert [each.spec.name for each in listing.journals] == ["a/journal", "b/journal", "c/journal"]


async def test_pages_of_early_brokers_are_refused() -> None:
    paged = pb.ListResponse.FromString(
        response("a/journal").SerializeToString() + b"\x22\x05token"  # Field 4 of an early version.
    )
    with pytest.raises(pb.ValidationError, match="lists journals in pages"):
        await anext(list_snapshots(Responses(paged), pb.ListRequest()))
