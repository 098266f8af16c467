"""Both forms, given the same calls: all that they return is compared."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.uuid import build_uuid
from tests import extent
from tests.message.core.journals import ALL, PATH, PREFIX, RAW, A, B, C, Z, fixed, is_batch, rows

ERRORS = (ValueError, IndexError, OverflowError)


class Twins:
    """The same journal in both forms, which must not differ."""

    def __init__(self, forms, *args, **options):
        self.journals = [form.Journal(*args, **options) for form in forms]
        self.calls = [("Journal", args, options)]

    def __call__(self, name, *args):
        """Call both, and return their results, or an error."""
        self.calls.append((name, args))
        found = []
        for number, journal in enumerate(self.journals):
            own = [each[number] if isinstance(each, Pair) else each for each in args]
            try:
                found.append(getattr(journal, name)(*own))
            except ERRORS as error:
                found.append(error)
        pair = Pair(found)
        self.equal(*map(comparable, found))
        self.equal(*map(facts, self.journals))
        return pair

    def equal(self, native, plain):
        assert native == plain, self.calls


class Pair(tuple):
    """What the forms returned."""

    __slots__ = ()


def comparable(found):
    if isinstance(found, OverflowError):
        return OverflowError
    if isinstance(found, Exception):
        return type(found), str(found)
    if not is_batch(found) or not hasattr(found, "places"):
        return found
    stop = len(found)
    return (
        rows(found),
        found.payloads(0, stop),
        found.unusual(0, stop),
        found.lines(0, stop, acks=False),
        found.columns(),
        found.values(0, stop),
    )


def facts(journal):
    return (
        journal.offset,
        journal.buffered,
        journal.pending_bytes,
        journal.pending_rows,
        sorted(journal.retained()),
        journal.has_pending,
        journal.passed,
        journal.remarks,
    )


def uuid_text(rng, clocks, *, wild):
    producer = rng.choice(list(clocks))
    step = rng.choice((-8, -2, 0, 1, 1, 1)) if wild else 1
    clocks[producer] = max(clocks[producer] + step, 0)
    flags = rng.choice((0, 1, 1, 1, 1, 1, 2, 2, 3) if wild else (1, 1, 1, 2))
    return build_uuid(producer, clocks[producer], flags)


def odd_text(rng, uuid):
    """Text which isn't a UUID for sure."""
    text = str(uuid)
    forms = (
        text.upper(),
        "urn:uuid:" + text,
        text[:-1],
        text.replace("-", "_"),
        "",
        text.replace("-1", "-4", 1),
        text + " ",
    )
    return rng.choice(forms)


def json_message(rng, uuid):
    text = str(uuid) if rng.random() < 0.9 else odd_text(rng, uuid)
    where = rng.randrange(8)
    match where:
        case 0:
            return b'{"n":"\\"}{","_meta":{"ack":false,"uuid":"%b"}}' % text.encode()
        case 1:
            return b' {"n":1.5e3,"_m\\u0065ta" : {"uuid": "%b"} }' % text.encode()
        case 2 if rng.random() < 0.5:
            return rng.choice(
                (
                    b"",
                    b"{}",
                    b'{"_meta":null}',
                    b'{"_meta":5}',
                    b'{"_meta":{"uuid":7}}',
                    b'{"_meta":{"uuid":"\\u0030"}}',
                    b'{"a":' + b"[" * 600,
                    b"\xff\xfe",
                    b"nonsense",
                    b'{"_meta":{"uuid":null}} x',
                )
            )
        case _:
            return PREFIX + text.encode() + b'"},"n":%d}' % rng.randrange(10**9)


def message_of(rng, place, uuid):
    if place == "json":
        return json_message(rng, uuid)
    if place == "csv":
        text = str(uuid) if rng.random() < 0.9 else odd_text(rng, uuid)
        return b"%b%b%d" % (text.encode(), rng.choice((b",", b",", b",", b'"')), rng.randrange(99))
    rest = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
    raw = uuid.bytes if rng.random() < 0.9 else uuid.bytes[:9]
    return (RAW if rng.random() < 0.9 else b"") + raw + rest


class Case:
    """Random content, and random calls over it."""

    def __init__(self, forms, rng):
        self.forms, self.rng = forms, rng
        self.framing = rng.choice(("lines", "lines", "fixed", "frames"))
        places = ("json", "csv") if self.framing == "lines" else ("json", "csv", "raw", "odd")
        self.place = rng.choice(places)
        self.base = rng.choice((0, 7, 1 << 40, (1 << 63) - 900))
        self.options = {
            "strict": rng.random() < 0.3,
            "skip_acks": rng.random() < 0.3,
            "skip_errors": rng.random() < 0.3,
            "max_frame_bytes": rng.choice((1 << 30, 1 << 30, 200)),
            "max_pending_bytes": rng.choice((1 << 30, 1 << 30, 800, 0)),
        }
        match self.place:
            case "json":
                self.options |= {"prefix": PREFIX, "suffix": b'"', "path": list(PATH)}
            case "csv":
                self.options |= {"prefix": b"", "suffix": b","}
            case "raw":
                self.options["prefix"] = RAW
        self._make_content()
        states = None if rng.random() < 0.1 else []
        self.start(self.base, states)

    def _make_content(self):
        rng, wild = self.rng, self.rng.random() < 0.5
        clocks = {p: rng.randrange(1, 50) for p in rng.sample((A, B, C, Z), rng.randrange(1, 4))}
        pieces, self.frames, at = [], [], self.base
        for _ in range(rng.randrange(1, 60)):
            payload = message_of(rng, self.place, uuid_text(rng, clocks, wild=wild))
            piece = payload.replace(b"\n", b" ") + b"\n" if self.framing == "lines" else payload
            if self.framing == "fixed":
                piece = fixed(payload)
                if rng.random() < 0.05:
                    piece = rng.choice((b"garbage", b"f3", b"\x66\x33\x93")) * 5 + piece
            piece = piece or b"-"
            self.frames.append((payload, at, at + len(piece)))
            pieces.append(piece)
            at += len(piece)
        self.content, self.uuids = b"".join(pieces), {}

    def start(self, offset, states):
        entering = states is None or self.rng.random() < 0.9
        options = {**self.options, "states": states, "entering": entering}
        self.twins = Twins(self.forms, self.framing, offset, **options)
        self.sequences = states is not None
        self.fed = offset
        self.undelivered = []  # Batches, and from where.
        self.is_again = False
        self.again = self.again_end = 0

    def run(self, count):
        for _ in range(count):
            if self.fed >= self.base + len(self.content) and self.rng.random() < 0.2:
                break
            self._step()
        for _ in range(200):
            if self._work(ALL) is None:
                break
        self.twins("checkpoint")

    def _step(self):
        rng, twins = self.rng, self.twins
        match rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5:
                self._feed()
            case 6 | 7 | 8 | 9 | 10 | 11:
                self._work(rng.choice((1, 100, 100, 1000, ALL)))
            case 12 | 13:
                self._settle()
            case 14:
                twins("evict", rng.choice((0, 100, 1000)), rng.choice((None, 0, 3)))
            case 15:
                self._checkpoint()
            case 16 if rng.random() < 0.3:
                self._jump()
            case 17 if rng.random() < 0.5:
                verdicts = [(rng.choice((A, B, C)), rng.randrange(60)) for _ in range(2)]
                self._handle(twins("commit", verdicts))
            case 18 if rng.random() < 0.3:
                twins("end")
            case 19:
                name, *args = rng.choice(
                    (
                        ("resolve", []),
                        ("resolve", [bytes(16)] * 3),
                        ("leave_out",),
                        ("end_replay",) if not self.is_again else ("settle_all",),
                        ("work", 0),
                        ("feed_frames" if self.framing != "frames" else "feed", b""),
                        ("feed_replay", b"") if not self.is_again else ("settle_all",),
                    )
                )
                found = twins(name, *args)
                if name == "resolve":
                    self._handle(found)

    def _feed(self):
        size = self.rng.choice((1, 7, 50, 300, 5000))
        if self.framing == "frames":
            frames = [f for f in self.frames if self.fed <= f[1] < self.fed + size]
            self.twins("feed_frames", frames)
            self.fed += size
        else:
            self.twins("feed", self.content[self.fed - self.base :][:size])
            self.fed = min(self.fed + size, self.base + len(self.content))

    def _jump(self):
        self.fed = min(self.fed + self.rng.randrange(300), self.base + len(self.content))
        self.twins("jump", self.fed)

    def _work(self, limit):
        return self._handle(self.twins("work", limit))

    def _handle(self, pair):
        rng, twins = self.rng, self.twins
        found = pair[0]
        if isinstance(found, Exception):
            return found
        if is_batch(found):
            self.undelivered.append((pair, 0))
        elif found is None:
            if self.is_again:
                self._go_on_with_replay()
                return found or ()
        elif found[0] == "progress":
            if rng.random() < 0.8 and not self.undelivered:
                twins("settle_all")
        elif found[0] == "odd":
            count = rng.randrange(1, len(found[1]) + 1)
            if rng.random() < 0.3:
                twins("leave_out")
            else:
                clocks = {A: rng.randrange(1, 60), B: rng.randrange(1, 60)}
                uuids = [uuid_text(rng, clocks, wild=True).bytes for _ in range(count)]
                self._handle(twins("resolve", uuids))
        elif found[0] in {"replay", "changed"}:
            (self.again, self.again_end), _ = twins("begin_replay")
            self.is_again = True
        return found

    def _go_on_with_replay(self):
        rng, twins = self.rng, self.twins
        if rng.random() < 0.1:
            (self.again, self.again_end), _ = twins("begin_replay")
        elif self.again < self.again_end:
            size = rng.choice((20, 1000))
            end = self.again_end + (rng.random() < 0.02) * 500
            if rng.random() < 0.05:
                self.again += 10
                twins("jump_replay", self.again)
            if self.framing == "frames":
                stop = min(self.again + size, end)
                frames = [f for f in self.frames if self.again <= f[1] < stop]
                twins("feed_replay_frames", frames)
            else:
                stop = min(self.again + size, end)
                content = self.content[self.again - self.base : stop - self.base]
                twins("feed_replay", content)
            self.again = stop
        else:
            self.undelivered.append((twins("end_replay"), 0))
            self.is_again = False

    def _settle(self):
        if self.undelivered:
            pair, start = self.undelivered[0]
            stop = self.rng.randrange(start, len(pair[0]) + 1)
            self.twins("settle", pair, start, stop)
            self.undelivered[0] = pair, stop
            if stop == len(pair[0]):
                del self.undelivered[0]

    def _checkpoint(self):
        horizon = self.rng.choice((0, 0, 100, 1000))
        checkpoint, _ = self.twins("checkpoint", horizon)
        if not isinstance(checkpoint, Exception) and self.rng.random() < 0.3:
            self.start(*checkpoint)


@pytest.mark.parametrize("seed", extent.seeds(40))
def test_seeded_calls(forms, seed):
    for number in range(25):
        Case(forms, random.Random(f"{seed} {number}")).run(150)


@given(rng=st.randoms(use_true_random=False))
def test_calls(forms, rng):
    Case(forms, rng).run(30)
