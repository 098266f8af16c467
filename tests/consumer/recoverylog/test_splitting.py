"""Segments of files that change seldom, in a log in which much else happens."""

from __future__ import annotations

import itertools

from gazette_aio.consumer.recoverylog import (
    FSM,
    Outcome,
    Segment,
    content_checksum,
    encode_operation,
    live_log_segments,
)
from gazette_aio.consumer.recoverylog.live_nodes import MAX_SEGMENTS, SPLIT_GAP_BYTES
from gazette_aio.protocol.recoverylog import FSMHints, Property, RecordedOp

LOG = "recovery/log"
WRITE_BYTES = 100


class Log:
    """Operations of one author at chosen offsets."""

    def __init__(self) -> None:
        self.fsm = FSM(FSMHints(log=LOG))
        self.applied: list[tuple[RecordedOp, bytes]] = []
        self.offset = 0

    def apply(self, op: RecordedOp, *, gap: int = 0) -> None:
        op.seq_no, op.checksum = self.fsm.next_seq_no, self.fsm.next_checksum
        op.author = op.author or 7
        payload, _ = encode_operation(op)
        op.log, op.first_offset = LOG, self.offset + gap
        self.offset = op.last_offset = op.first_offset + WRITE_BYTES
        assert self.fsm.apply(op, payload) is Outcome.APPLIED
        self.applied.append((op, payload))

    def create(self, path: str) -> int:
        self.apply(RecordedOp(create=RecordedOp.Create(path=path)))
        return self.fsm.links[path]

    def write(self, fnode: int, *, gap: int = 0, author: int = 7) -> None:
        op = RecordedOp(write=RecordedOp.Write(fnode=fnode, length=WRITE_BYTES), author=author)
        self.apply(op, gap=gap)


def test_a_long_gap_splits_a_segment():
    log = Log()
    fnode = log.create("/rare")
    log.write(fnode, gap=SPLIT_GAP_BYTES)
    log.write(fnode, gap=SPLIT_GAP_BYTES + 1)

    first, second = log.fsm.live_nodes[fnode].segments
    assert (first.first_seq_no, first.last_seq_no) == (1, 2)
    assert (second.first_seq_no, second.last_seq_no) == (3, 3)
    assert second.first_offset - first.last_offset == SPLIT_GAP_BYTES + 1
    assert second.first_checksum == log.applied[2][0].checksum


def test_playback_skips_the_gap():
    log = Log()
    rare = log.create("/rare")
    for number in range(20):
        short_lived = log.create(f"/short-lived/{number}")
        log.write(short_lived, gap=SPLIT_GAP_BYTES)
        path = f"/short-lived/{number}"
        log.apply(RecordedOp(unlink=RecordedOp.Link(fnode=short_lived, path=path)))
    log.write(rare)
    newest = log.create("/newest")

    player = FSM(log.fsm.build_hints(LOG))
    outcomes = [player.apply(op, payload) for op, payload in log.applied]
    assert outcomes.count(Outcome.APPLIED) == 3
    assert player.links == {"/rare": rare, "/newest": newest}
    assert not player.has_remaining_hints
    assert (player.next_seq_no, player.next_checksum) == (
        log.fsm.next_seq_no,
        log.fsm.next_checksum,
    )


def test_a_file_that_ends_in_a_gap_is_forgotten():
    """Its creation was read after that of the newest live file, its removal isn't."""
    log = Log()
    old = log.create("/old")
    log.write(old)
    temporary = log.create("/temporary")
    log.write(old)
    split = log.fsm.live_nodes[old].segments
    log.apply(
        RecordedOp(unlink=RecordedOp.Link(fnode=temporary, path="/temporary")),
    )
    log.write(old, gap=SPLIT_GAP_BYTES + 1)
    log.apply(RecordedOp(link=RecordedOp.Link(fnode=old, path="/temporary")))
    hints = FSMHints(log=LOG)
    node = hints.live_nodes.add(fnode=old)
    for segment in (split[0], log.fsm.live_nodes[old].segments[1]):
        node.segments.append(segment.to_proto(LOG))

    player = FSM(hints)
    forgotten: list[int] = []
    for op, payload in log.applied:
        player.apply(op, payload)
        forgotten += player.take_forgotten()
    assert forgotten == [temporary]
    assert not player.has_remaining_hints
    assert player.links == log.fsm.links == {"/old": old, "/temporary": old}
    assert player.next_checksum == log.fsm.next_checksum


def test_hints_have_no_gap_after_the_newest_file():
    """As of other implementations, files that end in a gap would live for ever."""
    log = Log()
    old, early = log.create("/old"), log.create("/early")
    log.apply(RecordedOp(unlink=RecordedOp.Link(fnode=early, path="/early")))
    log.write(old, gap=SPLIT_GAP_BYTES + 1)
    newest = log.create("/newest")
    last = log.create("/last")
    log.write(last)
    for number in range(3):
        temporary = log.create("/temporary")
        log.write(old)
        log.apply(RecordedOp(unlink=RecordedOp.Link(fnode=temporary, path="/temporary")))
        log.write((newest, last, old)[number], gap=SPLIT_GAP_BYTES + 1)
    assert len(log.fsm.live_nodes[old].segments) > 3

    hints = log.fsm.build_hints(LOG)
    _, segments = live_log_segments(hints)
    late = [segment for segment in segments if segment.last_seq_no >= last]
    assert [(segment.first_seq_no, segment.last_seq_no) for segment in late] == [
        (late[0].first_seq_no, log.fsm.next_seq_no - 1)
    ]
    assert len(segments) > 1
    player = FSM(hints)
    for op, payload in log.applied:
        player.apply(op, payload)
    assert player.links == log.fsm.links
    assert player.take_forgotten() == []


def test_a_gap_of_several_files_after_the_newest_one():
    """What ends a file in it isn't skipped because the first operation after it is another's."""
    log = Log()
    old, newest = log.create("/old"), log.create("/newest")
    temporary = log.create("/temporary")
    log.write(newest)
    log.write(newest, author=8)
    log.apply(
        RecordedOp(author=8, unlink=RecordedOp.Link(fnode=temporary, path="/temporary")),
        gap=SPLIT_GAP_BYTES + 1,
    )
    log.write(old, author=8)  # The first one of this author to the file, which splits nothing.
    log.write(newest, author=8)

    _, segments = live_log_segments(log.fsm.build_hints(LOG))
    assert [(each.author, each.first_seq_no, each.last_seq_no) for each in segments] == [
        (7, old, 4),
        (8, 5, log.fsm.next_seq_no - 1),
    ]


def test_a_property_of_hints_is_newer_than_what_is_read():
    log = Log()
    fnode = log.create("/file")
    for content in ("old", "new"):
        log.apply(RecordedOp(property=Property(path="/IDENTITY", content=content)))
        if content == "old":
            log.write(fnode)
    hints = log.fsm.build_hints(LOG)
    late = log.create("/late")
    log.write(late)
    log.fsm.properties["/IDENTITY"] = "newest"
    with_late = log.fsm.build_hints(LOG)

    for given, expected in ((hints, "new"), (with_late, "newest")):
        player = FSM(given)
        for op, payload in log.applied:
            player.apply(op, payload)
        assert player.properties == {"/IDENTITY": expected}


def test_segments_beyond_a_number_are_joined_at_their_smallest_gap():
    log = Log()
    fnode = log.create("/rare")
    gaps = [SPLIT_GAP_BYTES + 1 + (number * 37) % 101 for number in range(100)]
    for gap in gaps:
        log.write(fnode, gap=gap)
    segments = log.fsm.live_nodes[fnode].segments
    assert len(segments) == MAX_SEGMENTS
    kept = [b.first_offset - a.last_offset for a, b in itertools.pairwise(segments)]
    assert sorted(kept[:-1]) == sorted(gaps[:-1])[-(MAX_SEGMENTS - 2) :]


def test_segments_of_different_authors_are_never_joined():
    log = Log()
    fnode = log.create("/rare")
    for number in range(2 * MAX_SEGMENTS):
        log.write(fnode, author=8 + number % 2)
    assert len(log.fsm.live_nodes[fnode].segments) == 2 * MAX_SEGMENTS + 1


def test_an_unknown_end_splits_nothing():
    segment = Segment(7, 1, 0, 0, 1, 0, LOG)
    hints = FSM(FSMHints(log=LOG)).build_hints(LOG)
    hints.live_nodes.add(fnode=1).segments.append(segment.to_proto(LOG))
    fsm = FSM(hints)
    create = RecordedOp(seq_no=1, author=7, create=RecordedOp.Create(path="/rare"), log=LOG)
    assert fsm.apply(create, b"payload") is Outcome.APPLIED
    write = RecordedOp(
        seq_no=2,
        checksum=fsm.next_checksum,
        author=7,
        write=RecordedOp.Write(fnode=1),
        first_offset=10 * SPLIT_GAP_BYTES,
        last_offset=10 * SPLIT_GAP_BYTES + 1,
        log=LOG,
    )
    assert fsm.apply(write, b"payload") is Outcome.APPLIED
    assert len(fsm.live_nodes[1].segments) == 1


def test_checksums_of_content():
    assert content_checksum(b"123456789") == 0xE3069283
    assert content_checksum(b"") == 0
