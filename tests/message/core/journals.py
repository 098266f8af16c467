"""Content of journals, and drivers of the core over it."""

from __future__ import annotations

import struct

from gazette_aio.message.uuid import build_uuid

PREFIX, PATH = b'{"_meta":{"uuid":"', (b"_meta", b"uuid")
RAW = b"\x0a\x10"
A, B, C, Z = b"\x01AAAAA", b"\x01BBBBB", b"\x01CCCCC", b"\0" * 6
OUTSIDE, CONTINUE, ACK = 0, 1, 2
ALL = 1 << 40


def new(form, framing="lines", offset=0, *, states=(), **options):
    """Return a journal of JSON lines, by default."""
    options = {"prefix": PREFIX, "path": PATH, **options}
    if options["path"] is not None:
        options["suffix"] = b'"'
    return form.Journal(framing, offset, states=None if states is None else list(states), **options)


def line(producer, clock, flags, rest=b""):
    """Return a line with a UUID at its usual place."""
    return PREFIX + str(build_uuid(producer, clock, flags)).encode() + b'"}' + rest + b"}\n"


def fixed(payload):
    """Return a fixed frame."""
    return b"\x66\x33\x93\x36" + struct.pack("<I", len(payload)) + payload


def rows(batch):
    """Return (begin, end, clock, flags, producer) of messages."""
    return list(zip(*batch.places(0, len(batch), (0, 1, 2)), strict=True))


def is_batch(found):
    return found is not None and not isinstance(found, tuple)


def delivered(journal, content=b"", base=0):
    """Return what a journal delivers of all that it was fed, and settle it.

    Replays are of `content`, which begins at offset `base`. Others than messages are returned as
    they are.
    """
    got = []
    while (found := journal.work(ALL)) is not None:
        if is_batch(found):
            got += _settled(journal, found)
        elif found[0] == "replay":
            got += replayed(journal, content, base)
        elif found[0] == "progress":
            journal.settle_all()
        else:
            got.append(found)
            if found[0] in {"odd", "changed"}:
                break
    return got


def replayed(journal, content, base=0):
    """Return what the replay of a journal delivers."""
    begin, end = journal.begin_replay()
    journal.feed_replay(content[begin - base : end - base])
    got = []
    while (found := journal.work(ALL)) is not None:
        got += _settled(journal, found) if is_batch(found) else []
    return got + _settled(journal, journal.end_replay())


def _settled(journal, batch):
    journal.settle(batch, 0, len(batch))
    if not len(batch):
        journal.settle_all()
    return rows(batch)


class Frames:
    """A log of messages as frames, and what a journal delivers of it, message by message.

    Args:
        form: Module of a form.
        log: Objects with `begin`, `end`, `clock`, `flags` and `producer`.
        offset: Offset to begin at, and `states` as of there.
        options: Of the journal.
    """

    def __init__(self, form, log, offset=0, states=(), **options):
        self.journal = new(form, "frames", offset, states=states, prefix=b"", path=None, **options)
        self.frames = [
            (build_uuid(row.producer, row.clock, row.flags).bytes, row.begin, row.end)
            for row in log
        ]
        self.rest = [frame for frame in self.frames if frame[1] >= offset]
        self.replays = []

    def deliver(self, size=0):
        """Yield what's delivered, once it was settled. `size` messages are fed at once."""
        while self.rest:
            some, self.rest = self.rest[: size or None], self.rest[size:] if size else []
            self.journal.feed_frames(some)
            yield from self._work()

    def _work(self):
        journal = self.journal
        while (found := journal.work(ALL)) is not None:
            if is_batch(found):
                yield from self._settle(found)
            elif found[0] == "replay":
                begin, end = journal.begin_replay()
                self.replays.append((begin, end))
                journal.feed_replay_frames([f for f in self.frames if begin <= f[1] < end])
                yield from self._work()
                rest = journal.end_replay()
                yield from self._settle(rest)
                if not len(rest):
                    journal.settle_all()
            else:
                assert found == ("progress",)
                journal.settle_all()

    def _settle(self, batch):
        for at, row in enumerate(rows(batch)):
            self.journal.settle(batch, at, at + 1)
            yield row
