"""Fixtures of consumers' tests: a real Etcd, and a client without a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gazette_aio.client import JournalClient, connect
from tests.etcd import Etcd


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One Etcd for all tests of a process."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(etcd_server: Etcd) -> Etcd:
    """An Etcd without keys. Tests must not stop it."""
    etcd_server.wipe()
    return etcd_server


@pytest.fixture
async def client() -> AsyncIterator[JournalClient]:
    """A client that isn't connected: no test of this fixture reaches a broker."""
    async with connect("http://127.0.0.1:1") as client:
        yield client
