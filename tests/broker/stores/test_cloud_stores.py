"""Fragments in object stores: S3 by a server on loopback, the others by stores in memory."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import gzip
import hashlib
import http.client
import json
import logging
import os
import shutil
import socket
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import grpc.aio
import obstore
import pytest
from google.protobuf.duration_pb2 import Duration
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

import gazette_aio.protocol as pb
from gazette_aio.broker import BrokerOptions, EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.stores import (
    FileFragmentStore,
    ObjectFragmentStore,
    object_config,
)
from gazette_aio.broker.stores.fragment_store import StoreAccessError
from gazette_aio.broker.stores.health import check_store
from gazette_aio.broker.stores.opening import open_store
from gazette_aio.protocol.errors import StoreError
from tests import golden
from tests.broker.caller import Caller, calling, eventually, journal_spec

SOON_SECONDS = 15.0
"""A limit for what doesn't wait for a store, well below that of requests to stores."""
SECRET = "uncommon+secret/of-tests"
CODECS = [codec for codec in pb.CompressionCodec.values() if codec != pb.CompressionCodec.INVALID]
OFFLOAD = pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Endpoint of an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture
def bucket(s3: str) -> Bucket:
    return Bucket(s3)


class Bucket:
    """A new bucket, looked at past the broker."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = f"bucket-{uuid.uuid4().hex}"
        self.request("PUT", "")

    def url(self, prefix: str = "", **arguments: str) -> str:
        arguments = {"endpoint": self.endpoint, **arguments}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in arguments.items())
        return f"s3://{self.name}/{prefix}?{query}"

    def request(self, method: Any, key: str, data: bytes | None = None) -> Any:
        url = f"{self.endpoint}/{self.name}"
        if key:
            url = obstore.sign(self.client(), method, key, dt.timedelta(minutes=1))
        request = urllib.request.Request(
            url,
            method=method,
            data=data,
            headers={"Content-Type": "application/octet-stream"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.headers, response.read()

    def make_directory(self, key: str) -> None:
        """Make an empty object whose key ends in a slash, as consoles do."""
        request = urllib.request.Request(
            f"{self.endpoint}/{self.name}/{key}",
            method="PUT",
            data=b"",
            headers={"Content-Type": "application/octet-stream"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def put_raw(self, key: str) -> None:
        """Make an object whose key clients of stores would clean or refuse."""
        host = urlsplit(self.endpoint).netloc
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request(
            "PUT",
            f"/{self.name}/{key}",
            body=b"-",
            headers={
                "Content-Type": "application/octet-stream",
                "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDOFTESTS/20260101/us-east-1/s3/"
                "aws4_request, SignedHeaders=host, Signature=00",
            },
        )
        response = connection.getresponse()
        response.read()
        connection.close()
        assert response.status == 200, response.status

    def client(self) -> S3Store:
        return S3Store(self.name, endpoint=self.endpoint, client_options={"allow_http": True})

    def keys(self) -> list[str]:
        return [meta["path"] for chunk in listed_of(self.client()) for meta in chunk]


def listed_of(client: Any) -> Any:
    """Return all objects of a bucket. Its stubs have a form of results which isn't installed."""
    listing: Any = vars(obstore)["list"]
    return listing(client)


def content_of(codec: int, size: int = 10_000) -> bytes:
    return hashlib.shake_256(bytes([codec])).digest(size // 2) + b"z" * (size - size // 2)


_SLOW_LISTING = "takes longer than an append may wait"


def new_broker(path: Path, **options: Any) -> EmbeddedBroker:
    patient = {"fsync": "off", "persist_delay": 0.0, "http_port": None, "store_wait": 60.0}
    options = patient | options
    return EmbeddedBroker(path, **options)


async def write_each_codec(broker: EmbeddedBroker, caller: Caller, store: str) -> None:
    for codec in CODECS:
        name = f"codec/{codec}"
        await caller.create(journal_spec(name, stores=[store], compression_codec=codec))
        await caller.commit(content_of(codec), name)
        await broker.flush(name)
        await broker.refresh(name)


async def check_each_codec(caller: Caller, store: str) -> None:
    for codec in CODECS:
        name = f"codec/{codec}"
        (fragment,) = await caller.fragments(name)
        assert (fragment.backing_store, fragment.compression_codec) == (store, codec)
        assert abs(fragment.mod_time - dt.datetime.now(dt.UTC).timestamp()) < 60
        content = content_of(codec)
        assert await caller.read(name) == content
        assert await caller.read(name, offset=4321, end_offset=6789) == content[4321:6789]


# S3


async def test_a_bucket_is_written_and_served(tmp_path: Path, bucket: Bucket) -> None:
    store = bucket.url("some/prefix/")
    async with (
        new_broker(tmp_path / "one", store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await write_each_codec(broker, caller, store)
        await check_each_codec(caller, store)
    keys = bucket.keys()
    assert sum(key.startswith("some/prefix/codec/") for key in keys) == len(CODECS)
    (offloaded,) = (key for key in keys if key.startswith(f"some/prefix/codec/{OFFLOAD}/"))
    headers, data = bucket.request("GET", offloaded)
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(data) == content_of(OFFLOAD)
    # Another broker, which has nothing but the bucket.
    async with (
        new_broker(tmp_path / "two", store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        for codec in CODECS:
            spec = journal_spec(f"codec/{codec}", stores=[store], compression_codec=codec)
            await caller.create(spec)
        await check_each_codec(caller, store)
        assert await caller.commit(b"more", f"codec/{OFFLOAD}", offset=10_000) == 10_000


async def test_long_fragments_are_written_in_parts(tmp_path: Path, bucket: Bucket) -> None:
    content = os.urandom(1 << 20) * 19
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=[bucket.url()]))
        await caller.commit(content)
        await broker.flush("test/journal")
        (fragment,) = await caller.fragments()
        headers, data = bucket.request("GET", pb.content_path(fragment))
        assert headers["ETag"].endswith('-3"')
        assert data == content
        assert await caller.read() == content
        begin = (5 << 20) - 1
        assert await caller.read(offset=begin, end_offset=begin + 9) == content[begin : begin + 9]


async def test_signed_urls_can_be_fetched(
    tmp_path: Path, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=[bucket.url("a%20b/")]))
        await caller.commit(b"content")
        await broker.flush("test/journal")
        request = pb.FragmentsRequest(journal="test/journal", signatureTTL=Duration(seconds=77))
        response = await caller.fragments_call(request)
        (fragment,) = response.fragments
        read = caller.read_call(pb.ReadRequest(journal="test/journal", do_not_proxy=True))
        (metadata,) = [message async for message in read]
        urls: list[tuple[str, str]] = [
            (fragment.signed_url, "77"),
            (metadata.fragment_url, "60"),
        ]
        for url, seconds in urls:
            assert parse_qs(urlsplit(url).query)["X-Amz-Expires"] == [seconds]
            fetched = await asyncio.to_thread(urllib.request.urlopen, url, timeout=30)
            with fetched:
                assert fetched.read() == b"content"
        request.signatureTTL.FromSeconds(10**9)
        bounded: str = (await caller.fragments_call(request)).fragments[0].signed_url
        query: Any = parse_qs(urlsplit(bounded).query)
        assert query["X-Amz-Expires"] == [str(7 * 24 * 3600)]
        unsigned = await caller.fragments_call(pb.FragmentsRequest(journal="test/journal"))
        assert unsigned.fragments[0].signed_url == ""
        shown = [repr(broker.core.stores.get(bucket.url("a%20b/")))]
    shown += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert all("X-Amz" not in text and SECRET not in text for text in shown)


async def test_arguments_are_applied(tmp_path: Path, bucket: Bucket) -> None:
    arguments = {
        "region": "eu-central-1",
        "storageClass": "STANDARD_IA",
        "sse": "aws:kms",
        "sseKmsKeyId": "key-of-tests",
        "find": "test/",
        "replace": "found/",
    }
    store = bucket.url("p/", **arguments)
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=[store]))
        await caller.commit(b"content")
        await broker.flush("test/journal")
        await broker.refresh("test/journal")
        (fragment,) = await caller.fragments()
        key = f"p/found/journal/{pb.content_name(fragment)}"
        headers, data = bucket.request("GET", key)
        assert data == b"content"
        assert headers["x-amz-storage-class"] == "STANDARD_IA"
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-of-tests"
        read = caller.read_call(pb.ReadRequest(journal="test/journal", metadata_only=True))
        (metadata,) = [message async for message in read]
        assert "%2Feu-central-1%2F" in metadata.fragment_url


async def test_foreign_keys_are_no_fragments(tmp_path: Path, bucket: Bucket) -> None:
    content = b"content"
    name = f"{0:016x}-{len(content):016x}-{hashlib.sha1(content).hexdigest()}.raw"
    bucket.make_directory("test/journal/")
    bucket.request("PUT", "test/journal/notes.txt", b"-")
    bucket.request("PUT", f"test/journal/date=1/{name}", content)
    bucket.request("PUT", f"test/journal-2/{name.replace('.raw', '.gz')}", b"-")
    bucket.request("PUT", f"test/journal/nested/{name.replace('0', '1', 1)}", b"-")
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(
            journal_spec("test/journal/nested", stores=[bucket.url()]),
            journal_spec(stores=[bucket.url()]),
        )
        (fragment,) = await caller.fragments()
        assert fragment.path_postfix == "date=1"
        assert await caller.read() == content
        bucket.request("DELETE", f"test/journal/date=1/{name}")
        with pytest.raises(Exception, match="NoSuchKey"):
            await caller.read()
        await broker.refresh("test/journal")
        assert await caller.fragments() == []


@pytest.mark.parametrize("odd", ["a//b", "a%01b", "q/../x"])
async def test_a_key_that_is_no_path_fails_the_listing_of_its_journal(
    tmp_path: Path, bucket: Bucket, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    await asyncio.to_thread(bucket.put_raw, f"in/test/journal/{odd}")
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        stores = [bucket.url("in/")]
        await caller.create(journal_spec(stores=stores), journal_spec("test/other", stores=stores))
        await broker.refresh("test/journal")
        named = f"in/test/journal/{odd.partition('%')[0]}"
        (shown,) = broker.stats()["gazette_failing_stores"].values()  # type: ignore[attr-defined]
        assert named in shown
        failed = [each for each in caplog.records if each.msg == "unable to list fragments"]
        assert named in vars(failed[0])["error"]
        assert await caller.commit(b"content", "test/other") == 0


async def test_a_server_of_this_machine_is_reached_without_a_proxy(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    client = object_config.open_client(pb.parse_fragment_store(bucket.url()))
    assert isinstance(client, S3Store)
    await client.put_async("a/key", b"content")
    assert await client.get_async("a/key")


async def test_keys_do_not_lead_to_files_of_other_journals(tmp_path: Path, bucket: Bucket) -> None:
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec("test/secret", stores=[bucket.url()]))
        await caller.commit(b"secret", "test/secret")
        await broker.flush("test/secret")
        (key,) = [key for key in await asyncio.to_thread(bucket.keys) if "secret" in key]
        await asyncio.to_thread(bucket.put_raw, f"test/journal/../secret/{key.rpartition('/')[2]}")
        await caller.create(journal_spec(stores=[bucket.url()]))
        with pytest.raises(grpc.aio.AioRpcError, match=r"invalid path.*test/journal/\.\./secret"):
            await caller.fragments()
        assert await caller.read() == b""


# Health


async def health(caller: Caller, store: str, **fields: Any) -> str:
    request = pb.FragmentStoreHealthRequest(fragment_store=store, **fields)
    response = await caller.health_call(request)
    healthy = response.status == pb.Status.OK
    assert healthy != bool(response.store_health_error)
    return response.store_health_error


async def test_health_of_buckets(tmp_path: Path, bucket: Bucket) -> None:
    async with (
        new_broker(tmp_path, store_endpoint=[bucket.endpoint]) as broker,
        calling(broker.endpoint) as caller,
    ):
        store = bucket.url("p/")
        probe = {"check_delete": True, "check_delete_prefix": "sub/"}
        assert await health(caller, store, **probe) == ""
        assert bucket.keys() == ["p/.test/health-check"]
        missing = f"s3://{bucket.name}-missing/?endpoint={quote(bucket.endpoint)}"
        problem = await health(caller, missing)
        assert problem.startswith("health check PUT failed: ")
        assert problem.endswith(": NoSuchBucket: The specified bucket does not exist")
        assert "\n" not in problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://b/?badarg=1", 'parsing store URL arguments: schema: invalid path "badarg"'),
        ("gs://b/?region=x", 'parsing store URL arguments: schema: invalid path "region"'),
        ("azure://c/?acl=x", 'parsing store URL arguments: schema: invalid path "acl"'),
        (
            "s3://b/?profile=x",
            'store URL argument "profile" is not supported: credentials come from the environment',
        ),
        (
            "s3://b/?ACL=private",
            'store URL argument "acl" is not supported: set the bucket\'s object ownership instead',
        ),
    ],
)
async def test_arguments_are_checked(caller: Caller, url: str, problem: str) -> None:
    assert await health(caller, url) == problem


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server which nobody may connect to."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(10)
        listening.setblocking(False)
        yield listening
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:{port}",
        "http://127.0.0.1:{port}/path",
        "http://allowed:9000@127.0.0.1:{port}",
        "http://127.0.0.1:{port}\\@allowed:9000",
        "http://127.0.0.1:{port}#@allowed:9000",
        "http://127.0.0.1:{port}?http://allowed:9000",
        "http://2130706433:{port}",
        "http://[::ffff:127.0.0.1]:{port}",
        "http:127.0.0.1:{port}",
        " http://127.0.0.1:{port}",
        "http://127.0.0.1:{port}\thttp://allowed:9000",
        "https://allowed:9000",
        "http://allowed",
        "http://allowed:90000",
        "http://allowed.:9000",
    ],
)
async def test_stores_lead_to_no_server_which_is_not_allowed(
    tmp_path: Path, listener: socket.socket, endpoint: str
) -> None:
    port = listener.getsockname()[1]
    store = f"s3://bucket/?EndPoint={quote(endpoint.format(port=port), safe='')}"
    options = {"store_endpoint": ["http://allowed:9000"], "store_wait": 0.1}
    async with new_broker(tmp_path, **options) as broker, calling(broker.endpoint) as caller:
        problem = await health(caller, store)
        assert problem == (
            'store URL argument "endpoint" is not an origin which the broker allows '
            "(--store-endpoint)"
        )
        assert await refused(caller, store) == problem
        with pytest.raises(grpc.aio.AioRpcError, match="not an origin"):
            await caller.fragments()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://bucket/?region=127.0.0.1:{port}%2F", "region"),
        ("s3://bucket/?region=evil.example%23", "region"),
        ("s3://bucket/?region=x@127.0.0.1:{port}%2F", "region"),
        ("s3://127.0.0.1:{port}/", "bucket"),
        ("s3://a%2523b/", "bucket"),
        ("gs://a%252Fb/", "bucket"),
        ("azure://127.0.0.1:{port}/", "container"),
        ("azure-ad://tenant/127.0.0.1:{port}/container/", "account"),
        ("azure-ad://tenant/evil.example%23/container/", "account"),
        ("azure-ad://..%25/account/container/", "tenant"),
        ("azure-ad://tenant/account/a%3Fb/", "container"),
    ],
)
async def test_names_in_a_store_lead_to_no_other_host(
    tmp_path: Path, listener: socket.socket, url: str, kind: str
) -> None:
    store = url.format(port=listener.getsockname()[1])
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        assert await health(caller, store) == f"invalid name of a {kind} in store URL"


@pytest.mark.parametrize(
    "endpoint", ["HTTP://Allowed:9000", "http://allowed:09000", "http://allowed:9000/a/b"]
)
def test_spellings_of_an_allowed_origin(endpoint: str) -> None:
    origins = BrokerOptions(store_endpoint=["http://ALLOWED:9000/"]).store_origins
    parsed = pb.parse_fragment_store(f"s3://bucket/?endpoint={quote(endpoint, safe='')}")
    object_config.check_destination(parsed, origins)
    with pytest.raises(pb.StoreError, match="not an origin"):
        object_config.check_destination(parsed, frozenset())


@pytest.mark.parametrize(
    "origin", ["", "minio:9000", "http://", "http://a/b", "http://u@a", "http://a?b", "ftp://a"]
)
def test_what_is_not_an_origin(origin: str) -> None:
    with pytest.raises(pb.ConfigurationError, match="store_endpoint: expected http://host:port"):
        BrokerOptions(store_endpoint=[origin])


class _LeadingStore(FileFragmentStore):
    """A store whose files clients fetch from a server."""

    def __init__(self, root: Path, origin: str) -> None:
        super().__init__(FileOps(), root, "file:///", sync=False)
        self._origin = origin

    def sign_get(self, path: str, seconds: float = 60.0) -> str:
        return f"{self._origin}/{path}"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"200 OK\r\nContent-Length: 6\r\n\r\nsecret", "fetch content mismatch"),
        (b"403 secret\r\nContent-Length: 6\r\n\r\nsecret", "fetch returned status 403"),
        (b"301 Moved\r\nLocation: {inside}\r\n\r\n", "fetch returned status 301"),
        (b"302 Found\r\nLocation: {inside}\r\n\r\n", "fetch returned status 302"),
        (b"303 See Other\r\nLocation: file:///etc/passwd\r\n\r\n", "fetch returned status 303"),
        (b"307 Temporary\r\nLocation: {inside}\r\n\r\n", "fetch returned status 307"),
        (b"308 Permanent\r\nLocation: //{inside}\r\n\r\n", "fetch returned status 308"),
    ],
)
async def test_health_checks_follow_no_redirect_and_show_no_content(
    tmp_path: Path, listener: socket.socket, answer: bytes, problem: str
) -> None:
    inside = f"http://127.0.0.1:{listener.getsockname()[1]}/".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer.replace(b"{inside}", inside))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store = _LeadingStore(tmp_path, origin)
        assert await asyncio.to_thread(check_store, store) == f"health check {problem}"


@pytest.mark.parametrize(
    "body", [b"internal words\nand more", b"internal: words", b"(internal words)"]
)
async def test_bodies_of_refusals_are_not_shown(tmp_path: Path, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with new_broker(tmp_path, store_endpoint=[origin]) as broker:
            async with calling(broker.endpoint) as caller:
                problem = await health(caller, f"s3://bucket/?endpoint={origin}")
    assert problem.endswith("status code: 404 Not Found")
    assert "internal" not in problem


@pytest.mark.parametrize(
    ("status", "kind"), [(b"403 Forbidden", StoreAccessError), (b"400 Bad Request", StoreError)]
)
async def test_a_removal_that_is_refused(status: bytes, kind: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store = open_store(f"s3://bucket/?endpoint={origin}", Path(), origins=frozenset({origin}))
        with pytest.raises(StoreError) as raised:
            await asyncio.to_thread(store.remove, "a/journal/file")
    assert type(raised.value) is kind


async def refused(caller: Caller, store: str, *, is_listed: bool = True) -> str:
    """Return why an append is refused; if `is_listed`, once the store was listed."""
    await caller.create(journal_spec(stores=[store]))
    prefix = f"fragment store {store} unhealthy: "
    while True:
        async with asyncio.timeout(SOON_SECONDS):
            response = await caller.append(b"x")
        assert response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
        text: str = response.store_health_error
        assert text.startswith(prefix)
        # On a busy machine, a listing may take longer than the append waits.
        if not is_listed or _SLOW_LISTING not in text:
            return text.removeprefix(prefix)


async def test_appends_give_up_on_a_store_which_is_silent(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = f"s3://bucket/?endpoint={endpoint}"
        async with new_broker(tmp_path, store_wait=0.3, store_endpoint=[endpoint]) as broker:
            async with calling(broker.endpoint) as caller:
                assert _SLOW_LISTING in await refused(caller, store, is_listed=False)
                # Journals of other stores aren't held up by it.
                await caller.create(journal_spec("other", stores=["file:///"]))
                async with asyncio.timeout(SOON_SECONDS):
                    await caller.commit(b"content", "other")
                    await broker.flush("other")
                    assert await caller.read("other") == b"content"
            silent.close()


async def test_a_silent_store_does_not_delay_the_end(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        silent.setblocking(False)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = f"s3://bucket/?endpoint={endpoint}"
        broker = new_broker(tmp_path, store_endpoint=[endpoint])
        await broker.start()
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=[store]), journal_spec("other"))
            await caller.commit(b"content", "other")
            request = pb.FragmentsRequest(journal="test/journal")
            waiting: list[Any] = [
                asyncio.ensure_future(collect(call))
                for call in (
                    caller.fragments_call(request),
                    caller.append_call(iter([pb.AppendRequest(journal="test/journal")])),
                    caller.health_call(pb.FragmentStoreHealthRequest(fragment_store=store)),
                )
            ]
            connection, _ = await asyncio.get_running_loop().sock_accept(silent)
            begun = time.monotonic()
            # Whoever gives up on a store doesn't wait for it either.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await broker.refresh("test/journal")
            await broker.stop(0.2)
            assert time.monotonic() - begun < SOON_SECONDS
            assert all(isinstance(error, Exception) for error in await asyncio.gather(*waiting))
            connection.close()
        # The directory is free, and nothing in it was lost.
        async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
            assert await caller.read("other") == b"content"


async def test_a_silent_store_is_given_up_by_the_clock_of_the_broker(tmp_path: Path) -> None:
    clock = ManualClock()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with (
            new_broker(tmp_path, clock=clock, store_wait=0.05, store_endpoint=[endpoint]) as broker,
            calling(broker.endpoint) as caller,
        ):
            await caller.create(journal_spec(stores=[f"s3://bucket/?endpoint={endpoint}"]))
            append = asyncio.ensure_future(caller.append(b"content"))
            # The clock stands still, however much time passes.
            assert not (await asyncio.wait((append,), timeout=0.3))[0]
            while not append.done():  # A busy machine may begin the wait only now.
                clock.advance(0.05)
                await asyncio.sleep(0)
            assert (await append).status == pb.Status.FRAGMENT_STORE_UNHEALTHY


async def collect(call: Any) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - Any will do.
        return error


async def test_stores_which_clients_name_are_few(tmp_path: Path) -> None:
    (tmp_path / "root" / "used").mkdir(parents=True)
    async with new_broker(tmp_path / "data", file_root=tmp_path / "root") as broker:
        stores = broker.core.stores
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///used/"]))
            await caller.commit(b"content")
            used = stores.get("file:///used/")
            for number in range(200):
                text = await health(caller, f"file:///missing-{number}/")
                assert text.startswith("health check PUT failed: invalid file store directory")
            assert len(stores) < 100
            assert await health(caller, "file:///used/") == ""
            assert stores.get("file:///used/") is used
            # What a journal comes to use isn't dropped any more.
            kept = stores.get("file:///missing-199/")
            assert stores.visit("file:///missing-199/") is kept
            assert "badarg" in await health(caller, "file:///?badarg=1")


async def test_silent_stores_which_clients_name_are_no_matter_to_journals(
    tmp_path: Path, bucket: Bucket
) -> None:
    clock = ManualClock()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(200)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with (
            new_broker(tmp_path, clock=clock, store_endpoint=[bucket.endpoint, endpoint]) as broker,
            calling(broker.endpoint) as caller,
        ):
            assert await health(caller, bucket.url()) == ""
            await caller.create(journal_spec(stores=[bucket.url()]))
            await caller.commit(b"content")
            stores = broker.core.stores
            checks = [
                asyncio.ensure_future(stores.visit(f"s3://b{number}/?endpoint={endpoint}").check())
                for number in range(63)
            ]
            await asyncio.sleep(0)
            # All which are known are busy then: it takes the place of one nonetheless.
            for number in range(63, 70):
                visited = stores.visit(f"s3://b{number}/?endpoint={endpoint}")
                assert stores.visit(f"s3://b{number}/?endpoint={endpoint}") is visited
                checks.append(asyncio.ensure_future(visited.check()))
                await asyncio.sleep(0)
            clock.advance(3600)  # The store's own check is due again.
            async with asyncio.timeout(SOON_SECONDS):
                await caller.commit(b"content")
            for check in checks:
                check.cancel()
            await asyncio.wait(checks)


async def test_stores_which_journals_used_are_dropped_in_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with new_broker(tmp_path, clock=clock, http_port=None) as broker:
        stores = broker.core.stores
        failure = broker.control.fail_store("file:///failing/")
        kept = stores.get("file:///failing/")
        for number in range(1000):
            stores.get(f"file:///{number}/")
        assert len(stores) == 1001
        clock.advance(3 * 3600)
        used = stores.get("file:///7/")
        for number in range(1000, 1100):
            stores.get(f"file:///{number}/")
        assert len(stores) < 110
        assert stores.get("file:///7/") is used
        assert stores.get("file:///failing/") is kept
        failure.remove()


def test_error_texts_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError(
        "Generic error: Error performing GET https://user:pass@host:1/c/k?sig=abc%2F&se=1 in 2ms"
        " - Server returned non-2xx status code: 403 Forbidden: <?xml?>\n<Error>"
        "<Code>SignatureDoesNotMatch</Code><Message>No for https://host/k?X-Amz-Signature=abc"
        f"</Message><StringToSign>{SECRET}</StringToSign></Error>\n\nDebug source:\nabc"
    )
    assert object_config.error_text(error) == (
        "Generic error: Error performing GET https://host:1/c/k in 2ms"
        " - Server returned non-2xx status code: 403 Forbidden: SignatureDoesNotMatch:"
        " No for https://host/k"
    )
    assert object_config.error_text(ValueError(f"bad key {SECRET}!")) == "bad key ***!"
    answer = ValueError('403: {\n "error": {"code": 403, "message": "no access"}}\n')
    assert object_config.error_text(answer) == "403: no access"
    assert object_config.error_text(ValueError()) == "ValueError"


# Other schemes, in memory


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("gs://bucket/some/prefix/", "some/prefix/"),
        ("azure://container/", ""),
        ("azure-ad://tenant/account/container/prefix/", "prefix/"),
    ],
)
async def test_other_schemes(tmp_path: Path, url: str, prefix: str) -> None:
    memory = MemoryStore()
    opened: list[pb.FragmentStoreURL] = []

    def open_client(parsed: pb.FragmentStoreURL) -> MemoryStore:
        opened.append(parsed)
        return memory

    async with new_broker(tmp_path / "one", object_stores=open_client) as broker:
        async with calling(broker.endpoint) as caller:
            probe = {"check_delete": True, "check_delete_prefix": "x/"}
            assert await health(caller, url, **probe) == ""
            await write_each_codec(broker, caller, url)
            await check_each_codec(caller, url)
            response = await caller.fragments_call(
                pb.FragmentsRequest(journal="codec/1", signatureTTL=Duration(seconds=9))
            )
            assert response.fragments[0].signed_url == ""
    keys = {meta["path"] for chunk in listed_of(memory) for meta in chunk}
    assert keys >= {f"{prefix}.test/health-check"}
    assert sum(key.startswith(f"{prefix}codec/") for key in keys) == len(CODECS) == len(keys) - 1
    # One for whoever asks about a store, and one for its journals.
    assert opened == [pb.parse_fragment_store(url)] * 2
    async with new_broker(tmp_path / "two", object_stores=open_client) as broker:
        async with calling(broker.endpoint) as caller:
            for codec in CODECS:
                spec = journal_spec(f"codec/{codec}", stores=[url], compression_codec=codec)
                await caller.create(spec)
            await check_each_codec(caller, url)


def test_keys_do_not_leave_their_prefix() -> None:
    store = ObjectFragmentStore("gs://bucket/prefix/", lambda _: MemoryStore())
    for path in ("../other/x", "a/../../x", "/x"):
        with pytest.raises(pb.StoreError, match="leads out of its root"):
            store.put(path, [b"x"])


def test_content_which_was_decompressed_on_the_way(tmp_path: Path) -> None:
    memory = MemoryStore()
    store = ObjectFragmentStore("gs://bucket/", lambda _: memory)
    memory.put("plain", b"content")
    assert not store.open("plain").gzipped
    store.put("encoded", [gzip.compress(b"content")], gzipped=True)
    file = store.open("encoded")
    assert file.gzipped
    assert gzip.decompress(file.read(1000)) == b"content"
    assert file.read(1000) == b""


def test_clients_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "myaccount")
    monkeypatch.setenv("AZURE_ACCOUNT_KEY", base64.b64encode(b"key" * 11).decode())
    store = ObjectFragmentStore("azure://container/prefix/", object_config.open_client)
    url = urlsplit(store.sign_get("a/b", 60))
    assert url.hostname == "myaccount.blob.core.windows.net"
    assert url.path == "/container/prefix/a/b"
    assert "sig" in parse_qs(url.query)
    parsed = pb.parse_fragment_store("azure-ad://tenant/other/container/prefix/")
    client = object_config.open_client(parsed)
    assert isinstance(client, AzureStore)
    config: Any = client.config
    assert config["account_name"] == "other"
    assert config["container_name"] == "container"


def test_clients_of_gcs(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "private_key": key.decode(),
        "private_key_id": "id",
        "client_email": "tests@example.com",
        "client_id": "1",
        "token_uri": "http://127.0.0.1:9/",
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    parsed = pb.parse_fragment_store("gs://bucket/prefix/")
    assert isinstance(object_config.open_client(parsed), GCSStore)
    url = urlsplit(
        ObjectFragmentStore("gs://bucket/prefix/", object_config.open_client).sign_get("a", 60)
    )
    assert (url.hostname, url.path) == ("storage.googleapis.com", "/bucket/prefix/a")


# Fragments of other brokers


async def test_a_directory_of_another_broker_is_served(tmp_path: Path) -> None:
    source = golden.directory() / "fragment_codecs"
    files = golden.load("fragment_codecs/index.json")["files"]
    root = tmp_path / "root"
    shutil.copytree(source / "frag", root / "kept" / "frag")
    by_journal: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        by_journal.setdefault(file["journal"], []).append(file)
    assert len(by_journal) == len(CODECS)
    async with new_broker(tmp_path / "data", file_root=root) as broker:
        async with calling(broker.endpoint) as caller:
            for journal, stored in by_journal.items():
                await caller.create(journal_spec(journal, stores=["file:///kept/"]))
                # What's within another fragment isn't served.
                expected = sorted(
                    (file["begin"], file["end"], file["codec"], file["sha1"])
                    for file in stored
                    if not any(
                        other is not file
                        and other["begin"] <= file["begin"]
                        and other["end"] >= file["end"]
                        for other in stored
                    )
                )
                assert len(expected) >= 4
                fragments = await caller.fragments(journal)
                assert expected == [
                    (
                        fragment.begin,
                        fragment.end,
                        pb.CompressionCodec.Name(fragment.compression_codec),
                        pb.sum_to_digest(fragment.sum).hex(),
                    )
                    for fragment in fragments
                ]
                for begin, end, _, digest in expected:
                    content = await caller.read(journal, offset=begin, end_offset=end)
                    assert len(content) == end - begin
                    assert hashlib.sha1(content).hexdigest() == digest


async def test_postfixes_stay_below_their_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with new_broker(tmp_path / "data", file_root=root) as broker:
        async with calling(broker.endpoint) as caller:
            for number, value in enumerate(("../../../out", "..", "a//b")):
                name = f"test/journal-{number}"
                spec = journal_spec(name, stores=["file:///"])
                spec.fragment.path_postfix_template = '{{ .Spool.Registers.ValueOf "postfix" }}'
                await caller.create(spec)
                registers = pb.LabelSet(labels=[pb.Label(name="postfix", value=value)])
                await caller.commit(b"content", name, union_registers=registers)
                with pytest.raises(pb.StoreError, match="rendered path postfix"):
                    await broker.flush(name)
                assert await caller.read(name) == b"content"

            async def logged() -> bool:
                messages = [record.getMessage() for record in caplog.records]
                return messages.count("unable to persist a fragment") >= 3

            await eventually(logged)
    assert [name for _, _, names in os.walk(tmp_path) for name in names if ".raw" in name] == []
