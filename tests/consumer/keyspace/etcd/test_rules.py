"""Pure rules of the client of Etcd: failures, positions of watches, ranges and options."""

from __future__ import annotations

import pytest

from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    KeyValueStoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.cursor import (
    WatchCursor,
    WatchDeniedError,
    back_off_seconds,
)
from gazette_aio.consumer.keyspace.etcd.failures import (
    failure,
    is_stale_token,
    may_repeat,
    too_old,
)
from gazette_aio.consumer.keyspace.etcd.messages import key_bytes, key_text, prefix_bounds
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.protocol.errors import ConfigurationError


@pytest.mark.parametrize(
    ("code", "text", "kind", "is_repeated"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: …", StoreUnavailableError, True),
        ("UNAVAILABLE", "etcdserver: no leader", StoreUnavailableError, True),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", StoreUnavailableError, True),
        ("UNAVAILABLE", "etcdserver: request timed out", StoreUnavailableError, False),
        ("UNAVAILABLE", "Socket closed", StoreUnavailableError, False),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", StoreUnavailableError, False),
        ("UNKNOWN", "context canceled", StoreUnavailableError, False),
        ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", StoreRefusedError, False),
        ("NOT_FOUND", "etcdserver: requested lease not found", StoreRefusedError, False),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", StoreUnavailableError, True),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", CompactedError, False),
        ("DATA_LOSS", "etcdserver: corrupt cluster", KeyValueStoreError, False),
    ],
)  # fmt: skip
def test_failures_of_writes(code, text, kind, is_repeated):
    error = failure(code, text, writes=True)
    assert type(error) is kind
    assert may_repeat(error) is is_repeated
    is_unknown = kind in (StoreUnavailableError, KeyValueStoreError) and not is_repeated
    assert error.outcome_unknown is is_unknown
    assert not failure(code, text, writes=False).outcome_unknown


def test_tokens_that_are_outdated():
    for told in ("invalid auth token", "revision of auth store is old", "user name is empty"):
        assert is_stale_token(failure("INVALID_ARGUMENT", f"etcdserver: {told}", writes=True))
    assert not is_stale_token(
        failure("PERMISSION_DENIED", "etcdserver: permission denied", writes=True)
    )


@pytest.mark.parametrize(
    ("version", "refused"),
    [("3.3.27", True), ("2.3.8", True), ("3.4.0", False), ("3.5.1", False), ("4.0.0-rc.1", False), ("", False), ("3." + "3" * 5000, False)],
)  # fmt: skip
def test_old_servers(version, refused):
    assert too_old(version) is refused


def test_back_off():
    assert [back_off_seconds(attempt) for attempt in range(9)] == [0, 0, 0.005, 2, 3, 4, 5, 5, 5]


def response(*revisions, header=100, **fields):
    events = [
        pb.Event(kv=pb.KeyValue(key=b"/key", mod_revision=each, create_revision=each, version=1))
        for each in revisions
    ]
    origin = pb.ResponseHeader(cluster_id=1, member_id=2, revision=header, raft_term=3)
    return pb.WatchResponse(header=origin, events=events, **fields)


def test_a_watch_resumes_after_its_last_event():
    cursor = WatchCursor(5)
    cursor.begin()
    # The store is at revision 100 already, but events before that are still to come.
    assert cursor.receive(response(created=True)) is None
    assert cursor.revision == 5
    received = cursor.receive(response(7, 9))
    assert [event.mod_revision for event in received.events] == [7, 9]
    assert received.header.revision == 100
    assert cursor.revision == 10


def test_a_watch_resumes_after_a_notification_of_progress():
    cursor = WatchCursor(5)
    assert cursor.receive(response(header=60)).events == ()
    assert cursor.revision == 61


def test_attempts_count_from_the_last_response():
    cursor = WatchCursor(5)
    for _ in range(4):
        cursor.begin()
    cursor.receive(response(created=True))
    assert cursor.attempt == 4
    cursor.receive(response(7))
    assert cursor.attempt == 0


def test_fragments_are_joined_and_begin_anew_with_the_stream():
    cursor = WatchCursor(5)
    cursor.begin()
    assert cursor.receive(response(7, fragment=True)) is None
    assert cursor.revision == 5
    cursor.begin()
    assert cursor.receive(response(7, fragment=True)) is None
    assert cursor.receive(response(8, fragment=True)) is None
    assert [each.mod_revision for each in cursor.receive(response(9)).events] == [7, 8, 9]
    assert cursor.revision == 10


def test_why_watches_end():
    with pytest.raises(CompactedError) as compacted:
        WatchCursor(5).receive(pb.WatchResponse(canceled=True, compact_revision=42))
    assert compacted.value.revision == 42
    denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
    with pytest.raises(WatchDeniedError):
        WatchCursor(5).receive(response(created=True, canceled=True, cancel_reason=denied))
    with pytest.raises(StoreUnavailableError, match="has ended the watch: no reason given"):
        WatchCursor(5).receive(response(canceled=True))


def test_ranges_of_prefixes():
    assert prefix_bounds("/a/") == (b"/a/", b"/a0")
    assert prefix_bounds("/a/", "/a/7") == (b"/a/7\0", b"/a0")
    assert prefix_bounds("/b/", "/a") == (b"/b/", b"/b0")
    assert prefix_bounds("") == (b"\0", b"\0")
    assert key_text(b"/a/\xff") == "/a/\udcff"
    assert prefix_bounds("/a/\udcff") == (b"/a/\xff", b"/a0")
    assert prefix_bounds("\udcff") == (b"\xff", b"\0")
    assert key_bytes(key_text(b"\xc3\xa4\xff")) == b"\xc3\xa4\xff"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endpoints": ()}, "Etcd needs an endpoint"),
        (
            {"endpoints": ("host:2379",)},
            "an endpoint of Etcd isn't a URL with a host|can't be host",
        ),
        ({"endpoints": ("ftp://host",)}, "an endpoint of Etcd can't be ftp"),
        ({"endpoints": ("http://user:secret@host:1",)}, "have options of their own"),
        ({"user": "somebody"}, "must be given together"),
        ({"timeout_seconds": 0}, "times of Etcd must be positive"),
    ],
)
def test_invalid_options(options, text):
    with pytest.raises(ConfigurationError, match=text) as caught:
        EtcdOptions(**options)
    assert "secret" not in str(caught.value)


async def test_secrets_are_not_shown():
    options = EtcdOptions(user="somebody", password="secret", tls=TLSOptions())
    assert "somebody" in repr(options)
    assert "secret" not in repr(options) + repr(EtcdStore(options))
