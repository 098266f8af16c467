"""Listings of very many journals, and what differs between two listings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.aio import turns
from gazette_aio.client import ListChanges, list_snapshots
from gazette_aio.client.listing.changes import changes_between, lists_the_same
from tests.client.support import listing


def names(response: pb.ListResponse | None) -> list[str]:
    assert response is not None
    return [journal.spec.name for journal in response.journals]


class FakeStream:
    """Responses which are all there already."""

    def __init__(self, messages: list[pb.ListResponse]) -> None:
        self.messages = iter(messages)

    async def receive(self) -> pb.ListResponse | None:
        return next(self.messages, None)


def messages(count: int, size: int) -> Iterator[pb.ListResponse]:
    whole = listing(*(f"a/journal/{number:06}" for number in range(count)))
    for begin in range(0, count, size):
        yield pb.ListResponse(
            header=whole.header if begin == 0 else None,
            journals=whole.journals[begin : begin + size],
        )


@pytest.mark.parametrize("size", [25, 1000, 2000])
async def test_others_have_their_turn_while_much_is_listed(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    checked, most = 0, 0
    validate = pb.validate

    def count(message: Any, **options: Any) -> None:
        nonlocal checked, most
        if isinstance(message, pb.ListResponse.Journal):
            checked += 1
            most = max(most, checked)
        validate(message, **options)

    monkeypatch.setattr(pb, "validate", count)
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)

    async def others() -> None:
        nonlocal checked
        while True:
            checked = 0
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(others())
        stream: Any = FakeStream([*messages(2000, size), pb.ListResponse()])
        snapshot = await anext(list_snapshots(stream, pb.ListRequest(watch=True)))
        task.cancel()
    assert len(names(snapshot)) == 2000
    assert names(snapshot) == sorted(names(snapshot))
    assert most <= 2


# What differs.


journals = st.dictionaries(
    st.sampled_from([f"a/journal-{number}" for number in range(8)]),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from(["", "text/plain"])),
)


def listed(state: dict[str, tuple[int, int, str]]) -> pb.ListResponse:
    response = listing(*sorted(state))
    for journal in response.journals:
        create, mod, content_type = state[journal.spec.name]
        journal.create_revision, journal.mod_revision = create, mod
        if content_type:
            journal.spec.labels.CopyFrom(pb.label_set(pb.CONTENT_TYPE, content_type))
    return response


@given(journals, journals)
def test_changes_lead_from_one_listing_to_the_other(
    before: dict[str, tuple[int, int, str]], after: dict[str, tuple[int, int, str]]
) -> None:
    old, new = listed(before), listed(after)
    changes = asyncio.run(changes_between(old, new))
    state = {journal.spec.name: journal for journal in old.journals}
    for journal in changes.removed:
        assert state.pop(journal.spec.name) == journal
    for journal in changes.added:
        assert journal.spec.name not in state
        state[journal.spec.name] = journal
    for older, newer in changes.changed:
        assert state[older.spec.name] == older
        assert older.create_revision == newer.create_revision
        assert older != newer
        state[older.spec.name] = newer
    assert [state[name] for name in sorted(state)] == list(new.journals)
    assert bool(changes) is (before != after)
    assert asyncio.run(lists_the_same(old, new)) is (before == after)
    first = asyncio.run(changes_between(None, new))
    assert first == ListChanges(new, added=tuple(new.journals))


@pytest.mark.parametrize("compare", [changes_between, lists_the_same])
async def test_others_have_their_turn_while_much_is_compared(
    monkeypatch: pytest.MonkeyPatch,
    compare: Callable[[pb.ListResponse, pb.ListResponse], Coroutine[Any, Any, object]],
) -> None:
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    (old,) = messages(2000, 2000)
    new = pb.ListResponse()
    new.CopyFrom(old)
    comparing = asyncio.create_task(compare(old, new))
    count = 0
    while not comparing.done():
        count += 1
        await asyncio.sleep(0)
    assert bool(comparing.result()) is (compare is lists_the_same)
    assert count >= 2000
