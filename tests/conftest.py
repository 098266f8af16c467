"""Fixtures shared by all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests import golden
from tests.ports import free_port

# How fast examples are made and tried is up to what else the machine has to do.
settings.register_profile(
    "steady", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option which runs the tests under another event loop."""
    parser.addoption("--uvloop", action="store_true", help="run coroutines under uvloop")


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loop that tests run on."""
    if config.getoption("--uvloop"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.SelectorEventLoop}


@pytest.fixture(scope="session", autouse=True)
def _clients_may_be_slow() -> Iterator[None]:
    """Have brokers within the tests' process demand no rate of appends, unless a test says so.

    A machine which is shared with other tests may not let a client sustain it.
    """
    from gazette_aio.broker import BrokerOptions

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BrokerOptions.__init__.__kwdefaults__, "min_append_rate", 0)
        yield


@pytest.fixture
def unused_tcp_port() -> int:
    """A port which stays free, unlike that of pytest-asyncio."""
    return free_port()


@pytest.fixture
def vectors() -> Path:
    """Directory of golden data."""
    return golden.directory()
