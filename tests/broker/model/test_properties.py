"""Random sequences of requests: each answer, and all which can be seen, as the model has it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.broker.host.options import FsyncMode
from tests import extent
from tests.broker.model.changes import CODECS, LOCAL, NAMES, STORED, Change, Flag
from tests.broker.model.driver import Driver
from tests.broker.model.space import FLUSH_SECONDS, FRAMINGS, JUMP_AGE_SECONDS, Suspend
from tests.broker.model.watch import SELECTIONS

names = st.sampled_from((*NAMES, STORED, STORED, LOCAL))
known_names = st.sampled_from((STORED, LOCAL))
places = st.sampled_from(
    ("0", "-1", "-2", "head", "head-1", "head+1", "write head", "write head+1", "half", "777")
)
bounds = st.sampled_from(("0", "head", "head-1", "half", "write head+1"))
labels = st.sampled_from(("", "aa=1", "aa=2", "aa=1,aa=2", "bb=1", "aa=1,bb=2"))
pieces = st.lists(st.sampled_from((1, 10, 600, 1024, 1500)), max_size=3)
registers = st.tuples(labels, labels, labels, labels)
revisions = st.sampled_from(("0", "-1", "-2", "now", "now-1", "99999"))


changes = st.builds(
    Change,
    kind=st.sampled_from(("upsert", "upsert", "upsert", "delete", "both", "neither")),
    name=st.sampled_from((*NAMES, "/bad", "bad")),
    revision=revisions,
    codec=st.sampled_from(CODECS),
    flags=st.sampled_from((0, 0, Flag.O_RDWR, Flag.O_RDONLY, Flag.O_WRONLY)),
    suspension=st.sampled_from(
        ("keep", "keep", "clear", "partial", "none at 2000", "full at 1024")
    ),
    flush_seconds=st.sampled_from((0, 0, 3600)),
)
plain_changes = st.builds(
    Change,
    kind=st.sampled_from(("upsert", "upsert", "upsert", "delete")),
    name=names,
    revision=st.sampled_from(("-1", "now", "now", "now-1", "99999")),
    codec=st.sampled_from(CODECS),
    flags=st.just(0),
    suspension=st.sampled_from(("keep", "clear", "full at 1024")),
    flush_seconds=st.sampled_from((0, 60, 3600)),
)
times = st.sampled_from(("", "", "now", "recent", "far"))


def _step(method: Callable[..., Coroutine[Any, Any, None]], **parts: Any) -> Any:
    return st.tuples(st.just(method.__name__), st.fixed_dictionaries(parts))


steps = st.one_of(
    _step(
        Driver.append,
        name=names,
        place=st.sampled_from(("0", "0", "0", "write head", "head", "head-1", "head+1", "777")),
        sizes=pieces,
        framing=st.sampled_from(("commit", "commit", "commit", *FRAMINGS)),
        registers=registers,
        suspend=st.sampled_from((0, 0, 0, 0, *Suspend.values())),
    ),
    _step(
        Driver.append,
        name=known_names,
        place=st.sampled_from(("0", "write head")),
        sizes=pieces,
        framing=st.just("commit"),
        registers=st.just(("",) * 4),
        suspend=st.just(0),
    ),
    _step(
        Driver.append,
        name=known_names,
        place=st.just("write head"),
        sizes=pieces,
        framing=st.sampled_from(FRAMINGS),
        registers=registers,
        suspend=st.just(0),
    ),
    _step(
        Driver.append,
        name=known_names,
        place=st.sampled_from(("0", "write head")),
        sizes=st.sampled_from(([], [10])),
        framing=st.just("commit"),
        registers=st.just(("",) * 4),
        suspend=st.sampled_from(Suspend.values()),
    ),
    _step(
        Driver.read,
        name=names,
        place=places,
        end=bounds,
        metadata_only=st.booleans(),
        do_not_proxy=st.booleans(),
        since=times,
    ),
    _step(
        Driver.list_fragments,
        name=names,
        token=st.sampled_from(("0", "0", "half", "head", "-1")),
        limit=st.sampled_from((0, 1, 2, 10001)),
        since=times,
        until=times,
    ),
    _step(Driver.page_through, name=names, limit=st.integers(1, 3), since=times),
    _step(Driver.apply, changes=st.lists(changes, max_size=3)),
    _step(Driver.apply, changes=st.lists(plain_changes, min_size=1, max_size=2)),
    _step(Driver.race_upserts, name=known_names, racers=st.integers(2, 4)),
    _step(
        Driver.bad_first_message,
        name=names,
        kind=st.sampled_from(("nothing", "content", "name")),
    ),
    _step(Driver.cancel, name=known_names, sizes=pieces),
    _step(
        Driver.race_appends,
        name=known_names,
        racers=st.lists(
            st.lists(st.sampled_from((1, 10, 600, 1024, 1500)), min_size=1, max_size=3),
            min_size=2,
            max_size=5,
        ),
    ),
    _step(Driver.blocked_read, name=known_names, ahead=st.sampled_from((0, 5, 700)), sizes=pieces),
    _step(Driver.blocked_by_delete, name=known_names),
    _step(Driver.flush, name=known_names),
    _step(Driver.flush, name=st.just(STORED)),
    _step(
        Driver.recreate,
        name=st.sampled_from((STORED, STORED, LOCAL)),
        suspension=st.sampled_from(("clear", "full at 1024", "none at 2000", "partial")),
    ),
    _step(Driver.restart),
    # A minute, a flush interval, an age for jumps, and one for suspensions.
    _step(Driver.advance, seconds=st.sampled_from((60, 3600, JUMP_AGE_SECONDS + 1, FLUSH_SECONDS))),
    _step(Driver.pulse, name=known_names),
    _step(Driver.watch, selection=st.sampled_from(SELECTIONS)),
    _step(Driver.rewatch),
)


def _append(place: str, suspend: int = 0) -> tuple[str, dict[str, Any]]:
    sizes = [] if suspend else [10]
    parts = {"name": STORED, "sizes": sizes, "framing": "commit", "registers": ("",) * 4}
    return "append", {**parts, "place": place, "suspend": suspend}


def _read(place: str) -> tuple[str, dict[str, Any]]:
    options = {"end": "0", "metadata_only": False, "do_not_proxy": False, "since": ""}
    return "read", {"name": STORED, "place": place, **options}


JUMPS = [
    # A read jumps to the first fragment, once that's persisted, but not over a later hole.
    ("recreate", {"name": STORED, "suspension": "full at 1024"}),
    _append("0"),
    _read("0"),
    ("flush", {"name": STORED}),
    _read("0"),
    ("recreate", {"name": STORED, "suspension": "none at 2000"}),
    _append("0"),
    ("flush", {"name": STORED}),
    _read("0"),
    _read("head-1"),
    # It does once what's behind the hole is old. Where nothing was ever written, it goes on to it.
    _read("1034"),
    ("advance", {"seconds": JUMP_AGE_SECONDS}),
    _read("1034"),
    ("advance", {"seconds": 1}),
    _read("1034"),
    ("restart", {}),
    _read("1034"),
]

INTERVALS: list[tuple[str, dict[str, Any]]] = [
    # A fragment ends with its flush interval, by an append or by a pulse. It's flushed later on.
    (
        "apply",
        {"changes": [Change("upsert", name, "-1", flush_seconds=3600) for name in (STORED, LOCAL)]},
    ),
    *([_append("0")] * 3),
    ("pulse", {"name": STORED}),
    ("advance", {"seconds": 3600}),
    ("watch", {"selection": "name"}),
    _append("0"),
    ("advance", {"seconds": 3600}),
    ("pulse", {"name": STORED}),
    ("page_through", {"name": STORED, "limit": 2, "since": ""}),
    ("flush", {"name": STORED}),
    _append("0", Suspend.SUSPEND_IF_FLUSHED),
    ("advance", {"seconds": 3600}),
    ("rewatch", {}),
    _append("0", Suspend.SUSPEND_IF_FLUSHED),
    ("page_through", {"name": STORED, "limit": 1, "since": "recent"}),
]


@example(fsync="commit", steps=JUMPS)
@example(fsync="off", steps=INTERVALS)
@given(
    fsync=st.sampled_from(("off", "interval", "commit")),
    steps=st.lists(steps, min_size=12, max_size=32),
)
@extent.examples(15)
async def test_the_broker_does_what_the_model_does(
    fsync: FsyncMode, steps: list[tuple[str, dict[str, Any]]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="gazette-model-") as directory:
        await Driver(Path(directory), fsync).run(steps)
