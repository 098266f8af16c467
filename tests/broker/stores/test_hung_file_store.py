"""File stores whose file system hangs, as a network's may do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.stores import handle
from gazette_aio.broker.stores.file_store import FileFragmentStore
from tests.broker.caller import Caller, calling, journal_spec

Use = Callable[[EmbeddedBroker, Caller], Coroutine[Any, Any, object]]

USES: dict[str, tuple[str, Use]] = {
    "persisting": ("put", lambda broker, _: broker.flush()),
    "listing": ("list", lambda broker, _: broker.refresh()),
    "reading": ("open", lambda _, caller: caller.read("to/read")),
    "a check": ("put", lambda _, caller: caller.commit(b"more", "a/fresh")),
}


async def outcome(use: Coroutine[Any, Any, object]) -> object:
    try:
        return await use
    except Exception as error:  # noqa: BLE001 - It's looked at.
        return error


@pytest.mark.parametrize("name", USES)
async def test_a_hung_store_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, use = USES[name]
    begun, end = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        begun.set()
        end.wait(60)
        raise OSError(116, "Stale file handle")

    root = tmp_path / "root"
    for directory in ("one", "two"):
        (root / directory).mkdir(parents=True)
    options: dict[str, Any] = {"fsync": "off", "persist_delay": 3600.0, "file_root": root}
    broker = EmbeddedBroker(tmp_path / "data", **options)
    await broker.start()
    try:
        async with calling(broker.endpoint) as caller:
            one = ["file:///one/"]
            await caller.create(journal_spec("to/read", stores=one), journal_spec("its/own"))
            await caller.create(journal_spec("a/fresh", stores=["file:///two/"]))
            await caller.commit(b"content", "to/read")
            await broker.flush()
            await caller.commit(b"its own", "its/own")
            await caller.create(journal_spec("test/journal", stores=one))
            await caller.commit(b"not persisted", "test/journal")
            monkeypatch.setattr(FileFragmentStore, method, hang)
            using = asyncio.create_task(outcome(use(broker, caller)))
            assert await asyncio.to_thread(begun.wait, 30)
            # The others are served.
            assert await caller.read("its/own") == b"its own"
            stopping = asyncio.create_task(broker.stop(0.1))
            await asyncio.wait((stopping,), timeout=30)
            has_stopped = stopping.done()
            if has_stopped:
                await asyncio.wait((using,), timeout=30)
                assert using.done()
    finally:
        end.set()
    await stopping
    assert has_stopped
    monkeypatch.undo()
    # The directory is free, and nothing in it was lost.
    async with EmbeddedBroker(tmp_path / "data", **options) as broker:
        async with calling(broker.endpoint) as caller:
            assert await caller.read("test/journal") == b"not persisted"
            assert await caller.read("to/read") == b"content"
            await broker.flush()
            assert await caller.read("test/journal") == b"not persisted"


async def test_an_append_does_not_wait_for_a_hung_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def hang(*_: object, **__: object) -> None:
        end.wait(60)
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(FileFragmentStore, "put", hang)
    monkeypatch.setattr(handle, "LOCAL_CHECK_SECONDS", 0.05)
    (tmp_path / "root").mkdir()
    options: dict[str, Any] = {"fsync": "off", "file_root": tmp_path / "root", "store_wait": 0.05}
    async with EmbeddedBroker(tmp_path / "data", **options) as broker:
        try:
            async with calling(broker.endpoint) as caller:
                await caller.create(journal_spec("a/journal", stores=["file:///"]))
                response = await caller.append(b"content", "a/journal")
                assert not end.is_set()
        finally:
            end.set()
    assert response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    assert "health check takes longer" in response.store_health_error
