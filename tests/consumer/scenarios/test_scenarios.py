"""Scenarios recorded from a real consumer, replayed on members that are processes of their own."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from tests import extent, golden, known_differences
from tests.consumer.scenarios.group import Group, Keys, group
from tests.consumer.scenarios.replay import replay

if TYPE_CHECKING:
    from tests.etcd import Etcd

pytestmark = [pytest.mark.slow, pytest.mark.crash]

_LIVES = 2
"""Scenarios replayed at a time that start members of their own."""
_SHARING = 4
"""Scenarios replayed at a time on the same members."""


RECORDED: list[dict[str, Any]] = golden.load("shard_scenarios.json")["scenarios"]
SERVED = {
    scenario["name"]: scenario
    for scenario in RECORDED
    if scenario["group"] not in known_differences.SHARD_SCENARIO_GROUPS
}
# Members and commands are processes, which take most of the time.
_QUICK = {
    *("etcd_shard_life", "etcd_standby", "etcd_killed", "auth_none", "auth_capabilities"),
    *("gazctl_list_table", "gazctl_recover"),
}
_SLOW_GROUPS = {"etcd", "gazctl", "auth"}


def _is_quick(scenario: dict[str, Any]) -> bool:
    is_slow = scenario["profile"] != "default" or scenario["group"] in _SLOW_GROUPS
    return not is_slow or scenario["name"] in _QUICK


SCENARIOS = extent.of({name: each for name, each in SERVED.items() if _is_quick(each)}, SERVED)
"""Those replayed: all of them in the long form."""


async def _replay_all(etcd: str) -> dict[str, str | None]:
    outcomes: dict[str, str | None] = {}
    async with (
        EmbeddedBroker(fsync="off") as broker,
        connect(broker.endpoint) as client,
        aiohttp.ClientSession() as session,
    ):
        keys = Keys(etcd, session)
        numbers = itertools.count()
        lives = asyncio.Semaphore(_LIVES)

        async def on_a_group(profile: str, scenarios: list[dict[str, Any]]) -> None:
            left = iter(scenarios)

            async def one_after_another(members: Group) -> None:
                for scenario in left:
                    outcomes[scenario["name"]] = await replay(client, members, scenario)

            prefix = f"/scenario-groups/{profile}-{next(numbers)}"
            async with (
                group(profile, keys, etcd, broker.endpoint, prefix) as members,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(_SHARING):
                    tasks.create_task(one_after_another(members))

        async def alone(scenario: dict[str, Any]) -> None:
            async with lives:
                await on_a_group("life", [scenario])

        by_profile: dict[str, list[dict[str, Any]]] = {}
        for scenario in SCENARIOS.values():
            by_profile.setdefault(scenario["profile"], []).append(scenario)
        async with asyncio.TaskGroup() as tasks:
            for scenario in by_profile.pop("life", []):
                tasks.create_task(alone(scenario))
            for profile, scenarios in by_profile.items():
                tasks.create_task(on_a_group(profile, scenarios))
    return outcomes


# One test, since those of several workers would each start all members.
def test_members_do_what_was_recorded(etcd_server: Etcd) -> None:
    outcomes = asyncio.run(_replay_all(etcd_server.endpoint))
    assert outcomes.keys() == SCENARIOS.keys()
    unexpected: dict[str, str | None] = {}
    for name, found in outcomes.items():
        known = known_differences.SHARD_SCENARIOS.get(name)
        if found is None if known is not None else found is not None:
            unexpected[name] = found or f"no longer differs: {known}"
        elif known is not None and found is not None and known[0] not in found:
            unexpected[name] = found
    assert unexpected == {}


def test_scenarios_were_collected() -> None:
    assert len(RECORDED) == 121
    assert len(SERVED) == 119
    assert set(known_differences.SHARD_SCENARIOS) <= set(SERVED)
    assert set(SCENARIOS) >= _QUICK
