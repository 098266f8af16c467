"""Fixtures of consumers' tests: a real Etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
