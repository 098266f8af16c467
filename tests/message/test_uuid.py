"""UUIDs, clocks, flags and producers."""

from __future__ import annotations

import datetime as dt
import uuid as stdlib_uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.core import Stamper
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ZERO_UUID,
    Clock,
    Flags,
    build_uuid,
    clock_as_ns,
    clock_as_time,
    clock_from_ns,
    get_clock,
    get_flags,
    get_producer_id,
    is_time_uuid,
    new_producer_id,
    parse_uuid,
    uuid_from_bytes,
)
from gazette_aio.protocol.errors import ValidationError
from tests import golden

PRODUCER = bytes.fromhex("0123456789ab")
WORKED = [
    (0, 0, "00000000-0000-1000-8000-0123456789ab"),
    (1, 0, "00000000-0000-1000-8400-0123456789ab"),
    (160, 2, "0000000a-0000-1000-8002-0123456789ab"),
    (320, 1, "00000014-0000-1000-8001-0123456789ab"),
    (1955086848000000000, 0, "13814000-1dd2-11b2-8000-0123456789ab"),
    (2205855587517003792, 682, "83fc2f81-cc5f-11e9-82aa-0123456789ab"),
    (2205855587517004112, 682, "83fc2f95-cc5f-11e9-82aa-0123456789ab"),
    (2227086848019753072, 2, "04c29687-833b-11ee-8002-0123456789ab"),
    (1311768467463790327, 1, "89abcdef-4567-1123-9c01-0123456789ab"),
    (2**64 - 1, 1023, "ffffffff-ffff-1fff-bfff-0123456789ab"),
]
S = 10**9


def test_golden_build():
    for case in golden.load("uuid.json")["build"]:
        producer = bytes.fromhex(case["producer"])
        built = build_uuid(producer, case["clock"], case["flags"])
        assert built.bytes.hex() == case["bytes"]
        assert str(built) == case["string"]
        assert built.version == case["version"]
        assert get_clock(built) == case["got_clock"]
        assert get_flags(built) == case["got_flags"]
        assert get_producer_id(built).hex() == case["got_producer"]
        assert str(get_flags(built)) == case["flags_string"]
        raw = Stamper(b"", b"", producer, case["flags"], text=False)
        text = Stamper(b"", b"", producer, case["flags"])
        for _ in range(2):
            assert raw.uuid(case["clock"]).hex() == case["bytes"]
            assert text.uuid(case["clock"]).decode() == case["string"]


def test_golden_build_errors():
    for case in golden.load("uuid.json")["build_errors"]:
        with pytest.raises(ValidationError) as raised:
            build_uuid(bytes.fromhex(case["producer"]), case["clock"], case["flags"])
        assert str(raised.value) == case["error"]


def test_golden_decompose():
    for case in golden.load("uuid.json")["decompose"]:
        parsed = uuid_from_bytes(bytes.fromhex(case["bytes"]))
        assert str(parsed) == case["string"]
        assert get_clock(parsed) == case["clock"]
        assert get_flags(parsed) == case["flags"]
        assert get_producer_id(parsed).hex() == case["producer"]


def test_golden_clocks():
    data = golden.load("uuid.json")
    for case in data["clock_from_time"]:
        clock = clock_from_ns(case["unix_nanos"])
        assert clock == case["clock"]
        assert clock_as_ns(clock) == case["as_time_unix_nanos"]
    for case in data["clock_as_time"]:
        ns = clock_as_ns(case["clock"])
        assert divmod(ns, S) == (case["seconds"], case["subsec_nanos"])
        assert clock_as_time(case["clock"]) == dt.datetime(
            1970, 1, 1, tzinfo=dt.UTC
        ) + dt.timedelta(microseconds=ns // 1000)


def test_golden_clock_sequences():
    for case in golden.load("uuid.json")["clock_sequences"]:
        clock = Clock(case["initial"])
        for op in case["ops"]:
            if op["op"] == "tick":
                assert clock.tick() == op["returns"]
            else:
                clock.update(op["unix_nanos"])
            assert clock.value == op["clock"]


def test_golden_parse():
    for case in golden.load("uuid.json")["parse"]:
        if case["error"] is None:
            parsed = parse_uuid(case["input"])
            assert parsed.bytes.hex() == case["bytes"]
            assert str(parsed) == case["string"]
        else:
            with pytest.raises(ValidationError) as raised:
                parse_uuid(case["input"])
            assert str(raised.value) == case["error"], case


def test_golden_from_bytes():
    for case in golden.load("uuid.json")["from_bytes"]:
        raw = bytes.fromhex(case["input"])
        if case["error"] is None:
            assert str(uuid_from_bytes(raw)) == case["string"]
        else:
            with pytest.raises(ValidationError) as raised:
                uuid_from_bytes(raw)
            assert str(raised.value) == case["error"]


def test_producers_are_distinct_and_not_macs():
    ids = {new_producer_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(i) == 6 and i[0] & 1 for i in ids)


def test_ticks_of_a_zero_clock():
    clock = Clock()
    assert [clock.tick(), clock.tick()] == [160, 320]
    fine = Clock(tick=1)
    assert [fine.tick(), fine.tick()] == [1, 2]
    assert Clock(2**64 - 1).tick() == 159


def test_clock_updates():
    clock = Clock()
    clock.update(12 * S + 300)
    assert clock.value == 1955086849920000048 == Clock.from_time(12 * S + 399).value
    assert clock.value < Clock.from_time(12 * S + 400).value == 1955086849920000064
    assert clock.value > Clock.from_time(12 * S + 299).value == 1955086849920000032
    assert clock.as_time_ns() == 12 * S + 300

    assert clock.tick() == 1955086849920000208
    assert clock.as_time_ns() == 12 * S + 1300
    assert Clock.from_time(12 * S + 1299).value < clock.value < Clock.from_time(12 * S + 1400).value

    clock.update(11 * S + 100)
    assert clock.value == 1955086849920000208
    clock.update(12 * S + 5000)
    assert clock.value == Clock.from_time(12 * S + 5000).value == 1955086849920000800


def test_fine_ticks():
    clock = Clock.from_time(12 * S + 300, tick=1)
    for _ in range(15):
        assert clock.tick() < Clock.from_time(12 * S + 400).value
    assert clock.tick() == Clock.from_time(12 * S + 400).value
    clock.tick()
    clock.update(12 * S + 400)
    assert clock.value > Clock.from_time(12 * S + 400).value


def test_datetimes():
    when = dt.datetime(2026, 5, 17, 12, 30, 1, 123457, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert Clock.from_time(when).as_time() == when
    clock = Clock()
    clock.update()
    assert abs(clock.as_time() - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert Clock.now().value >= clock.value
    with pytest.raises(ValidationError):
        Clock.from_time(dt.datetime(2026, 5, 17))  # noqa: DTZ001


def test_agrees_with_the_standard_library():
    clock = Clock.from_time(1567304621 * S + 981273734)
    clock.tick()
    clock.tick()
    built = build_uuid(PRODUCER, clock.value, 682)
    assert (get_clock(built), get_flags(built), get_producer_id(built)) == (
        clock.value,
        682,
        PRODUCER,
    )
    assert built.version == 1
    assert built.variant == stdlib_uuid.RFC_4122
    assert built.node == int.from_bytes(PRODUCER, "big")
    assert built.time == clock.value >> 4
    assert clock.as_time_ns() == 1567304621 * S + 981275700


@pytest.mark.parametrize(("clock", "flags", "text"), WORKED)
def test_worked_examples(clock, flags, text):
    built = build_uuid(PRODUCER, clock, flags)
    assert str(built) == text
    assert (get_clock(built), get_flags(built)) == (clock, flags)


@pytest.mark.parametrize(("producer", "flags"), [(PRODUCER, 0x400), (PRODUCER, -1), (b"", 0)])
def test_refuses_to_build(producer, flags):
    with pytest.raises(ValidationError):
        build_uuid(producer, 1, flags)


def test_input_forms():
    want = stdlib_uuid.UUID(WORKED[6][2])
    text = WORKED[6][2]
    for form in (
        text,
        f"urn:uuid:{text}",
        f"URN:UUID:{text}",
        f"{{{text}}}",
        f"x{text}y",
        text.replace("-", ""),
        text.upper(),
    ):
        assert parse_uuid(form) == want
        assert parse_uuid(form.encode()) == want
    for bad, error in [
        ("", "invalid UUID length: 0"),
        ("x" * 10, "invalid UUID length: 10"),
        (text[1:], "invalid UUID length: 35"),
        (text.replace("-", "_"), "invalid UUID format"),
        ("+" + text[1:], "invalid UUID format"),
        (f"foo:uuid:{text}", 'invalid urn prefix: "foo:uuid:"'),
    ]:
        with pytest.raises(ValidationError) as raised:
            parse_uuid(bad)
        assert str(raised.value) == error


def test_other_versions_are_extracted_and_recognized():
    random = stdlib_uuid.uuid4()
    assert 0 <= get_clock(random) < 2**64
    assert not is_time_uuid(random)
    assert is_time_uuid(build_uuid(PRODUCER, 5, 1))
    assert is_time_uuid(ZERO_UUID)


def test_flags_are_an_enumeration():
    assert [str(f) for f in (OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN, Flags(256), Flags(3))] == [
        "OUTSIDE_TXN",
        "CONTINUE_TXN",
        "ACK_TXN",
        "Flags(100)",
        "Flags(3)",
    ]
    assert ACK_TXN == 2


@given(st.binary(min_size=6, max_size=6), st.integers(0, 2**64 - 1), st.integers(0, 1023))
def test_round_trip(producer, clock, flags):
    built = build_uuid(producer, clock, flags)
    assert (get_producer_id(built), get_clock(built), get_flags(built)) == (producer, clock, flags)
    assert parse_uuid(str(built)) == built
    assert Stamper(b"", b"", producer, flags, text=False).uuid(clock) == built.bytes
    assert Stamper(b"", b"", producer, flags).uuid(clock) == str(built).encode()
