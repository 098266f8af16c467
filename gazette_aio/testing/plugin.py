"""Pytest plugin with fixtures for tests which need a broker.

Pytest loads the plugin where this package is installed. The fixtures need pytest-asyncio, in either
of its modes.

`gazette_broker` is an `EmbeddedBroker` per test, in a temporary directory, on free ports of the
loopback interface. It doesn't sync files, and has no HTTP gateway without the option `http_port=0`.
`gazette_client` is a `JournalClient` of the broker. Options of the broker come from the fixture
`gazette_broker_options`, which a project may override, and from the marker `gazette_broker`, which
takes precedence:

    @pytest.fixture
    def gazette_broker_options() -> dict[str, object]:
        return {"zone": "test"}

    @pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
    async def test_something(gazette_client):
        ...
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gazette_aio.broker import EmbeddedBroker
    from gazette_aio.client import JournalClient

_MARKER = "gazette_broker(**options): options of the EmbeddedBroker of the fixture gazette_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this plugin."""
    config.addinivalue_line("markers", _MARKER)


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
    request: pytest.FixtureRequest, gazette_broker_options: dict[str, Any], tmp_path: Path
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


def _missing() -> None:
    """Raise UsageError, because pytest-asyncio isn't installed."""
    raise pytest.UsageError(
        "the fixtures of gazette_aio need pytest-asyncio: pip install 'gazette-aio[pytest]'"
    )


if importlib.util.find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    gazette_broker = pytest_asyncio.fixture(name="gazette_broker")(_broker)
    gazette_client = pytest_asyncio.fixture(name="gazette_client")(_client)
else:
    globals()["gazette_broker"] = pytest.fixture(name="gazette_broker")(_missing)
    globals()["gazette_client"] = pytest.fixture(name="gazette_client")(_missing)
