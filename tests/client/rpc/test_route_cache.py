"""Routes which are kept, and the member of one which is chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import NoopDispatchRouter, RouteCache
from gazette_aio.client.options import cache_size_from_environment, cache_ttl_from_environment
from gazette_aio.client.rpc.member_choice import MemberState, members_of, pick

FAILED, IDLE = MemberState.FAILED, MemberState.IDLE
CONNECTING, READY = MemberState.CONNECTING, MemberState.READY


def route(*members: str, primary: int = 0) -> pb.Route:
    """Return a route of members such as `zone/name`, whose endpoints are `http://name`."""
    parts = [member.split("/") for member in members]
    return pb.Route(
        members=[pb.ProcessSpec.ID(zone=zone, suffix=name) for zone, name in parts],
        endpoints=[f"http://{name}" for _, name in parts],
        primary=primary,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def known(cache: RouteCache, *journals: str) -> list[bool]:
    return [bool(cache.route(journal).members) for journal in journals]


def test_the_least_recently_used_is_displaced() -> None:
    clock = Clock()
    cache = RouteCache(3, 60.0, clock=clock)
    for journal in ("A", "B", "C", "D"):
        cache.update_route(journal, route(f"zone/{journal}"))
    assert known(cache, "A", "B", "C", "D") == [False, True, True, True]
    assert cache.route("B").members[0].suffix == "B"
    assert cache.route("A").primary == -1

    cache.update_route("C", None)
    cache.update_route("D", pb.Route(primary=-1))
    assert known(cache, "B", "C", "D") == [True, False, False]
    assert repr(cache) == "<RouteCache of 1 routes>"

    cache.update_route("D", route("zone/D"))
    clock.now += 31
    cache.update_route("B", route("zone/B"))
    assert known(cache, "B", "D") == [True, True]  # Which doesn't prolong the time of D.
    clock.now += 30
    assert known(cache, "B", "D") == [True, False]
    assert repr(cache) == "<RouteCache of 1 routes>"
    assert not cache.is_noop_router()


def test_looking_up_keeps_from_being_displaced() -> None:
    cache = RouteCache(2)
    cache.update_route("A", route("zone/a"))
    cache.update_route("B", route("zone/b"))
    cache.route("A")
    cache.update_route("C", route("zone/c"))
    assert known(cache, "A", "B", "C") == [True, False, True]


def test_routes_are_kept_to_the_last_moment_of_their_time() -> None:
    clock = Clock()
    cache = RouteCache(1, 60.0, clock=clock)
    cache.update_route("A", route("zone/a"))
    clock.now += 60
    assert known(cache, "A") == [True]
    clock.now += 0.001
    assert known(cache, "A") == [False]


def test_metadata_of_names_does_not_count() -> None:
    cache = RouteCache()
    cache.update_route("a/journal;meta", route("zone/a"))
    assert known(cache, "a/journal", "a/journal;other", "a/journ") == [True, True, False]
    cache.update_route("a/journal", None)
    assert known(cache, "a/journal;meta") == [False]


def test_routes_are_copied() -> None:
    cache = RouteCache()
    given = route("zone/a")
    cache.update_route("A", given)
    given.members[0].suffix = "changed"
    assert cache.route("A").members[0].suffix == "a"


def test_what_no_cluster_has_is_not_kept() -> None:
    cache = RouteCache()
    for hostile in (route(*["zone/a"] * 1000), route("zone/" + "a" * 20_000)):
        cache.update_route("A", route("zone/a"))
        cache.update_route("A", hostile)
        assert known(cache, "A") == [False]


@pytest.mark.parametrize(("size", "ttl"), [(0, 1.0), (-1, 1.0), (1, -1.0), (1, float("nan"))])
def test_sizes_and_times_are_checked(size: int, ttl: float) -> None:
    with pytest.raises(pb.ConfigurationError):
        RouteCache(size, ttl)


def test_who_does_not_route() -> None:
    router = NoopDispatchRouter()
    router.update_route("A", route("zone/a"))
    assert not router.route("A").members
    assert router.is_noop_router()


@pytest.mark.parametrize(
    ("environment", "size", "ttl"),
    [
        ({}, 256, 60.0),
        ({"BROKER_CACHE_SIZE": "", "BROKER_CACHE_TTL": ""}, 256, 60.0),
        ({"BROKER_CACHE_SIZE": "0", "BROKER_CACHE_TTL": "1m30s"}, 0, 90.0),
        ({"BROKER_CACHE_SIZE": "17", "BROKER_CACHE_TTL": "250ms"}, 17, 0.25),
    ],
)
def test_the_environment(environment: dict[str, str], size: int, ttl: float) -> None:
    assert cache_size_from_environment(environment=environment) == size
    assert cache_ttl_from_environment(environment=environment) == ttl


@pytest.mark.parametrize("size", ["-1", "many", "1.5", "٣", "9" * 5000])
def test_sizes_of_the_environment_are_checked(size: str) -> None:
    with pytest.raises(pb.ConfigurationError, match="BROKER_CACHE_SIZE") as raised:
        cache_size_from_environment(environment={"BROKER_CACHE_SIZE": size})
    assert len(str(raised.value)) < 100


@pytest.mark.parametrize("ttl", ["60", "-1s", "soon"])
def test_times_of_the_environment_are_checked(ttl: str) -> None:
    with pytest.raises(pb.ConfigurationError, match="BROKER_CACHE_TTL"):
        cache_ttl_from_environment(environment={"BROKER_CACHE_TTL": ttl})


# The choice.

THREE = route("remote/primary", "local/replica", "local/other")


def choose(
    given: pb.Route,
    states: dict[str, MemberState | None],
    chance: float = 0.0,
    *,
    zone: str = "local",
    default: MemberState = READY,
) -> str | None:
    """Return the name of the replica to use; states not given are `default`."""
    replicas = (
        (zone, endpoint, states.get(endpoint.removeprefix("http://"), default))
        for zone, endpoint in members_of(given).replicas
    )
    chosen = pick(replicas, zone, lambda: chance)
    return None if chosen is None else chosen.removeprefix("http://")


def test_chance_decides_among_equals() -> None:
    assert choose(THREE, {}, 0.0) == choose(THREE, {}, 0.49) == "replica"
    assert choose(THREE, {}, 0.5) == choose(THREE, {}, 0.99) == "other"


def test_inconsistent_routes() -> None:
    short = route("local/one", "local/two", primary=1)
    del short.endpoints[1]
    assert members_of(short).primary is None
    assert choose(short, {}) == "one"
    short.endpoints[0] = ""
    assert choose(short, {}) is None
    long = route("local/" + "l" * 2000)
    assert members_of(long).primary is choose(long, {}) is None
    for primary in (-1, 1, 1 << 30):
        assert members_of(route("local/one", primary=primary)).primary is None
    assert members_of(pb.Route()).primary is None
    assert choose(pb.Route(primary=-1), {}) is None


@given(
    members=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("wxyz"))),
    endpoints=st.integers(0, 8),
    primary=st.integers(-2, 8),
    states=st.dictionaries(st.sampled_from("wxyz"), st.sampled_from([None, *MemberState])),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_the_choice_is_the_best_there_is(
    members: list[tuple[str, str]],
    endpoints: int,
    primary: int,
    states: dict[str, MemberState | None],
    chance: float,
) -> None:
    given = route(*("/".join(member) for member in members), primary=primary)
    del given.endpoints[endpoints:]
    known = members[:endpoints]
    expected = f"http://{known[primary][1]}" if 0 <= primary < len(known) else None
    assert members_of(given).primary == expected

    ranks = [
        (zone == "a", state, name)
        for zone, name in known
        if (state := states.get(name, IDLE)) not in (None, FAILED)
    ]
    chosen = choose(given, states, chance, zone="a", default=IDLE)
    assert (chosen is None) == (not ranks)
    if chosen is not None:
        best = max(rank[:2] for rank in ranks)
        assert chosen in {name for *rank, name in ranks if tuple(rank) == best}
