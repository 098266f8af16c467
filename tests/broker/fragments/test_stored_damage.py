"""Damaged files of fragments: no reader gets all of their content, and each one gets an error."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.fragments.stored_content import StoredContent
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.stores import FileFragmentStore, StoredFile, VerifiedFiles
from gazette_aio.client import JournalClient, RetryPolicy, RetryReader, connect
from gazette_aio.protocol.codecs.content import INPUT_BYTES
from gazette_aio.testing import create_journals, journal_spec

JOURNAL = "test/journal"
BEGIN = 100
MIB = 1 << 20
CODEC = pb.CompressionCodec
CODECS = [codec for codec in CODEC.values() if codec]
CONTENT = b"".join(b"%06d " % number for number in range(450_000))  # Three slices.


def compressed(content: bytes, codec: int) -> bytes:
    compressor = pb.compressor(codec)
    return compressor.compress(content) + compressor.finish()


def without_checksum(content: bytes) -> bytes:
    """Return content in a frame without a checksum, as Gazette's brokers write it."""
    return zstandard.ZstdCompressor(write_checksum=False).compress(content)


def fragment_of(content: bytes, codec: int) -> pb.Fragment:
    return pb.Fragment(
        journal=JOURNAL,
        begin=BEGIN,
        end=BEGIN + len(content),
        sum=pb.sha1_sum(content),
        compression_codec=CODEC.ValueType(codec),
    )


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]


DAMAGES: dict[str, Callable[[int], bytes]] = {
    "another content": lambda codec: compressed(flipped(CONTENT, 5), codec),
    "another end": lambda codec: compressed(CONTENT[:-1] + b"+", codec),
    "cut": lambda codec: compressed(CONTENT, codec)[:-1],
    "less": lambda codec: compressed(CONTENT[:-1], codec),
    "more": lambda codec: compressed(CONTENT + b"+", codec),
    "bit": lambda codec: flipped(compressed(CONTENT, codec), 40_000),
    "garbage follows": lambda codec: compressed(CONTENT, codec) + b"+",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / JOURNAL).mkdir(parents=True)
    return root


@pytest.fixture
async def broker(tmp_path: Path, root: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path / "data", file_root=root, fsync="off") as broker:
        yield broker


@pytest.fixture
async def client(broker: EmbeddedBroker, root: Path) -> AsyncIterator[JournalClient]:
    policy = RetryPolicy(backoff=lambda _: 0.0)
    async with connect(broker.endpoint, file_root=root, retry=policy) as client:
        yield client


async def serve(
    broker: EmbeddedBroker, client: JournalClient, root: Path, fragment: pb.Fragment, data: bytes
) -> None:
    """Let the journal have one fragment, of the given file."""
    (root / pb.content_path(fragment)).write_bytes(data)
    await create_journals(client, journal_spec(JOURNAL, stores=["file:///"]))
    await broker.refresh()


async def until_error(reader: RetryReader) -> tuple[bytes, pb.GazetteError]:
    read = bytearray()
    async with reader:
        try:
            async for chunk in reader:
                read += chunk
        except pb.GazetteError as error:
            return bytes(read), error
    raise AssertionError("a read without end ended")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damage", DAMAGES)
async def test_all_readers_get_an_error_before_the_end(
    broker: EmbeddedBroker, client: JournalClient, root: Path, codec: int, damage: str
) -> None:
    fragment = fragment_of(CONTENT, codec)
    await serve(broker, client, root, fragment, DAMAGES[damage](codec))
    places: list[tuple[int, int]] = []
    for direct in (False, True):
        reader = client.read(JOURNAL, offset=BEGIN, direct=direct, verify=direct)
        read, error = await until_error(reader)
        assert len(read) < len(CONTENT)
        assert isinstance(error, pb.ReadError), error
        assert isinstance(error, pb.FragmentError) or direct
        assert error.journal == JOURNAL
        assert error.offset == reader.offset == BEGIN + len(read)
        places.append((len(read), error.offset))
    assert places[0] == places[1], "the broker and the client agree"


@pytest.mark.parametrize("part", [(BEGIN, BEGIN + 10), (BEGIN + MIB + 5, BEGIN + MIB + 10)])
@pytest.mark.parametrize("codec", [CODEC.NONE, CODEC.GZIP, CODEC.ZSTANDARD])
async def test_parts_of_damaged_fragments_are_refused(
    broker: EmbeddedBroker, client: JournalClient, root: Path, codec: int, part: tuple[int, int]
) -> None:
    fragment = fragment_of(CONTENT, codec)
    data = compressed(flipped(CONTENT, 2 * MIB + 7), codec)
    await serve(broker, client, root, fragment, data)
    begin, end = part
    read, error = await until_error(client.read(JOURNAL, offset=begin, end_offset=end))
    assert (read, type(error)) == (b"", pb.FragmentError)
    assert isinstance(error, pb.FragmentError)
    assert error.offset == begin
    where = f"(fragment [{BEGIN}, {fragment.end}) of {JOURNAL} at "
    assert "wrong SHA-1 sum" in error.text
    assert where in error.text


async def test_frames_without_a_checksum_have_the_sum_of_the_fragment(
    broker: EmbeddedBroker, client: JournalClient, root: Path
) -> None:
    content = os.urandom(200_000)  # Which is stored as it is.
    fragment = fragment_of(content, CODEC.ZSTANDARD)
    data = without_checksum(content)
    await serve(broker, client, root, fragment, flipped(data, 100_000))
    read, error = await until_error(client.read(JOURNAL, offset=BEGIN))
    assert isinstance(error, pb.FragmentError)
    assert len(read) < len(content)
    (root / pb.content_path(fragment)).write_bytes(data)
    async with client.read(JOURNAL, offset=BEGIN, end_offset=fragment.end) as reader:
        assert b"".join([chunk async for chunk in reader]) == content


async def test_damaged_files_of_a_real_broker(
    broker: EmbeddedBroker, client: JournalClient, root: Path, vectors: Path
) -> None:
    codecs = vectors / "fragment_codecs"
    cases = json.loads((codecs / "index.json").read_text())["damaged"]
    assert len(cases) == 12
    journals = [f"test/damaged-{number}" for number in range(len(cases))]
    sizes = [case["plain_length"] for case in cases]
    for journal, case, size in zip(journals, cases, sizes, strict=True):
        fragment = fragment_of(b"-", CODEC.Value(case["codec"]))
        fragment.journal, fragment.end = journal, BEGIN + size
        (root / journal).mkdir()
        (root / pb.content_path(fragment)).write_bytes((codecs / case["file"]).read_bytes())
    specs = [journal_spec(journal, stores=["file:///"]) for journal in journals]
    await create_journals(client, *specs)
    await broker.refresh()
    for journal, case, size in zip(journals, cases, sizes, strict=True):
        read, error = await until_error(client.read(journal, offset=BEGIN))
        if case["note"] == "empty file":
            assert isinstance(error, pb.FragmentError | pb.OffsetNotYetAvailableError)
        else:
            assert isinstance(error, pb.FragmentError), case
        assert len(read) < size


async def test_the_log_names_the_file(
    broker: EmbeddedBroker,
    client: JournalClient,
    root: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fragment = fragment_of(b"content", CODEC.NONE)
    await serve(broker, client, root, fragment, b"kontent")
    with caplog.at_level(logging.ERROR, "gazette_aio.broker"):
        await until_error(client.read(JOURNAL, offset=BEGIN))
    record = caplog.records[0]
    fields = {"journal": JOURNAL, "offset": BEGIN, "path": pb.content_path(fragment)}
    assert {name: record.__dict__[name] for name in fields} == fields
    assert record.message.startswith("fragment file is damaged: wrong SHA-1 sum")


async def test_the_gateway_answers_no_damaged_content(
    broker: EmbeddedBroker, client: JournalClient, root: Path
) -> None:
    fragment = fragment_of(CONTENT, CODEC.NONE)
    path = root / pb.content_path(fragment)
    await serve(broker, client, root, fragment, flipped(CONTENT, 5))
    url = f"{broker.http_endpoint}/{JOURNAL}"
    async with aiohttp.ClientSession() as session:
        # Content before the last slice has been sent.
        async with session.get(f"{url}?offset={BEGIN}") as response:
            assert response.status == 206
            assert len(await response.read()) < len(CONTENT)
        async with session.get(f"{url}?offset={fragment.end - 1}") as response:
            assert response.status == 500
            assert "wrong SHA-1 sum" in await response.text()
        path.write_bytes(CONTENT)
        async with session.get(f"{url}?offset={fragment.end - 1}") as response:
            assert response.status == 206
            assert await response.read() == CONTENT[-1:]


async def test_without_verification_only_lengths_and_streams_are_checked(
    tmp_path: Path, root: Path
) -> None:
    fragment = fragment_of(CONTENT, CODEC.NONE)
    wrong = flipped(CONTENT, 5)
    options: Any = {"file_root": root, "fsync": "off", "verify_fragments": False}
    async with EmbeddedBroker(tmp_path / "data", **options) as broker:
        policy = RetryPolicy(backoff=lambda _: 0.0)
        async with connect(broker.endpoint, retry=policy) as client:
            await serve(broker, client, root, fragment, wrong)
            async with client.read(JOURNAL, offset=BEGIN, end_offset=fragment.end) as reader:
                assert b"".join([chunk async for chunk in reader]) == wrong
            (root / pb.content_path(fragment)).write_bytes(wrong + b"+")
            read, error = await until_error(client.read(JOURNAL, offset=BEGIN))
            assert isinstance(error, pb.FragmentError)
            assert len(read) < len(CONTENT)


# The content of one file


class CountingStore(FileFragmentStore):
    """A store which counts the bytes that are read.

    Args:
        root: File root.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(FileOps(), root, "file:///", sync=False)
        self.count = 0

    def open(self, path: str) -> Any:
        """Open a file."""
        return CountingFile(self, super().open(path))


class CountingFile:
    """A file of a CountingStore."""

    def __init__(self, store: CountingStore, file: StoredFile) -> None:
        self._store = store
        self._file = file
        self.seek = file.seek
        self.close = file.close
        self.gzipped = file.gzipped
        self.version = file.version

    def read(self, limit: int) -> bytes:
        data = self._file.read(limit)
        self._store.count += len(data)
        return data


class Reading:
    """Reads of one file, with the same memory of what was verified."""

    def __init__(self, root: Path, fragment: pb.Fragment, data: bytes) -> None:
        self.store = CountingStore(root)
        self.fragment = fragment
        self.verified = VerifiedFiles()
        self.path = root / pb.content_path(fragment)
        self.path.write_bytes(data)

    def read(self, begin: int, end: int) -> tuple[bytes, int]:
        """Return content, and the number of bytes of the file that were read for it."""
        self.store.count = 0
        content = StoredContent(self.store, self.fragment, begin, end, verified=self.verified)
        parts: list[bytes] = []
        try:
            while (part := content.next()) is not None:
                assert len(part) <= 2 * MIB
                parts.append(part)
        finally:
            content.close()
        return b"".join(parts), self.store.count


@pytest.mark.parametrize("codec", CODECS)
def test_any_part_equals_the_content(root: Path, codec: int) -> None:
    end = BEGIN + len(CONTENT)
    edges = [BEGIN, BEGIN + 1, BEGIN + MIB, BEGIN + MIB + 1, end - 1, end]
    data = compressed(CONTENT, codec)
    for begin in edges:
        for until in (edge for edge in edges if edge > begin):
            reading = Reading(root, fragment_of(CONTENT, codec), data)
            for _ in range(2):  # The second one knows the file.
                read, _ = reading.read(begin, until)
                assert read == CONTENT[begin - BEGIN : until - BEGIN]


@pytest.mark.parametrize("codec", [CODEC.GZIP, CODEC.ZSTANDARD, CODEC.SNAPPY])
def test_damage_before_a_part_is_told_where_it_is(root: Path, codec: int) -> None:
    reading = Reading(root, fragment_of(CONTENT, codec), flipped(compressed(CONTENT, codec), 0))
    with pytest.raises(pb.FragmentError, match=rf"at {BEGIN}\)$") as raised:
        reading.read(BEGIN + MIB, BEGIN + MIB + 10)
    assert raised.value.offset == BEGIN


def test_a_file_is_read_as_a_whole_only_once(root: Path) -> None:
    reading = Reading(root, fragment_of(CONTENT, CODEC.NONE), CONTENT)
    end = reading.fragment.end
    assert reading.read(end - 10, end) == (CONTENT[-10:], len(CONTENT))
    assert reading.read(end - 10, end) == (CONTENT[-10:], 10)
    middle = BEGIN + MIB
    content, count = reading.read(middle, middle + 10)
    assert (content, count) == (CONTENT[MIB : MIB + 10], MIB)

    # Another file of this name is verified anew.
    status = reading.path.stat()
    reading.path.write_bytes(flipped(CONTENT, 5))
    os.utime(reading.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(pb.FragmentError, match="wrong SHA-1 sum"):
        reading.read(end - 10, end)
    with pytest.raises(pb.FragmentError, match="wrong SHA-1 sum"):
        reading.read(end - 10, end)


@pytest.mark.parametrize("codec", [CODEC.GZIP, CODEC.ZSTANDARD])
def test_decompression_is_bounded_by_the_fragment(root: Path, codec: int) -> None:
    # Many members of zeros.
    data = compressed(bytes(64 * MIB), codec) * (16 if codec == CODEC.GZIP else 256)
    assert len(data) > 2 * INPUT_BYTES
    reading = Reading(root, fragment_of(bytes(1000), codec), data)
    with pytest.raises(pb.DidNotReadExpectedEOFError):
        reading.read(BEGIN, reading.fragment.end)
    assert reading.store.count <= INPUT_BYTES


def test_a_fragment_whose_name_has_no_sum_is_read(root: Path) -> None:
    fragment = fragment_of(CONTENT, CODEC.NONE)
    fragment.ClearField("sum")
    reading = Reading(root, fragment, CONTENT)
    assert reading.read(fragment.end - 10, fragment.end) == (CONTENT[-10:], 10)
    reading.path.write_bytes(CONTENT[:-1])
    with pytest.raises(pb.UnexpectedEOFError):
        reading.read(fragment.end - 10, fragment.end)


def test_only_the_latest_verified_files_are_known() -> None:
    verified = VerifiedFiles()
    names = [hashlib.sha1(bytes([n >> 8, n & 255])).hexdigest() for n in range(1 << 14)]
    for name in names:
        verified.add(name, "1")
    assert verified.has(names[0], "1")
    assert not verified.has(names[0], "2")
    verified.add(names[0], "1")
    verified.add("more", "1")
    assert verified.has(names[0], "1")
    assert not verified.has(names[1], "1")
    verified.add("unversioned", "")
    assert not verified.has("unversioned", "")
