"""Both forms against the table of rules, in all cases of small numbers."""

from __future__ import annotations

from itertools import product

from gazette_aio.message.core.rules import (
    RULES,
    Commits,
    PendingAre,
    ProducerBounds,
    QueueOutcome,
    rule_of,
    step,
    unseen,
)
from tests.message.core.journals import ALL, A, B, Frames, is_batch, rows
from tests.message.sequencing.sequencing import envelope

OFFSET, BEGIN = 100, 40
FLAGS = (0, 1, 2, 3, 512)


def states():
    """Return bounds of a producer, and whether its pending messages are at hand."""
    yield None, True
    for low in range(4):
        yield ProducerBounds(low, low, -1), True
        # Checkpoints may lack the largest pending clock.
        for high, retained in product(range(low, 5), (False, True)):
            yield ProducerBounds(low, high, BEGIN), retained


def remark(rule, bounds, flags, clock):
    """Return what the core remarks on a message."""
    unknown = flags > 2 and clock > 0
    old = rule.outcome is QueueOutcome.ACK_ROLLBACK and clock < bounds.min
    mixed = rule.warning is not None and rule.commits is Commits.MESSAGE
    assert (rule.warning is not None) == (old or mixed)
    return int(unknown), int(old), int(mixed), 0


def test_each_case_is_as_the_table_has_it(form):
    cases = set()
    for (bounds, retained), flags, clock in product(states(), FLAGS, range(6)):
        known = [] if bounds is None else [(A, *bounds)]
        row = envelope(OFFSET + 5, 10, clock, flags, A)
        # What's pending before it is retained by others, who don't enter here.
        driver = Frames(form, [row], OFFSET, known, entering=not retained)
        journal = driver.journal
        before = bounds or unseen(max(clock, 1))
        rule, after = step(before, flags, clock, row.begin, retained=retained)
        message = (row.begin, row.end, clock, flags, A)

        journal.feed_frames(driver.frames)
        found = journal.work(ALL)
        if rule.outcome is QueueOutcome.ACK_COMMIT_REPLAY:
            assert found == ("replay", BEGIN, OFFSET)
            journal.begin_replay()
            found = journal.end_replay()
        if rule.commits is Commits.NOTHING:
            assert found == ("progress",)
            journal.settle_all()
        else:
            assert rows(found) == [message]
            journal.settle(found, 0, 1)

        offset, got = journal.checkpoint()
        assert offset == row.end
        tracked = bounds is not None or clock
        assert got == ([(A, *after)] if tracked else [])
        assert journal.remarks == remark(rule, before, flags, clock)
        goes_by = rule.commits is Commits.NOTHING and rule.outcome not in {
            QueueOutcome.CONTINUE_BEGIN_SPAN,
            QueueOutcome.CONTINUE_EXTEND_SPAN,
        }
        assert journal.passed == (row.end if goes_by else OFFSET)
        pending = PendingAre.NONE
        if before.begin != -1:
            pending = PendingAre.RETAINED if retained else PendingAre.EVICTED
        cases.add(RULES.index(rule_of(before, flags, clock, pending)))
    assert cases == set(range(len(RULES)))


def test_pending_messages_are_committed_up_to_the_clock(form):
    for clocks in product(range(1, 6), repeat=3):
        for ack in range(1, 7):
            log = [envelope(10 * i, 10, clock, 1, A) for i, clock in enumerate(clocks)]
            log += [envelope(30, 10, 3, 1, B), envelope(40, 10, ack, 2, A)]
            bounds, span = unseen(clocks[0]), []
            for row in log[:3]:
                rule, bounds = step(bounds, 1, row.clock, row.begin)
                if rule.outcome in {
                    QueueOutcome.CONTINUE_BEGIN_SPAN,
                    QueueOutcome.CONTINUE_EXTEND_SPAN,
                }:
                    span.append(row)
            rule, _ = step(bounds, 2, ack, 40)
            want = []
            if rule.commits is Commits.SPAN:
                want = [row.begin for row in span if row.clock <= ack]
                if not want or log[want[-1] // 10].clock != ack:
                    want.append(40)
            driver = Frames(form, log)
            assert [row[0] for row in driver.deliver()] == want
            # And if they're read again, which delivers duplicates of what was rolled back.
            driver = Frames(form, log)
            driver.journal.feed_frames(driver.frames[:4])
            assert not is_batch(driver.journal.work(ALL))
            driver.journal.evict(0)
            driver.rest = driver.frames[4:]
            again = [row[0] for row in driver.deliver()]
            assert set(want) - {40} <= set(again)
            if list(clocks) == sorted(set(clocks)):
                assert again == want
