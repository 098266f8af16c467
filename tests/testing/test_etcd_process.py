"""Processes of Etcd, as far as they're killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.testing.etcd_process import EtcdProcess, survives_kills
from tests.etcd import binary


@pytest.mark.parametrize(
    ("version", "survives"),
    [("3.5.1", False), ("3.5.3", True), ("3.5.21", True), ("3.6.0", True), ("unknown", False)],
)
def test_old_versions_are_not_killed(
    tmp_path: Path, monkeypatch: Any, version: str, survives: bool
):
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("ETCD_BINARY", str(program))
    assert survives_kills() == survives


@pytest.mark.crash
async def test_keys_survive_a_kill(tmp_path: Path):
    binary()
    if not survives_kills():
        pytest.skip("Etcd is older than 3.5.3, and may lose consistency when it's killed")
    with EtcdProcess(tmp_path / "etcd") as etcd:
        async with EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store:
            written = await store.transact((), [Put("/a", b"1")])
        etcd.kill()
        etcd.kill()
        etcd.start()
        async with EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store:
            found = await store.range("/a")
            assert [entry.value for entry in found.entries] == [b"1"]
            assert found.header.revision == written.header.revision
