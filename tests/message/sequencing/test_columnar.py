"""The columnar sequencer against the scalar one, over random logs.

`test_differential` holds both to the table of rules.
"""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.sequencing import segments
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.sequencer import Sequencer
from tests import extent
from tests.message.sequencing.sequencing import (
    JOURNAL,
    TIERS,
    Columnar,
    Scalar,
    columns,
    copies,
    drain,
    key,
    naively_committed,
    outside,
    state_set,
    tiers,
    well_formed,
    wild,
)

KINDS = [well_formed, wild, outside]
SEEDS = st.integers(0, 2**32)


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what both log of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", KINDS)
@extent.examples(20)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]))
def test_pending_spans_equal(kind, tier, seed):
    rng = random.Random(seed)
    log = kind(rng, 60)
    chosen = {n for n in range(60) if rng.random() < 0.1}
    want = Scalar(log, checkpoint_at=chosen)
    columnar = Columnar(log, rng=rng, tier=tier)
    delivered = 0
    for got, checkpoint in columnar.rows(12):
        if got is not None:
            delivered += 1
            if delivered in chosen:
                checkpoint()
        else:
            read = next(
                (i for i, r in enumerate(log) if r.begin >= columnar.sequencer.offset), len(log)
            )
            assert (delivered, columnar.sequencer.has_pending) == want.behind[read - 1]


@pytest.mark.parametrize("kind", KINDS)
@extent.examples(20)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]), horizon=st.sampled_from([0, 1, 100, 300]))
def test_pruning_between_batches_equals(kind, tier, seed, horizon):
    rng = random.Random(seed)
    log = kind(rng, 90)
    scalar = Sequencer(buffer=1 << 60)
    columnar = Columnar(log, rng=rng, tier=tier)
    while columnar.at < len(log):
        batch = log[columnar.at : columnar.at + rng.randrange(1, 20)]
        want = []
        for row in copies(batch):
            scalar.queue_uncommitted(row)
            want += [key(r) for r in drain(scalar, log)]
        plan, table = columnar.plan(batch)
        columnar.at += plan.consumed
        assert [key(table[i]) for i in plan.rows.tolist()] == want
        assert columnar.sequencer.has_pending == scalar.has_pending
        if rng.random() < 0.5:
            point = scalar.checkpoint(horizon)
            offset, states = columnar.sequencer.checkpoint(horizon)
            assert (offset, state_set(states)) == (
                point.offsets[JOURNAL],
                state_set(point.producers),
            )
            assert not columnar.sequencer.has_pending


@pytest.mark.parametrize("kind", KINDS)
@extent.examples(20)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]), horizon=st.sampled_from([1, 100, 300]))
def test_pruning_within_a_batch_equals(kind, tier, seed, horizon):
    rng = random.Random(seed)
    log = kind(rng, 60)
    at = rng.randrange(1, 20)
    want = Scalar(log, checkpoint_at={at}, horizon=horizon)
    for delivered, (_, checkpoint) in enumerate(
        (r for r in Columnar(log, rng=rng, tier=tier).rows(30) if r[0] is not None), 1
    ):
        if delivered == at:
            assert checkpoint(horizon) == want.checkpoints[at - 1]


@pytest.mark.parametrize("kind", KINDS)
@extent.examples(15)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]), stored=st.booleans())
def test_replays_and_restarts_equal(kind, tier, seed, stored):
    """Where nothing is retained, all spans are replayed by both, of whatever log."""
    rng = random.Random(seed)
    log = kind(rng, 90)
    checkpoint, running = (0, ()), True
    while running:
        running = False
        want = Scalar(
            log, ring=1, checkpoint=SequencerCheckpoint({JOURNAL: checkpoint[0]}, checkpoint[1])
        )
        columnar = Columnar(log, rng=rng, tier=tier, max_pending_bytes=0, checkpoint=checkpoint)
        delivered = []
        for got, take in columnar.rows(1):
            if got is not None:
                delivered.append(got)
                assert take() == want.checkpoints[len(delivered) - 1]
                if rng.random() < 0.05:
                    checkpoint, running = take.restore(stored=stored), True
                    break
        if running:
            assert delivered == want.delivered[: len(delivered)]
        else:
            assert delivered == want.delivered
            offset, states = columnar.sequencer.checkpoint()
            assert (offset, state_set(states)) == want.end


@extent.examples(20)
@given(
    seed=SEEDS,
    tier=st.sampled_from([*TIERS]),
    limit=st.sampled_from([0, 30, 100, 300]),
    size=st.sampled_from([3, 30, 90]),
)
def test_retention_changes_nothing_of_well_formed_logs(tier, seed, limit, size):
    rng = random.Random(seed)
    log = well_formed(rng, 120)
    want = Scalar(log)
    columnar = Columnar(log, rng=rng, tier=tier, max_pending_bytes=limit)
    delivered = []
    for got, checkpoint in columnar.rows(size):
        assert columnar.sequencer.pending_bytes <= limit
        if got is not None:
            delivered.append(got)
            assert checkpoint() == want.checkpoints[len(delivered) - 1]
        elif rng.random() < 0.1:
            # As a caller does which bounds what several journals retain.
            left = columnar.sequencer.evict(limit // 2)
            if left is not None:
                columnar.held = [columnar.held[i] for i in left.tolist()]
    assert delivered == want.delivered


@pytest.mark.parametrize("stored", [False, True])
@extent.examples(20)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]), limit=st.sampled_from([None, 0, 100]))
def test_restarts_repeat_and_lose_nothing(tier, seed, limit, stored):
    rng = random.Random(seed)
    log = well_formed(rng, 100)
    want = Scalar(log)
    delivered, checkpoint, running = [], None, True
    while running:
        running = False
        columnar = Columnar(log, rng=rng, tier=tier, max_pending_bytes=limit, checkpoint=checkpoint)
        for got, take in columnar.rows(30):
            if got is not None:
                delivered.append(got)
                offset, states = want.checkpoints[len(delivered) - 1]
                if stored:
                    # The largest pending clocks aren't known at first.
                    states = {s[:3] for s in states}
                    assert (offset, states) == (take()[0], {s[:3] for s in take()[1]})
                else:
                    assert (offset, states) == take()
            if rng.random() < 0.1:
                checkpoint, running = take.restore(stored=stored), True
                break
    assert delivered == want.delivered


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_restart_at_every_row(tier, seed):
    log = well_formed(random.Random(seed), 60)
    want = Scalar(log).delivered
    rows = Columnar(log, rng=random.Random(seed), tier=tier, max_pending_bytes=200).rows(40)
    count = 0
    for got, take in rows:
        count += got is not None
        restarted = Columnar(log, tier=tier, checkpoint=take.restore(stored=True))
        assert restarted.deliver() == want[count:]
    assert count == len(want) > 10


@extent.examples(20)
@given(seed=SEEDS, tier=st.sampled_from([*TIERS]))
def test_committed_rows_are_those_of_a_naive_model(seed, tier):
    rng = random.Random(seed)
    log = well_formed(rng, 100)
    assert Columnar(log, rng=rng, tier=tier).deliver(30) == naively_committed(log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("producers", [1, 3, 100])
def test_large_batches_equal(kind, producers):
    """Batches which take the ways that real ones do."""
    rng = random.Random(producers)
    log = kind(rng, 5000)
    for row in log:
        if producers != 3:
            row.producer = rng.randrange(producers).to_bytes(6, "big")
    want = Scalar(log, checkpoint_at=set(range(0, 5000, 500)))
    columnar = Columnar(log, rng=rng)
    delivered = []
    for got, checkpoint in columnar.rows(4000):
        if got is not None:
            delivered.append(got)
            if len(delivered) % 500 == 0:
                assert checkpoint() == want.checkpoints[len(delivered) - 1]
    assert delivered == want.delivered


@pytest.mark.parametrize("kind", KINDS)
def test_ways_of_deciding_agree(kind):
    log = kind(random.Random(7), 3000)
    decided = []
    for tier in TIERS:
        with tiers(tier):
            plan = ColumnarSequencer(JOURNAL).process(columns(log))
            decision = segments.decide(columns(log), {}, set())
        arrays = plan.rows, plan.terminators, plan.carry
        decided.append([a.tolist() for a in arrays] + [decision.bounds, decision.remarks])
    assert all(other == decided[0] for other in decided)
