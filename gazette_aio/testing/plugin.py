"""Pytest plugin with fixtures for tests that need a broker.

Pytest loads the plugin where this package is installed. The fixtures work for tests of
pytest-asyncio, in both of its modes, and for tests of anyio's plugin, on its backend `asyncio`.
Each test has its own broker, also with pytest-xdist.

`gazette` is a `Gazette`: broker, client, publishers and topics in one. `gazette_broker` is an
`EmbeddedBroker` per test, in a temporary directory, on free ports of the loopback interface. It
doesn't sync files, and has no HTTP gateway without the option `http_port=0`. `gazette_client` is a
`JournalClient` of the broker. Options of the broker come from the fixture `gazette_broker_options`,
which a project may override, and from the marker `gazette_broker`. The marker takes precedence:

    @pytest.fixture
    def gazette_broker_options() -> dict[str, object]:
        return {"zone": "test"}

    @pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
    async def test_something(gazette_client):
        ...
"""

from __future__ import annotations

import importlib.util
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path

    from gazette_aio.broker import EmbeddedBroker
    from gazette_aio.client import JournalClient
    from gazette_aio.testing.gazette import Gazette

_MARKER = "gazette_broker(**options): options of the EmbeddedBroker of the fixture gazette_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this plugin."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Leave the fixtures of anyio's tests to anyio; otherwise pytest-asyncio would run them."""
    function = fixturedef.func
    if function not in _FUNCTIONS or "anyio_backend" not in request.fixturenames:
        return (yield)
    # A copy without the mark of pytest-asyncio, which would use another event loop.
    unmarked = FunctionType(function.__code__, function.__globals__, function.__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixturedef, "func", unmarked)
        return (yield)


@pytest.fixture
def gazette_broker_options() -> dict[str, Any]:
    """Options of each test's broker; override this fixture for your project."""
    return {}


def _options(request: pytest.FixtureRequest, base: dict[str, Any], path: Path) -> dict[str, Any]:
    defaults = {"data_dir": path / "gazette-broker", "fsync": "off", "http_port": None}
    options: dict[str, Any] = {**defaults, **base}
    for marker in reversed(list(request.node.iter_markers("gazette_broker"))):
        options |= marker.kwargs
    return options


async def _broker(
    request: pytest.FixtureRequest,
    _gazette_loop: None,
    gazette_broker_options: dict[str, Any],
    tmp_path: Path,
) -> AsyncIterator[EmbeddedBroker]:
    """Yield a running broker for the test."""
    # Imported here: pytest loads plugins in every run, also without a broker.
    from gazette_aio.broker import EmbeddedBroker  # noqa: PLC0415

    async with EmbeddedBroker(**_options(request, gazette_broker_options, tmp_path)) as broker:
        yield broker


async def _client(
    request: pytest.FixtureRequest,
    gazette_broker: EmbeddedBroker,
    gazette_broker_options: dict[str, Any],
    tmp_path: Path,
) -> AsyncIterator[JournalClient]:
    """Yield a client of the test's broker, authorized by the broker's keys."""
    from gazette_aio.client import connect  # noqa: PLC0415
    from gazette_aio.protocol import KeyedAuth, NoopAuth  # noqa: PLC0415

    keys = _options(request, gazette_broker_options, tmp_path).get("auth_keys")
    auth = KeyedAuth(keys) if keys else NoopAuth()
    async with connect(gazette_broker.endpoint, auth=auth) as client:
        yield client


async def _gazette(
    gazette_broker: EmbeddedBroker, gazette_client: JournalClient
) -> AsyncIterator[Gazette]:
    """Yield the broker, its client, publishers and topics of the test."""
    from gazette_aio.testing.gazette import Gazette  # noqa: PLC0415

    yield Gazette(gazette_broker, gazette_client)


def _is_auto(config: pytest.Config) -> bool:
    """Return whether pytest-asyncio runs all coroutine tests."""
    if not config.pluginmanager.has_plugin("asyncio"):
        return False
    mode: str = config.getoption("asyncio_mode", None) or config.getini("asyncio_mode")
    return mode == "auto"


@pytest.fixture
def _gazette_loop(request: pytest.FixtureRequest) -> None:
    """Refuse tests that no plugin runs on asyncio."""
    if "anyio_backend" in request.fixturenames:
        backend: str = request.getfixturevalue("anyio_backend_name")
        if backend != "asyncio":
            raise pytest.UsageError(
                f"gazette_aio runs on asyncio, and not on {backend}: have the fixture "
                "anyio_backend return 'asyncio'"
            )
        if _is_auto(request.config):
            raise pytest.UsageError(
                "pytest-asyncio runs the fixtures of anyio's tests on another event loop: "
                "set asyncio_mode = strict"
            )
    elif not request.config.pluginmanager.has_plugin("asyncio"):
        raise pytest.UsageError(
            "the fixtures of gazette_aio need pytest-asyncio, pip install 'gazette-aio[pytest]', "
            "or a test of anyio, @pytest.mark.anyio"
        )


_fixture: Any = pytest.fixture
if importlib.util.find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    _fixture = pytest_asyncio.fixture

_FUNCTIONS = (_broker, _client, _gazette)
gazette_broker: Any = _fixture(name="gazette_broker")(_broker)
gazette_client: Any = _fixture(name="gazette_client")(_client)
gazette: Any = _fixture(name="gazette")(_gazette)
