"""Fixtures shared by all tests."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from gazette_aio.testing.ports import free_port
from tests import extent, golden


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the whole run."""
    parser.addoption("--uvloop", action="store_true", help="run tests of coroutines, under uvloop")
    parser.addoption("--long", action="store_true", help="try many more cases at random")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how far the tests go, before their modules are imported."""
    extent.choose(long=config.getoption("--long"))
    # A shell has what it starts in the background ignore interrupts, as would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Pass over tests which have no event loop, where it's about the loop."""
    if config.getoption("--uvloop"):
        others = [item for item in items if item.get_closest_marker("asyncio") is None]
        items[:] = [item for item in items if item.get_closest_marker("asyncio") is not None]
        config.hook.pytest_deselected(items=others)


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


@pytest.fixture(autouse=True)
def _log_level_stays() -> Iterator[None]:
    """Undo what commands which are run within the tests' process say of the log."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def unused_tcp_port() -> int:
    """A port which stays free, unlike that of pytest-asyncio."""
    return free_port()


@pytest.fixture
def vectors() -> Path:
    """Directory of golden data."""
    return golden.directory()
