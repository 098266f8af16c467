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
