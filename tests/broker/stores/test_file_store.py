"""Local stores: symbolic links lead nowhere, and errors don't tell where files are."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.stores import FileFragmentStore
from gazette_aio.serving.rpc_error import failure_text
from tests.broker.caller import Caller, calling, journal_spec
from tests.broker.journal.faulty_files import FaultyFiles

SECRET = b"secret"
NAME = f"{0:016x}-{len(SECRET):016x}-{hashlib.sha1(SECRET).hexdigest()}.raw"


def new_broker(path: Path, **options: Any) -> EmbeddedBroker:
    root = path / "root"
    (root / "test" / "journal").mkdir(parents=True, exist_ok=True)
    options = {"fsync": "off", "persist_delay": 0.0, "http_port": None, **options}
    return EmbeddedBroker(path / "data", file_root=root, store_wait=0.05, **options)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory outside of the file root, with a file of the name of a fragment."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / NAME).write_bytes(SECRET)
    return directory


OPERATIONS: dict[str, Callable[[FileFragmentStore, str], object]] = {
    "put": lambda store, path: store.put(path, (b"content",)),
    "make_durable": lambda store, path: store.make_durable(path),
    "stat": lambda store, path: store.stat(path),
    "open": lambda store, path: store.open(path),
    "list": lambda store, path: list(store.list(path + "/")),
    "remove": lambda store, path: store.remove(path),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("link", ["area", "area/base", "store"])
def test_no_operation_follows_a_link(
    tmp_path: Path, outside: Path, operation: str, link: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (outside / "area" / "base").mkdir(parents=True)
    (outside / "area" / "base" / "file").write_bytes(SECRET)
    (outside / "base").mkdir()
    (outside / "base" / "file").write_bytes(SECRET)
    (outside / "file").write_bytes(SECRET)
    before = sorted(outside.rglob("*"))
    (root / "store" / "area").mkdir(parents=True)
    at = root / link if link == "store" else root / "store" / link
    if at.is_dir():
        for each in (root / "store" / "area", root / "store"):
            if each == at or at in each.parents:
                each.rmdir()
    at.symlink_to(outside)
    store = FileFragmentStore(FileOps(), root, "file:///store/", sync=True)
    with pytest.raises(pb.StoreError, match="is a symbolic link, which is not followed") as raised:
        OPERATIONS[operation](store, "area/base/file")
    assert str(tmp_path) not in str(raised.value)
    assert sorted(outside.rglob("*")) == before
    assert (outside / "file").read_bytes() == SECRET


def test_a_file_which_is_a_link_is_none(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "root").mkdir()
    link = tmp_path / "root" / "file"
    link.symlink_to(outside / NAME)
    store = FileFragmentStore(FileOps(), tmp_path / "root", "file:///", sync=True)
    assert list(store.list("")) == []
    with pytest.raises(pb.StoreError, match="file is not a file"):
        store.stat("file")
    with pytest.raises(pb.StoreError, match="file is a symbolic link"):
        store.open("file")
    # A write replaces the link itself, and a removal removes it.
    store.put("file", (b"content",))
    assert not link.is_symlink()
    link.unlink()
    link.symlink_to(outside / NAME)
    store.remove("file")
    assert (outside / NAME).read_bytes() == SECRET


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    store = FileFragmentStore(FileOps(), tmp_path / "root", "file:///", sync=True)
    store.put("area/file", (b"content",))
    assert [listed.path for listed in store.list("area/")] == ["file"]
    with store.open("area/file") as file:
        assert file.read(100) == b"content"


async def test_links_are_not_served_as_fragments(tmp_path: Path, outside: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        journal = tmp_path / "root" / "test" / "journal"
        (journal / NAME).symlink_to(outside / NAME)
        (journal / "below").symlink_to(outside)
        await caller.create(journal_spec(stores=["file:///"]))
        assert await caller.fragments() == []
        assert await caller.read() == b""


async def test_a_fragment_which_becomes_a_link_is_not_served(tmp_path: Path, outside: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        journal = tmp_path / "root" / "test" / "journal"
        (journal / NAME).write_bytes(SECRET)
        await caller.create(journal_spec(stores=["file:///"]))
        assert await caller.read() == SECRET
        (journal / NAME).unlink()
        (journal / NAME).symlink_to(outside / NAME)
        with pytest.raises(grpc.aio.AioRpcError, match="is a symbolic link"):
            await caller.read()
        journal.rename(tmp_path / "root" / "moved")
        journal.symlink_to(outside)
        with pytest.raises(grpc.aio.AioRpcError, match="test/journal is a symbolic link"):
            await caller.read()


async def told(caller: Caller, store: str = "file:///") -> list[str]:
    """Return the texts by which all requests for a journal and its store are answered."""
    texts: list[str] = []
    try:
        texts.append(str(await caller.append(b"x")))
    except grpc.aio.AioRpcError as error:
        texts.append(str(error.details()))
    try:
        await caller.read()
    except grpc.aio.AioRpcError as error:
        texts.append(str(error.details()))
    try:
        texts.append(str(await caller.fragments()))
    except grpc.aio.AioRpcError as error:
        texts.append(str(error.details()))
    request = pb.FragmentStoreHealthRequest(fragment_store=store, check_delete=True)
    texts.append((await caller.health_call(request)).store_health_error)
    return texts


def _missing_root(root: Path) -> None:
    root.rename(root.with_name("gone"))


def _file_for_root(root: Path) -> None:
    _missing_root(root)
    root.write_bytes(b"")


def _file_for_journal(root: Path) -> None:
    (root / "test" / "journal").rmdir()
    (root / "test" / "journal").write_bytes(b"")


def _link_for_journal(root: Path) -> None:
    (root / "test" / "journal").rmdir()
    (root / "test" / "journal").symlink_to(root)


def _directory_for_check(root: Path) -> None:
    shutil.rmtree(root / ".test")
    (root / ".test" / "health-check").mkdir(parents=True)


def _link_for_check(root: Path) -> None:
    shutil.rmtree(root / ".test")
    (root / ".test").symlink_to(root.parent)


def _directory_for_fragment(root: Path) -> None:
    (root / "test" / "journal" / NAME).mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        _missing_root,
        _file_for_root,
        _file_for_journal,
        _link_for_journal,
        _directory_for_check,
        _link_for_check,
        _directory_for_fragment,
    ],
)
async def test_errors_do_not_tell_where_files_are(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(SECRET)
        harm(tmp_path / "root")
        broker.control.clock.advance(3600)  # The health of the store is checked again.
        for text in await told(caller):
            assert str(tmp_path) not in text
            assert "root" not in text.replace("leads out of its root", "")


@pytest.mark.parametrize("operation", ["open", "pwrite", "pread", "make_directory", "rename"])
async def test_errors_of_the_disk_do_not_tell_where_files_are(
    tmp_path: Path, operation: str
) -> None:
    files = FaultyFiles()
    async with new_broker(tmp_path, files=files) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(SECRET)
        files.fail(operation, "", errno.EIO)
        texts = await told(caller)
        try:
            await caller.create(journal_spec("test/other"))
        except grpc.aio.AioRpcError as error:
            texts.append(str(error.details()))
        for text in texts:
            assert str(tmp_path) not in text
        files.heal()


def test_unexpected_errors_do_not_tell_where_files_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as raised:
        (tmp_path / "missing").stat()
    assert failure_text(raised.value) == "FileNotFoundError: No such file or directory"
    assert failure_text(ValueError("broken")) == "ValueError: broken"


def names_below(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("is_owned", [True, False])
async def test_partial_files_of_killed_brokers_are_removed(tmp_path: Path, is_owned: bool) -> None:
    data, root = tmp_path / "data", tmp_path / "root"
    root.mkdir()
    options: dict[str, Any] = {"fsync": "off", "http_port": None, "persist_delay": 0.0}
    if not is_owned:
        options["file_root"] = root
    directory = (data / "fragments" if is_owned else root) / "test" / "journal"
    async with EmbeddedBroker(data, **options) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(SECRET)
        await broker.flush()
        now = time.time()
        for name, age in (("old", 3700), ("recent", 3500), ("present", 0)):
            partial = directory / f".partial-{name}"
            partial.write_bytes(b"partial")
            os.utime(partial, (now - age + 10, now - age + 10))
        (directory / "other").write_bytes(b"not ours")
        await broker.refresh()
    assert await asyncio.to_thread(names_below, directory) == sorted(
        [".partial-present", *([] if is_owned else [".partial-recent"]), NAME, "other"]
    )
    # The next run may take all of them away which are older than itself.
    os.utime(directory / ".partial-present", (now - 10, now - 10))
    async with EmbeddedBroker(data, **options) as broker, calling(broker.endpoint) as caller:
        await broker.refresh()
        assert await caller.read() == SECRET
    kept = [".partial-present", ".partial-recent"]
    assert await asyncio.to_thread(names_below, directory) == sorted(
        [*([] if is_owned else kept), NAME, "other"]
    )
