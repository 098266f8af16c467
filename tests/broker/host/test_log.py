"""Records of the broker's logs: they survive as written, and garbage is told apart."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import (
    TAG,
    Begin,
    Commit,
    Entry,
    Persisted,
    decode_entry,
    encode_entry,
)
from gazette_aio.broker.host import log
from gazette_aio.broker.host.log import encode_record, find_tagged_record, scan_records
from gazette_aio.broker.keyspace.keyspace import KeySpace, KeySpaceTransaction
from gazette_aio.broker.keyspace.meta_log import (
    decode_snapshot,
    decode_transaction,
    encode_snapshot,
    encode_transaction,
)
from tests.broker.caller import journal_spec

_PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(_PAYLOADS, st.binary(max_size=30))
def test_a_scan_finds_what_was_written(payloads: list[bytes], garbage: bytes) -> None:
    data = b"".join(map(encode_record, payloads))
    records, end = scan_records(data + garbage)
    assert [record.payload for record in records[: len(payloads)]] == payloads
    assert end >= len(data)


@given(_PAYLOADS, st.data())
def test_damage_ends_a_scan(payloads: list[bytes], data: st.DataObject) -> None:
    encoded = bytearray(b"".join(map(encode_record, payloads)))
    if not encoded:
        return
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    records, end = scan_records(bytes(encoded))
    assert end <= position
    assert [record.payload for record in records] == payloads[: len(records)]


@given(st.binary(max_size=200))
def test_garbage_never_fails_otherwise(data: bytes) -> None:
    scan_records(data)
    decode_entry(data)
    decode_entry(TAG + data)
    for decode, tag in ((decode_transaction, b"jt"), (decode_snapshot, b"js")):
        for payload in (data, tag + data):
            with contextlib.suppress(ValueError):
                decode(payload)


def test_later_records_are_found_behind_damage() -> None:
    first, second = encode_record(TAG + b"first"), encode_record(TAG + b"second")
    found = find_tagged_record(first[:-1] + second, 0, TAG)
    assert found is not None
    assert found.payload == TAG + b"second"
    assert find_tagged_record(first + second[:-1], len(first), TAG) is None


_ENTRIES = st.one_of(
    st.builds(
        Begin,
        journal=st.sampled_from(["test/journal", "größe/ü"]),
        begin=st.integers(100, 2**62),
        previous_end=st.integers(0, 100),
        codec=st.integers(1, 5),
        registers=st.sampled_from([b"", pb.label_set("aa", "1").SerializeToString()]),
    ),
    st.builds(
        Commit,
        end=st.integers(100, 2**62),
        length=st.integers(1, 100),
        digest=st.binary(min_size=20, max_size=20),
        first_append_seconds=st.floats(0, 2e9),
        registers=st.sampled_from([None, b"", pb.label_set("aa", "1").SerializeToString()]),
    ),
    st.builds(Persisted, end=st.integers(0, 2**62)),
)


@given(_ENTRIES, st.integers(0, 60))
def test_entries_round_trip(entry: Entry, cut: int) -> None:
    payload = encode_entry(entry)
    assert decode_entry(payload) == entry
    if cut < len(payload):
        assert decode_entry(payload[:cut]) is None


def test_registers_which_cannot_be_decoded_are_refused() -> None:
    bad = b"\xff"
    commit = Commit(100, 7, bytes(20), 0.0, b"")
    begin = Begin("test/journal", 100, 100, 1, b"")
    for entry in (commit, begin):
        assert decode_entry(encode_entry(entry)) == entry
        assert decode_entry(encode_entry(dataclasses.replace(entry, registers=bad))) is None


def test_transactions_and_snapshots_round_trip() -> None:
    space = KeySpace()
    transaction = KeySpaceTransaction(
        7, (journal_spec("test/a"), journal_spec("test/b")), ("test/c",)
    )
    assert decode_transaction(encode_transaction(transaction)) == transaction
    space.commit(transaction)
    found = decode_snapshot(encode_snapshot(space))
    assert found.revision == 7
    assert list(found) == list(space)
    with pytest.raises(ValueError, match="not of this kind"):
        decode_snapshot(encode_transaction(transaction))


def test_headers_which_claim_long_payloads_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEARCHED_BYTES", 1 << 20)
    size = 1 << 17
    claims = b"".join(
        struct.pack("<II", size - begin - 8, 0) + TAG for begin in range(0, size - 100, 10)
    ).ljust(size, b"\0")
    found = encode_record(TAG + b"found")
    summed = 0

    def counting(data: bytes, value: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data, value)

    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", counting)
    assert find_tagged_record(claims + found, 0, TAG) is None
    assert summed <= 1 << 20
    assert find_tagged_record(bytes(100) + found + claims, 0, TAG) == (100, 115, TAG + b"found")


@pytest.mark.parametrize("length", [3, 1023, 1024, 1025, 2048, 4095, 70_001, 1 << 20])
def test_records_of_any_length_are_found(length: int) -> None:
    payload = TAG + random.Random(length).randbytes(length - 2)
    for before in (1, 500, 1016, 1024, 5_000):
        data = bytes(before) + encode_record(payload)
        assert find_tagged_record(data, 0, TAG) == (before, len(data), payload)
        damaged = data[:-1] + bytes((data[-1] ^ 1,))
        assert find_tagged_record(damaged, 0, TAG) is None
