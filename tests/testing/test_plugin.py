"""The pytest plugin, in projects of users."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

AUTO = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
STRICT = "[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function\n"

IMPORTS = "from gazette_aio.testing import create_journals, journal_spec\n"


def run(pytester: pytest.Pytester, ini: str, test: str) -> pytest.RunResult:
    pytester.makeini(ini)
    pytester.makepyfile(IMPORTS + test)
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")


def test_auto_mode(pytester):
    result = run(
        pytester,
        AUTO,
        """
async def test_append(gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"))
    assert (await gazette_client.append("a/journal", b"x")).commit.end == 1

async def test_every_test_has_a_broker_of_its_own(gazette_client, gazette_broker):
    assert not (await gazette_client.list()).journals
""",
    )
    result.assert_outcomes(passed=2)


def test_strict_mode(pytester):
    result = run(
        pytester,
        STRICT,
        """
import pytest

@pytest.mark.asyncio
async def test_append(gazette_client):
    await create_journals(gazette_client, journal_spec("a/journal"))
    assert (await gazette_client.append("a/journal", b"x")).commit.end == 1
""",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_options_of_fixture_and_marker(pytester):
    result = run(
        pytester,
        AUTO,
        """
import pytest

@pytest.fixture
def gazette_broker_options():
    return {"zone": "fixture", "suffix": "name"}

async def test_fixture(gazette_broker):
    process = gazette_broker.process_id
    assert (process.zone, process.suffix) == ("fixture", "name")

@pytest.mark.gazette_broker(zone="marker")
async def test_marker_has_the_last_word(gazette_broker):
    process = gazette_broker.process_id
    assert (process.zone, process.suffix) == ("marker", "name")

async def test_no_gateway_by_default(gazette_broker):
    assert gazette_broker.http_endpoint == ""

@pytest.mark.gazette_broker(http_port=0)
async def test_a_gateway_if_asked(gazette_broker):
    assert gazette_broker.http_endpoint.startswith("http://127.0.0.1:")

@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_the_client_has_the_keys(gazette_client):
    await gazette_client.list()
""",
    )
    result.assert_outcomes(passed=5)


@pytest.mark.slow
def test_help_and_markers_are_listed(pytester):
    fixtures = pytester.runpytest_subprocess("--fixtures", "-p", "no:cacheprovider")
    markers = pytester.runpytest_subprocess("--markers", "-p", "no:cacheprovider")

    fixtures.stdout.fnmatch_lines(["gazette_broker *", "*running broker*"])
    fixtures.stdout.fnmatch_lines(["gazette_client *", "*client of the test's broker*"])
    markers.stdout.fnmatch_lines(["@pytest.mark.gazette_broker(*"])


def test_loading_the_plugin_imports_no_grpc(pytester):
    pytester.makepyfile(
        """
import sys

def test_nothing():
    assert "gazette_aio.testing.plugin" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] in ("grpc", "google")]
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


GAZETTE = """
import pytest

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend(request):
    return getattr(request, "param", "asyncio")

async def test_topics(gazette, gazette_broker):
    orders = await gazette.topic("orders", partitions=3, key=lambda order: b"%d" % order["id"])
    await gazette.publish(orders, *({"id": number} for number in range(9)))
    async with gazette.publisher(orders).transaction():
        pass
    committed = await gazette.committed(orders)
    assert sorted(each.message["id"] for each in committed) == list(range(9))
    assert len(orders.journals) == len({each.journal for each in committed}) == 3
    assert gazette.broker is gazette_broker
    assert (await gazette.client.append(await gazette.journal(), b"x")).commit.end == 1
"""


@pytest.mark.slow
def test_tests_of_anyio_without_pytest_asyncio(pytester):
    pytester.makepyfile(
        GAZETTE
        + """
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_trio(gazette):
    raise AssertionError

def test_plain(gazette_broker):
    raise AssertionError
"""
    )
    options = ("-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio")
    result = pytester.runpytest_subprocess(*options)

    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*runs on asyncio, and not on trio*"])
    result.stdout.fnmatch_lines(["*need pytest-asyncio, pip install*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ini", "outcomes"), [(STRICT, {"passed": 2}), (AUTO, {"passed": 1, "errors": 1})]
)
def test_tests_of_anyio_beside_those_of_pytest_asyncio(pytester, ini, outcomes):
    others = """
import pytest

@pytest.mark.asyncio
async def test_append(gazette):
    assert (await gazette.client.append(await gazette.journal(), b"x")).commit.end == 1
"""
    pytester.makepyfile(test_others=others)
    result = run(pytester, ini, GAZETTE)

    result.assert_outcomes(**outcomes)
    if "errors" in outcomes:
        result.stdout.fnmatch_lines(["*set asyncio_mode = strict"])
