"""Entries: events of watches, and the checks of a watch's responses."""

from __future__ import annotations

import logging
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.keyspace.entries import Entries, check_responses
from gazette_aio.consumer.keyspace.errors import KeySpaceError
from gazette_aio.consumer.keyspace.operations import KeyValue
from gazette_aio.consumer.keyspace.store import Deleted, StoreHeader, WatchResponse
from gazette_aio.protocol.errors import ValidationError


class Number(NamedTuple):
    raw: KeyValue
    value: int


def decode(raw):
    try:
        return Number(raw, int(raw.value))
    except ValueError as error:
        raise ValidationError(str(error)) from None


def put(key, value, create, mod, version):
    return KeyValue(key, str(value).encode(), create, mod, version)


def entries(*raws):
    made = Entries(decode)
    made.update({raw.key: made.decoded(raw) for raw in raws})
    return made


def values(made):
    return {key: entry.value for key, entry in made.items()}


START = [put("/aaaa", 1, 5, 10, 3), put("/bbbb", 2, 6, 10, 1)]


@pytest.mark.parametrize(
    ("event", "after"),
    [
        (Deleted("/none", 11), {"/aaaa": 1, "/bbbb": 2}),
        (put("/cccc", 3, 11, 11, 1), {"/aaaa": 1, "/bbbb": 2, "/cccc": 3}),
        (put("/aaaa", 9, 5, 11, 4), {"/aaaa": 9, "/bbbb": 2}),
        (put("/aaaa", 9, 11, 11, 1), {"/aaaa": 9, "/bbbb": 2}),
        (put("/cccc", 3, 7, 11, 4), {"/aaaa": 1, "/bbbb": 2, "/cccc": 3}),
        (put("/cccc", 3, 11, 11, 2), {"/aaaa": 1, "/bbbb": 2, "/cccc": 3}),
        (put("/aaaa", 9, 5, 11, 8), {"/aaaa": 9, "/bbbb": 2}),
        (put("/aaaa", 9, 5, 10, 4), {"/aaaa": 1, "/bbbb": 2}),
        (put("/aaaa", 9, 5, 9, 4), {"/aaaa": 1, "/bbbb": 2}),
        (Deleted("/aaaa", 10), {"/aaaa": 1, "/bbbb": 2}),
        (Deleted("/aaaa", 11), {"/bbbb": 2}),
        (put("/cccc", "bad", 11, 11, 1), {"/aaaa": 1, "/bbbb": 2}),
        (put("/aaaa", "bad", 6, 11, 4), {"/aaaa": 1, "/bbbb": 2}),
    ],
)
def test_events(event, after):
    made = entries(*START)
    changes = made.apply([event])
    assert values(made) == after
    assert len(changes) == (after != {"/aaaa": 1, "/bbbb": 2})


def test_events_of_one_key_are_one_change():
    made = entries(*START)
    changes = made.apply(
        [
            put("/aaaa", 5, 5, 11, 4),
            put("/bbbb", "bad", 6, 12, 2),
            put("/dddd", 1, 12, 12, 1),
            put("/bbbb", 6, 6, 13, 3),
            Deleted("/dddd", 13),
            Deleted("/aaaa", 14),
            put("/aaaa", 7, 15, 15, 1),
            put("/cccc", 4, 15, 15, 1),
        ]
    )
    assert values(made) == {"/aaaa": 7, "/bbbb": 6, "/cccc": 4}
    assert [(after.raw.key, before and before.value, after.value) for before, after in changes] == [
        ("/aaaa", 1, 7),
        ("/bbbb", 2, 6),
        ("/cccc", None, 4),
    ]


def test_undecodable_values_are_told(caplog):
    with caplog.at_level(logging.WARNING, "gazette_aio"):
        entries(*START).apply([put("/x", "bad", 11, 11, 1)])
    assert "'/x' can't be decoded" in caplog.text


def test_a_key_keeps_its_meaning_until_another_value_can_be_decoded():
    made = entries(*START)
    [(before, after)] = made.apply([put("/aaaa", "bad", 5, 11, 4)])
    assert (before.value, after.value) == (1, 1)
    assert after.raw == put("/aaaa", 1, 5, 11, 4)
    [(before, after)] = made.apply([put("/aaaa", 3, 5, 12, 5)])
    assert (before.raw.mod_revision, after.value) == (11, 3)


def test_no_failure_of_a_decoder_costs_another_key(caplog):
    def decode_badly(raw):
        return Number(raw, {b"1": 1}[raw.value])

    made = Entries(decode_badly)
    changes = made.apply([put("/a", 1, 2, 2, 1), put("/b", "bad", 3, 3, 1), put("/c", 1, 4, 4, 1)])
    assert [after.raw.key for _, after in changes] == ["/a", "/c"]
    [record] = caplog.records
    assert "key '/b' can't be decoded" in record.getMessage()
    assert isinstance(record.exc_info[1], KeyError)


def test_each_revision_of_an_undecodable_key_is_warned_of_once(caplog):
    made = Entries(decode)
    for _ in range(3):
        assert made.decoded(put("/a", "bad", 2, 2, 1)) is None
    assert len(caplog.records) == 1
    made.apply([put("/a", "x" * 10_000, 2, 3, 2)])
    assert len(caplog.records) == 2
    assert len(caplog.records[1].getMessage()) < 1000
    made.apply([Deleted("/a", 4), put("/a", "bad", 5, 5, 1), put("/a", 7, 5, 6, 2)])
    assert len(caplog.records) == 3
    assert values(made) == {"/a": 7}


@st.composite
def histories(draw):
    """Return events of keys as a store makes them."""
    present: dict[str, KeyValue] = {}
    events = []
    for revision in range(2, 2 + draw(st.integers(0, 30))):
        for key in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=1, max_size=3)):
            before = present.get(key)
            if before is not None and draw(st.booleans()):
                del present[key]
                events.append(Deleted(key, revision))
                continue
            value = draw(st.sampled_from([b"1", b"2", b"bad"]))
            create, version = (before.create_revision, before.version) if before else (revision, 0)
            present[key] = KeyValue(key, value, create, revision, version + 1)
            events.append(present[key])
    return events


@given(histories(), st.data())
def test_any_parts_of_a_history_have_the_same_end(events, data):
    at_once, in_parts = Entries(decode), Entries(decode)
    whole = at_once.apply(events)
    seen: dict[str, object] = {}
    rest = events
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        for before, after in in_parts.apply(rest[:size]):
            # What changes say is all that an observer needs.
            key = (before or after).raw.key
            assert seen.pop(key, None) == before
            if after is not None:
                seen[key] = after
        rest = rest[size:]
    assert at_once == in_parts == seen
    assert {after.raw.key: after for before, after in whole if before is None} == at_once


HEADER = StoreHeader(8675309, 1, 10, 1)


def response(*revisions, cluster=8675309, member=1, revision=50, term=1):
    header = StoreHeader(cluster, member, revision, term)
    return WatchResponse(header, tuple(Deleted("/k", each) for each in revisions))


def test_members_and_terms_may_change():
    header, events = check_responses(HEADER, [response(11, 12, member=2, term=3), response(14)])
    assert header == StoreHeader(8675309, 1, 14, 1)
    assert [event.mod_revision for event in events] == [11, 12, 14]


def test_progress_leaves_the_revision():
    header, events = check_responses(HEADER, [response(member=7)])
    assert (header, events) == (StoreHeader(8675309, 7, 10, 1), [])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (response(11, cluster=1337), r"etcd ClusterID mismatch \(expected 8675309, got 1337\)"),
        (response(9, revision=9), r"etcd Revision mismatch \(expected >= 10, got 9\)"),
        (response(10), r"with first ModRevision 10, which is <= last Revision 10"),
        (response(13, 12), r"with last ModRevision 12 less than first ModRevision 13"),
    ],
)
def test_responses_that_contradict(wrong, text):
    with pytest.raises(KeySpaceError, match=text):
        check_responses(HEADER, [wrong])
