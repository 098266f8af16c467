"""What commits, restores equal: stores refuse states that they couldn't restore."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import enum
import json
import math
import tempfile
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.consumer.stores import JSONFileStore, MemoryStore
from gazette_aio.message import IntentLog
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import StoreError
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder

SHARD = StubShard("a-shard")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Best(msgspec.Struct):
    price: float = 0.0
    limit: float | None = None
    count: int = 0
    name: str = ""
    sizes: list[int] = []
    names: set[str] = set()
    cost: Decimal = Decimal(0)
    at: dt.datetime | None = None
    color: Color = Color.RED
    by_number: dict[int, str] = {}
    rest: Any = None


class Better(Best):
    more: int = 0


class Holder(msgspec.Struct, eq=False):
    best: Best = msgspec.field(default_factory=Best)


@dataclasses.dataclass
class Totals:
    sum: float = 0.0
    _seen: list[int] = dataclasses.field(default_factory=list)
    rest: Any = None


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CYCLE: dict[str, Any] = {}
CYCLE["again"] = [CYCLE]
TEXTS = st.text(st.characters())  # Lone surrogates as well.
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
OBJECTS = (
    *(Color.RED, Level.HIGH, Text("a"), object(), msgspec.Raw(b"{]"), 10**400, -(2**64), 10**5000),
    *(collections.Counter("a"), collections.OrderedDict(a=1), collections.defaultdict(int, a=1)),
    *(bytearray(b"a"), Best(), Totals(), CYCLE, nested(400), nested(600), nested(5000)),
)
ODD = (
    st.floats()
    | st.binary()
    | st.tuples(st.integers())
    | st.frozensets(st.text(max_size=2), max_size=2)
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.just(dt.timezone(dt.timedelta(seconds=90))))
    | st.integers(0, len(OBJECTS) - 1).map(lambda index: OBJECTS[index])
)
KEYS = TEXTS | st.integers() | st.none() | st.binary(max_size=2) | st.floats() | st.just(Color.RED)
VALUES = st.recursive(
    PLAIN | ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=6,
)
STATES = (
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
    | st.lists(VALUES, max_size=3)
    | st.builds(
        Best, **{name: st.just(getattr(Best(), name)) | VALUES for name in Best.__struct_fields__}
    )
    | st.builds(Totals, VALUES, VALUES, VALUES)
    | st.builds(Holder, st.builds(Best, VALUES) | st.just(Better()))
)


def is_restored(state: Any, restored: Any) -> bool:
    if isinstance(state, Holder):  # Its objects are equal to themselves only.
        return bool(state.best == restored.best)
    if type(state) in (dict, list):
        return repr(state) == repr(restored)  # Which tells types apart.
    return bool(state == restored)


async def commit(store: Any, state: Any) -> StoreError | None:
    store.state = state
    try:
        await store.start_commit(SHARD, checkpoint_at(2), ())
    except StoreError as error:
        return error
    return None


async def check_file(state: Any, recorder: MemoryRecorder | None, directory: Path) -> None:
    def open_store() -> JSONFileStore[Any]:
        given = {} if recorder is not None else {"directory": directory}
        return JSONFileStore(recorder, type(state)(), **given)

    store = open_store()
    await store.restore_checkpoint(SHARD)
    assert await commit(store, type(state)()) is None
    recorded = None if recorder is None else recorder.content
    error = await commit(store, state)
    again = open_store()
    assert await again.restore_checkpoint(SHARD) == checkpoint_at(2)
    if error is None:
        assert is_restored(state, again.state)
    else:
        assert "$" in str(error)
        assert is_restored(type(state)(), again.state)
        assert recorder is None or recorder.content == recorded
        assert not (directory / "next.json").exists()


@given(STATES)
@example(Best(price=math.inf))
@example(Best(limit=math.inf))
@example(Best(count="1"))  # type: ignore[arg-type]
@example(Best(name=b"ab"))  # type: ignore[arg-type]
@example({1: "a", "1": "b"})
def test_what_commits_restores_equal(state: Any) -> None:
    for is_recorded in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            recorder = MemoryRecorder(Path(directory)) if is_recorded else None
            asyncio.run(check_file(state, recorder, Path(directory)))


@given(STATES)
@example({1: "a", "1": "b"})
@example(bytearray(b"a"))
def test_what_an_intent_log_stores_is_recovered_equal(state: Any) -> None:
    async def check(path: Path) -> None:
        async with IntentLog(path) as log:
            try:
                await log.persist([], state)
            except StoreError as error:
                assert str(error).startswith("state can't be stored"), error  # noqa: PT017
                assert log.state is None
                return
        assert is_restored(state, (await IntentLog(path).load()).state)  # type: ignore[union-attr]

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory) / "log"))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"best": [{"price": math.inf}]}, "$.best[0].price: inf has no JSON encoding"),
        ({"a b": {"c": (1,)}}, "$['a b'].c: JSON would restore a tuple as a value of another type"),
        ({"a": {1: 2}}, "$.a: JSON would restore keys that aren't texts as texts"),
        ({"a": {None: 2}}, "$.a: Only dicts with str-like or number-like keys are supported"),
        ({"a": [{"b"}]}, "$.a[0]: JSON would restore a set as a value of another type"),
        ({"a": b"b"}, "$.a: JSON would restore a bytes as a value of another type"),
        ({"a": Decimal(1)}, "$.a: JSON would restore a Decimal as a value of another type"),
        ({"a": collections.Counter("a")}, "$.a: JSON would restore a Counter as a value of"),
        ({"a": "\ud800"}, "$.a: 'utf-8' codec can't encode character"),
        ({"a": nested(600)}, "values are nested in more than 500 levels"),
        (Best(price=math.nan), "$.price: nan has no JSON encoding"),
        (Best(limit=-math.inf), "$.limit: -inf has no JSON encoding"),
        (Best(rest={"a": (1,)}), "$.rest.a: JSON would restore a tuple as a list"),
        (Best(count="1"), "Expected `int`, got `str` - at `$.count`"),  # type: ignore[arg-type]
        (Best(name=b"ab"), "$.name: JSON would restore a bytes as a str"),  # type: ignore[arg-type]
        (Holder(Better()), "$.best: JSON would restore a Better as a Best"),
        (Totals(rest=Color.RED), "$.rest: JSON would restore a Color as a str"),
    ],
)
async def test_the_member_is_named(tmp_path: Path, state: Any, text: str) -> None:
    store = JSONFileStore(None, type(state)(), directory=tmp_path)
    await store.restore_checkpoint(SHARD)
    error = await commit(store, state)
    assert str(error).startswith("encode(state): ")
    assert text in str(error)
    assert not (tmp_path / "state.json").exists()


async def test_the_type_of_the_initial_state_is_restored(tmp_path: Path) -> None:
    store: JSONFileStore[Any] = JSONFileStore(None, None, directory=tmp_path)
    await store.restore_checkpoint(SHARD)
    error = await commit(store, {"a": 1})
    assert "it's of <class 'dict'>, and would be restored as the initial <class 'NoneT" in str(
        error
    )


@pytest.mark.parametrize(
    ("dumps", "loads", "state", "is_taken"),
    [
        (json.dumps, json.loads, {"a": (1, math.inf)}, True),
        (json.dumps, None, {"a": math.inf}, False),
        (json.dumps, json.loads, {"a": "\ud800"}, True),
        (lambda state: state["a"], json.loads, {"a": '"\ud800"'}, False),
        (lambda state: state["a"], bytes, {"a": 5}, False),
        (lambda state: state["a"], bytes, {"a": b"\n\0"}, True),
        (None, msgspec.json.Decoder(dict[int, str]).decode, {1: "a"}, True),
        (None, msgspec.json.decode, {1: "a"}, False),
    ],
)
async def test_a_codec_of_the_user_decides(
    tmp_path: Path, dumps: Callable[..., Any], loads: Callable[..., Any], state: Any, is_taken: bool
) -> None:
    store: JSONFileStore[Any] = JSONFileStore(
        None, {}, directory=tmp_path, dumps=dumps, loads=loads
    )
    await store.restore_checkpoint(SHARD)
    error = await commit(store, state)
    assert (error is None) is is_taken
    if error is not None:
        assert str(error).startswith("encode(state): ")
    assert (tmp_path / "state.json").exists() is is_taken


async def test_a_store_in_memory_refuses_what_it_cannot_copy() -> None:
    store = MemoryStore[Any](None)
    await store.restore_checkpoint(SHARD)
    assert "copying the state: cannot pickle" in str(await commit(store, threading.Lock()))
    assert await store.restore_checkpoint(SHARD) == Checkpoint()
