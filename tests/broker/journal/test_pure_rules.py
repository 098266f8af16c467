"""Registers, rolls, and content of the messages of an append stream."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.rolling import roll_offset
from gazette_aio.broker.fragments.spool import Spool
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.journal.registers import (
    MAX_REGISTERS_BYTES,
    RegistersTooLongError,
    check_request,
    registers_match,
    update_registers,
)
from gazette_aio.broker.service.append_machine import (
    content_of,
)
from tests.broker.caller import journal_spec
from tests.loop_steps import counted_calls

# Registers


def updated(
    registers: pb.LabelSet,
    *,
    union: pb.LabelSet | None = None,
    subtract: pb.LabelSet | None = None,
) -> pb.LabelSet:
    request = pb.AppendRequest(union_registers=union, subtract_registers=subtract)
    return update_registers(registers, request)


def _long_labels(prefix: str, length: int) -> pb.LabelSet:
    labels = (pb.Label(name=f"{prefix}{number:06}", value="x" * 100) for number in range(10000))
    return pb.LabelSet(labels=itertools.islice(labels, length // 110))


def test_registers_are_bounded() -> None:
    half = _long_labels("a", MAX_REGISTERS_BYTES // 2)
    check_request(pb.AppendRequest(union_registers=half, content=bytes(MAX_REGISTERS_BYTES)))
    assert updated(pb.LabelSet(), union=half) == half
    whole = _long_labels("b", MAX_REGISTERS_BYTES)
    with pytest.raises(RegistersTooLongError, match="registers are too long"):
        updated(half, union=whole)
    with pytest.raises(RegistersTooLongError, match="request is too long"):
        check_request(pb.AppendRequest(subtract_registers=pb.union_label_sets(half, whole)))


_VALUES = st.dictionaries(
    st.sampled_from(["aa", "bb", "cc"]), st.sets(st.sampled_from("123"), min_size=1), max_size=3
)


def _labels(values: dict[str, set[str]]) -> pb.LabelSet:
    return pb.label_set(*(x for n in sorted(values) for v in sorted(values[n]) for x in (n, v)))


@given(_VALUES, _VALUES, _VALUES)
def test_registers_follow_a_model(
    current: dict[str, set[str]], union: dict[str, set[str]], subtract: dict[str, set[str]]
) -> None:
    now = updated(_labels(current), union=_labels(union), subtract=_labels(subtract))
    left = {name: values for name, values in current.items() if subtract.get(name) != values}
    assert now == _labels({**left, **union})


def test_many_registers_take_linear_time() -> None:
    def calls(count: int) -> int:
        labels = pb.LabelSet(labels=[pb.Label(name=f"a/{n:05}", value="x") for n in range(count)])
        request = pb.AppendRequest(
            journal="test/journal",
            check_registers=pb.LabelSelector(include=labels),
            union_registers=labels,
            subtract_registers=labels,
        )
        with counted_calls() as counted:
            pb.validate(request)
            assert registers_match(labels, request.check_registers)
            assert update_registers(labels, request) == labels
        return counted.count

    assert calls(8000) < 2.1 * calls(4000)


# Rolls


def spool_of(begin: int, end: int, first_append_seconds: float) -> Spool:
    spool = Spool(FileOps(), Path(), journal="a/b", begin=begin, codec=1, registers=pb.LabelSet())
    spool.end, spool.first_append_seconds = end, first_append_seconds
    return spool


_MINUTES_30 = {"seconds": 1800}


@pytest.mark.parametrize(
    ("spool", "length", "flush", "roll_to", "now", "expected"),
    [
        ((0, 100, 10), 200, None, None, 20, None),
        ((1, 200, 10), 100, None, None, 20, 200),
        ((0, 100, 10), 100, None, None, 20, None),
        ((5, 5, 0), 100, None, None, 20, 5),
        ((0, 100, 1799), 200, _MINUTES_30, None, 1799.9, None),
        ((0, 100, 1799), 200, _MINUTES_30, None, 1800, 100),
        ((10, 20, 10), 200, None, 20, 20, 20),
        ((20, 30, 10), 200, None, 20, 20, None),
        ((0, 10, 10), 200, None, 500, 20, 500),
    ],
)
def test_roll_offset(
    spool: tuple[int, int, float],
    length: int,
    flush: dict[str, int] | None,
    roll_to: int | None,
    now: float,
    expected: int | None,
) -> None:
    fragment = journal_spec(length=length, flush_interval=flush).fragment
    assert roll_offset(spool_of(*spool), fragment, roll_to=roll_to, now_seconds=now) == expected


# Append streams


@given(
    st.binary(max_size=300),
    st.integers(0, 3),
    st.sampled_from(["", "test/journal"]),
    st.binary(max_size=4),
)
def test_content_is_found_without_parsing(
    content: bytes, offset: int, journal: str, tail: bytes
) -> None:
    message = pb.AppendRequest(content=content, offset=offset, journal=journal)
    encoded = message.SerializeToString()
    found = content_of(encoded)
    alone = bool(content) and not offset and not journal
    assert (found is not None) is alone
    if found is not None:
        assert bytes(found) == content
    content_of(encoded + tail)  # Garbage is left to the parser.


@given(st.binary(max_size=64))
def test_found_content_is_what_the_parser_finds(data: bytes) -> None:
    if (found := content_of(data)) is not None:
        assert pb.AppendRequest.FromString(data) == pb.AppendRequest(content=bytes(found))
