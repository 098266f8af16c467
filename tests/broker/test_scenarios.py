"""Scenarios recorded from a real broker, replayed on an embedded one over gRPC and HTTP.

`BROKER_ADDRESS` names another broker to replay on, with `BROKER_FILE_ROOT` if that is reachable and
`BROKER_HTTP_ADDRESS` if its gateway is at another address.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import BrokerOptions, EmbeddedBroker
from tests import golden, known_differences
from tests.broker import scenarios

_CONCURRENCY = 10
_SLOW_CLIENTS = {"append_stalled", "append_trickle"}
_ATTEMPTS = 3
_AUTH_KEYS = "c2VjcmV0LWtleQ==,b3RoZXItc2VjcmV0"


SCENARIOS = {
    scenario["name"]: scenario for scenario in golden.load("broker_scenarios.json")["scenarios"]
}

# They tell of rates or have deadlines, and a machine may stand still for a second.
_TIMED = {"append_max_rate", *_SLOW_CLIENTS} | {
    name
    for name, scenario in SCENARIOS.items()
    if any("timeout_s" in step for step in scenario["steps"])
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What differs in each scenario; all are replayed at once, each on a broker of its own."""
    return asyncio.run(_replay_all(tmp_path_factory.mktemp("stores")))


async def _replay_all(directory: Path) -> dict[str, str | None]:
    limit = asyncio.Semaphore(1 if "BROKER_ADDRESS" in os.environ else _CONCURRENCY)
    outcomes: dict[str, str | None] = {}

    async def replay(name: str) -> None:
        async with limit:
            outcomes[name] = await _replay(SCENARIOS[name], directory)

    await asyncio.gather(*(replay(name) for name in SCENARIOS if name not in _TIMED))
    for _ in range(_ATTEMPTS):
        left = [name for name in SCENARIOS if name in _TIMED and outcomes.get(name, "") is not None]
        await asyncio.gather(*map(replay, left))
    return outcomes


async def _replay(scenario: dict[str, Any], directory: Path) -> str | None:
    if address := os.environ.get("BROKER_ADDRESS"):
        return await _replay_remotely(scenario, address)
    root = Path(tempfile.mkdtemp(dir=directory))
    keyed = scenario.get("profile") == "auth"
    async with EmbeddedBroker(
        fsync="off",
        max_replication=9,
        file_root=root,
        store_wait=0.5,
        # Many are replayed at the same time, and none but these is about clients which are slow.
        min_append_rate=BrokerOptions.min_append_rate if scenario["name"] in _SLOW_CLIENTS else 0,
        # As long as it's read before it's persisted, and polled for after.
        persist_delay=5.0 if scenario["name"] == "suspend_partial" else 0.2,
        auth_keys=_AUTH_KEYS if keyed else None,
        http_allow_unauthenticated=True,
    ) as broker:
        target = scenarios.Target(
            address=broker.endpoint.removeprefix("http://"),
            endpoint=broker.endpoint,
            zone=broker.process_id.zone,
            suffix=broker.process_id.suffix,
            file_root=root,
            auth_key=_AUTH_KEYS.partition(",")[0] if keyed else None,
            http_address=broker.http_endpoint.removeprefix("http://"),
        )
        for text, (ours, _) in known_differences.BROKER_TEXTS.items():
            scenario = json.loads(json.dumps(scenario).replace(text, ours))
        scenario = _with_our_refusals(scenario)
        differs = scenario["name"] in known_differences.BROKER_SCENARIOS
        return await scenarios.replay(target, scenario, poll_seconds=2.0 if differs else None)


def _with_our_refusals(expected: Any) -> Any:
    if isinstance(expected, dict):
        return {key: _with_our_refusals(value) for key, value in expected.items()}
    if isinstance(expected, list):
        return [_with_our_refusals(value) for value in expected]
    for beginning, ours in known_differences.BROKER_REFUSALS.items():
        if isinstance(expected, str) and expected.startswith(beginning):
            return f"~{ours}"
    return expected


async def _replay_remotely(scenario: dict[str, Any], address: str) -> str | None:
    root = os.environ.get("BROKER_FILE_ROOT")
    if scenario.get("profile") == "auth":
        return "skip: needs a broker with keys"
    if root is None and scenarios.needs_store(scenario):
        return "skip: needs the broker's file root"
    target = address.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_stream(
            "/protocol.Journal/List",
            request_serializer=pb.ListRequest.SerializeToString,
            response_deserializer=pb.ListResponse.FromString,
        )
        response = await anext(aiter(call(pb.ListRequest())))
        process_id = response.header.process_id
    return await scenarios.replay(
        scenarios.Target(
            address=target,
            endpoint=os.environ.get("BROKER_ENDPOINT", address),
            zone=process_id.zone,
            suffix=process_id.suffix,
            file_root=Path(root) if root else None,
            http_address=os.environ.get("BROKER_HTTP_ADDRESS", target).removeprefix("http://"),
        ),
        scenario,
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str, outcomes: dict[str, str | None]) -> None:
    found = outcomes[name]
    if found is not None and found.startswith("skip: "):
        pytest.skip(found.removeprefix("skip: "))
    embedded = "BROKER_ADDRESS" not in os.environ
    if embedded and (reason := known_differences.BROKER_SCENARIOS.get(name)):
        assert found is not None, f"no longer differs: {reason}"
        return
    assert found is None


def test_scenarios_were_collected() -> None:
    assert len(SCENARIOS) == 204
    assert set(known_differences.BROKER_SCENARIOS) <= set(SCENARIOS)
    for text in known_differences.BROKER_TEXTS:
        assert sum(text in json.dumps(scenario) for scenario in SCENARIOS.values()) == 3
    for text in known_differences.BROKER_REFUSALS:
        quoted = json.dumps(text)[1:-1]
        assert any(quoted in json.dumps(scenario) for scenario in SCENARIOS.values()), text


async def test_nested_journals_are_shared_on_request(tmp_path: Path) -> None:
    scenario = SCENARIOS["fragment_nested_journal"]
    async with EmbeddedBroker(
        fsync="off", file_root=tmp_path, max_replication=9, nested_journals="shared"
    ) as broker:
        target = scenarios.Target(
            address=broker.endpoint.removeprefix("http://"),
            endpoint=broker.endpoint,
            zone=broker.process_id.zone,
            suffix=broker.process_id.suffix,
            file_root=tmp_path,
        )
        assert await scenarios.replay(target, scenario) is None
