"""UUIDs as the core reads them: as adapters do, or not at all."""

from __future__ import annotations

import random

import msgspec
import pytest

from gazette_aio.message import json_adapter
from gazette_aio.message.uuid import (
    ZERO_UUID,
    build_uuid,
    get_clock,
    get_flags,
    get_producer_id,
    is_time_uuid,
    parse_uuid,
)
from gazette_aio.protocol.errors import ValidationError
from tests import extent
from tests.message.core.journals import ALL, PREFIX, RAW, A, fixed, is_batch, new, rows

FIRST, SECOND = build_uuid(A, 1 << 40, 1), build_uuid(b"\xff" * 6, (1 << 64) - 1, 1023)
V4 = type(ZERO_UUID)("123e4567-e89b-42d3-a456-426614174000")
OTHER_VARIANT = type(ZERO_UUID)(int=FIRST.int | 3 << 62)
VALUES = (
    *(b'"%s"' % str(uuid).encode() for uuid in (FIRST, SECOND, V4, OTHER_VARIANT, ZERO_UUID)),
    b'"%s"' % str(FIRST).upper().encode(),
    b'"urn:uuid:%s"' % str(FIRST).encode(),
    b'"{%s}"' % str(FIRST).encode(),
    b'"%s"' % FIRST.hex.encode(),
    b'"%s"' % str(FIRST).replace("1", "\\u0031").encode(),
    *(b"null", b"7", b"-0.5e+3", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"\\ud834\\udd1e"'),
    *(b'"\x00"', b'"\xff"', b'"\xc3\xa9"', b"1e999", b"-", b"01", b"1.", b"nul", b'"', b"[1,]"),
    *(b"[" * 20 + b"]" * 20, b'{"a":' * 30 + b"1" + b"}" * 30, b"9" * 400),
)
NAMES = (
    *(b'"_meta"', b'"_meta"', b'"uuid"', b'"uuid"', b'"x"', b'"_m\\u0065ta"', b'"\\u0075uid"'),
    *(b'""', b'"\\ud800"', b'"\xff"', b'"_meta\\u0000"', b'"a\\"b"', b"_meta"),
)
SPACES = (b"",) * 8 + (b" ", b"\t", b"\r", b"  \n")


def document(rng, depth=0):
    """Return bytes that are mostly JSON, with UUIDs here and there."""
    if depth and rng.random() < 0.6:
        return rng.choice(VALUES)
    space = lambda: rng.choice(SPACES)  # noqa: E731
    members = []
    for _ in range(rng.randrange(4)):
        value = document(rng, depth + 1) if depth < 3 else b"1"
        members.append(space() + rng.choice(NAMES) + space() + b":" + space() + value + space())
    return b"{" + b",".join(members) + b"}"


def damaged(rng, text):
    """Return bytes with one of them changed, left out, or repeated."""
    if not text or rng.random() < 0.6:
        return text
    at = rng.randrange(len(text))
    other = rng.choice((b"", bytes([rng.randrange(256)]), text[at : at + 1] * 2, b"\\", b'"'))
    return text[:at] + other + text[at + 1 :]


def read(form, payload, *, strict=False, place=None):
    """Return clock, flags and producer of a message, or None if it's odd."""
    place = {} if place is None else place
    journal = new(form, "frames", states=None, strict=strict, **place)
    journal.feed_frames([(payload, 0, len(payload) + 1)])
    found = journal.work(ALL)
    if not is_batch(found):
        assert found == ("odd", [payload])
        return None
    ((_, _, clock, flags, producer),) = rows(found)
    is_explicit = found.unusual(0, 1)[1] == [0]
    return clock, flags, producer, is_explicit


def wanted(adapter, payload):
    """Return the UUID of a message, and what's read of it; or None if that raises an error."""
    text = payload[len(PREFIX) :][:36]
    try:
        if payload.startswith(PREFIX) and payload[len(PREFIX) + 36 :][:1] == b'"':
            # A UUID at its usual place counts, whatever follows.
            uuid = parse_uuid(text) if b"\\" not in text else adapter.frame_uuid(payload)
        else:
            uuid = adapter.frame_uuid(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValidationError, RecursionError):
        return None, None
    is_explicit = not is_time_uuid(uuid) or not uuid.int
    return uuid, (get_clock(uuid), int(get_flags(uuid)), get_producer_id(uuid), is_explicit)


@pytest.mark.parametrize("seed", extent.seeds(4))
def test_adapters_read_the_same(form, seed):
    adapter = json_adapter()
    clear = 0
    for number in range(2500):
        rng = random.Random(f"{seed} {number}")
        payload = damaged(rng, document(rng))
        if rng.random() < 0.3:
            text = b'"' + damaged(rng, rng.choice(VALUES)) + b"}"
            payload = PREFIX[:-1] + damaged(rng, text)
        uuid, want = wanted(adapter, payload)
        got = read(form, payload)
        assert got is None or got == want, payload
        strict = read(form, payload, strict=True)
        is_valid = uuid is not None and is_time_uuid(uuid)
        assert strict == (got if is_valid or got is None else None), payload
        clear += got is not None
    assert clear > 300


@pytest.mark.parametrize("seed", extent.seeds(4))
def test_the_forms_read_the_same(forms, seed):
    native, plain = forms
    differ = 0
    for number in range(2500):
        rng = random.Random(f"{seed} {number}")
        payload = damaged(rng, document(rng))
        first, second = read(native, payload), read(plain, payload)
        # Both may leave what's unusual to the adapter.
        assert first == second or None in {first, second}, payload
        differ += first != second
    assert differ < 100


def test_a_uuid_at_its_usual_place_counts_whatever_follows(form):
    text = PREFIX + str(FIRST).encode()
    first = get_clock(FIRST)
    for rest in (b'"},"_meta":{"uuid":"%s"}}' % str(SECOND).encode(), b'"', b'"}', b'"\x00\xff'):
        assert read(form, text + rest)[0] == first
    # Elsewhere, the last one counts, and all of the document is checked.
    twice = b' {"_meta":{"uuid":"%s"},"_meta":{"uuid":"%s"}}'
    assert read(form, twice % (str(FIRST).encode(), str(SECOND).encode()))[0] == (1 << 64) - 1
    assert read(form, b" " + text + b'"}') is None
    assert read(form, b" " + text + b'"}} x') is None


def test_a_uuid_that_was_seen_before_is_read_as_the_first(form):
    """Whatever is remembered of one UUID doesn't change what's read of others."""
    journal = new(form, "frames", states=None)
    text = str(FIRST)
    texts = [text[:at] + other + text[at + 1 :] for at in range(36) for other in "-0gG_ :/@`\x7f"]
    frames, want = [], []
    for each in [text, *texts, text]:
        payload = PREFIX + each.encode() + b'"}}'
        at = 100 * len(frames)
        frames.append((payload, at, at + 1))
        want.append(wanted(json_adapter(), payload)[1])
    journal.feed_frames(frames)
    got = {}
    while (found := journal.work(ALL)) is not None:
        if is_batch(found):
            got |= {row[0] // 100: row[2:] for row in rows(found)}
        else:
            journal.leave_out()
    assert [got.get(at) for at in range(len(want))] == [each and each[:3] for each in want]
    assert 36 < len(got) < len(want)


def test_raw_uuids(form):
    for prefix, payload, is_clear in [
        (RAW, RAW + FIRST.bytes, True),
        (RAW, RAW + FIRST.bytes + b"more", True),
        (RAW, RAW + FIRST.bytes[:15], False),
        (RAW, b"x" + RAW + FIRST.bytes, False),
        (RAW, b"", False),
        (b"", FIRST.bytes, True),
        (b"", b"", False),
    ]:
        got = read(form, payload, place={"prefix": prefix, "path": None})
        want = get_clock(FIRST), get_flags(FIRST), A, False
        assert got == (want if is_clear else None)
    # The bytes at the place are complete only with the header of the next frame.
    journal = new(form, "fixed", states=None, prefix=RAW, path=None)
    journal.feed(fixed(RAW + b"\1" * 10) * 3)
    assert journal.work(ALL) == ("odd", [RAW + b"\1" * 10] * 3)


def test_uuids_may_be_at_a_path_only(form):
    place = {"prefix": None, "path": [b"a", b"\xc3\xa9", b"c"]}
    text = b'{"x":[{"a":1}],"a":{"b":{},"\xc3\xa9":{"c":"%s"}}}' % str(FIRST).encode()
    assert read(form, text, place=place) == (get_clock(FIRST), 1, A, False)
    assert read(form, b'{"a":null}', place=place) == (0, 0, b"\0" * 6, True)
    assert read(form, b'{"a":[]}', place=place) is None


def test_without_a_place_all_messages_are_odd(form):
    place = {"prefix": None, "path": None}
    assert read(form, FIRST.bytes, place=place) is None


def test_deep_documents_end(form):
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        for depth in (100, 400, 100_000):
            nested = opened * depth + b"1" + closed * depth
            text = b'{"x":%s,"_meta":{"uuid":"%s"}}' % (nested, str(FIRST).encode())
            got = read(form, text)
            # Adapters refuse what's too deep.
            assert got is None if depth == 100_000 else got[0] == get_clock(FIRST)


@pytest.mark.parametrize("suffix", [b",", b"", b"</id>"])
def test_text_between_a_prefix_and_a_suffix(form, suffix):
    """All other messages are odd: only their adapters know of another place."""
    journal = new(form, states=None, prefix=b"<id>", suffix=suffix, path=None)
    text = str(FIRST).encode()
    good = (text, text.upper(), str(SECOND).encode())
    for content in (b"<id>%b%brest" % (each, suffix) for each in good):
        journal.feed(content + b"\n")
        ((*_, clock, flags, producer),) = rows(journal.work(ALL))
        uuid = parse_uuid(content[4:40])
        assert (clock, flags, producer) == (
            get_clock(uuid),
            get_flags(uuid),
            get_producer_id(uuid),
        )
    bad = [
        b"<ID>" + text + suffix,
        b"<id>" + text[:-1] + suffix,
        b"<id>" + text.replace(b"-", b"_") + suffix,
        b'"uuid":"%b"' % text,
        *([b"<id>" + text + b";", b"<id>" + text + suffix[:-1]] if suffix else []),
    ]
    for each in bad:
        journal.feed(each + b"\n")
        assert journal.work(ALL) == ("odd", [each])
        journal.leave_out()
