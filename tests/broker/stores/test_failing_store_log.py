"""A store which can't be reached is logged once, and once more when it works again."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker, ManualClock
from tests.broker.caller import calling, journal_spec

STORE = "file:///store/"
LOGGER = "gazette_aio.broker.stores.handle"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def test_a_store_which_fails_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    (root / "store").mkdir(parents=True)
    async with EmbeddedBroker(
        tmp_path / "data", fsync="off", persist_delay=3600.0, persist_retry=3600.0, file_root=root
    ) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=[STORE]))
            await caller.commit(b"content")
            assert broker.stats()["gazette_failing_stores"] == {}
            shutil.rmtree(root / "store")
            with caplog.at_level(logging.WARNING):
                for _ in range(3):
                    with pytest.raises(pb.StoreError, match="invalid file store directory"):
                        await broker.flush()
                    await broker.refresh()  # An empty listing isn't a recovery.
                (failed,) = logged(caplog)
                assert failed.startswith(f"fragment store {STORE} fails, and will be retried: inv")
                (error,) = broker.stats()["gazette_failing_stores"].values()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
                assert failed.endswith(str(error))  # pyright: ignore[reportUnknownArgumentType]
                (root / "store").mkdir()
                await asyncio.gather(broker.flush(), broker.refresh())
                await broker.flush()
            assert logged(caplog)[1:] == [f"fragment store {STORE} works again"]
            assert broker.stats()["gazette_failing_stores"] == {}


async def test_the_names_of_stores_have_no_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", file_only=True) as broker:
        handle = broker.core.stores.get("s3://bucket/missing/?find=secret&replace=x")
        assert await handle.check() != ""
        (failed,) = logged(caplog)
        assert failed.startswith("fragment store s3://bucket/missing/?… fails")
        assert "secret" not in str(broker.stats()["gazette_failing_stores"])


async def test_the_success_of_any_journal_is_a_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "root" / "store" / "test"
    directory.mkdir(parents=True)
    (directory / "linked").symlink_to(tmp_path)  # Links aren't followed: the listing fails.
    clock = ManualClock()
    async with (
        EmbeddedBroker(
            tmp_path / "data", fsync="off", file_root=tmp_path / "root", clock=clock
        ) as broker,
        calling(broker.endpoint) as caller,
    ):
        names = ["test/linked", "test/works"]
        await caller.create(*(journal_spec(name, stores=[STORE]) for name in names))
        await broker.refresh("test/linked")
        await broker.refresh("test/linked")
        (failed,) = logged(caplog)
        assert failed.startswith(f"fragment store {STORE} fails, and will be retried: ")
        await broker.refresh("test/works")
        assert logged(caplog)[1:] == [f"fragment store {STORE} works again"]
        assert broker.stats()["gazette_failing_stores"] == {}
        await broker.refresh("test/linked")
        assert broker.stats()["gazette_failing_stores"] != {}
        await caller.delete("test/linked")
        await caller.delete("test/works")
        clock.advance(3 * 3600)  # Nobody uses it any more.
        assert broker.stats()["gazette_failing_stores"] == {}


async def test_a_store_that_a_test_fails_shows_no_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = "s3://bucket/missing/?find=secret&replace=x"
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        with broker.control.fail_store(url) as failure:
            handle = broker.core.stores.get(url)
            assert await handle.check() != ""
            shown = f"{failure!r} {failure.store!r} {handle!r} {broker!r} {broker.stats()}"
    assert "s3://bucket/missing/?…" in shown
    assert "secret" not in shown
    assert "secret" not in caplog.text
