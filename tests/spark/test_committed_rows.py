"""Rows of producers, sorted apart from one another, commit as a Sequencer of the journal has it."""

from __future__ import annotations

import logging
import random
from collections import defaultdict

import pyarrow as pa
import pytest

from gazette_aio.message import Sequencer
from gazette_aio.spark import committed_rows
from gazette_aio.spark.committed_rows import committed_batches
from tests import extent
from tests.message.sequencing.sequencing import copies, outside, well_formed, wild

SCHEMA = pa.schema(
    [
        ("row", pa.string()),
        ("_journal", pa.string()),
        ("_producer", pa.string()),
        ("_clock", pa.string()),
        ("_flags", pa.int32()),
        ("_begin", pa.int64()),
    ]
)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "gazette_aio")


def has_uuid(row):
    """Whether columns aren't null: of rows whose clocks are zero, this is to be so of some."""
    return row.clock or row.begin % 2


def row_of(journal, row):
    return {
        "row": f"{journal}:{row.begin}",
        "_journal": journal,
        "_producer": row.producer.hex() if has_uuid(row) else None,
        "_clock": f"{row.clock:016x}" if has_uuid(row) else None,
        "_flags": int(row.flags) if has_uuid(row) else None,
        "_begin": row.begin,
    }


def delivered(journal, log):
    sequencer, rows = Sequencer(), []
    for row in copies(log):
        sequencer.queue_uncommitted(row)
        while sequencer.step():
            if not (sequencer.dequeued.flags == 2 and has_uuid(sequencer.dequeued)):
                rows.append(f"{journal}:{sequencer.dequeued.begin}")
    return rows


def shuffled(rng, logs, parts):
    """Batches of each partition, as Spark's shuffle and sort return them."""
    partitions = defaultdict(list)
    for journal, log in sorted(logs.items()):
        for row in log:
            partitions[hash(row.producer) % parts].append(row_of(journal, row))
    for rows in partitions.values():
        batches, begin = [], 0
        while begin < len(rows):
            end = begin + rng.choice((1, 3, 20, 500))
            batches.append(pa.RecordBatch.from_pylist(rows[begin:end], SCHEMA))
            begin = end
        yield [pa.RecordBatch.from_pylist([], SCHEMA), *batches]


@pytest.mark.parametrize("kind", [well_formed, wild, outside])
def test_random_histories(kind, monkeypatch):
    for seed in extent.seeds(40):
        rng = random.Random(seed)
        monkeypatch.setattr(committed_rows, "IDLE_ROWS", rng.choice((0, 10, 1000)))
        logs = {name: kind(rng, rng.randrange(1, 60)) for name in ("a", "b", "c")}
        got = []
        for batches in shuffled(rng, logs, rng.choice((1, 2, 3))):
            for batch in committed_batches(iter(batches)):
                assert batch.schema == SCHEMA
                assert batch.num_rows
                got += batch["row"].to_pylist()
        want = [row for journal, log in logs.items() for row in delivered(journal, log)]
        assert sorted(got) == sorted(want), f"{kind.__name__}, seed {seed}"


def test_rows_are_whole_and_in_order():
    producer = bytes(range(1, 7))
    rows = [
        {"row": f"{number} ä\0", "_journal": "j", "_producer": producer.hex(),
         "_clock": f"{number:016x}", "_flags": 1, "_begin": number * 9}
        for number in range(1, 2001)
    ]  # fmt: skip
    rows.append(rows[-1] | {"_clock": f"{1500:016x}", "_flags": 2, "_begin": 10**12})
    batches = [pa.RecordBatch.from_pylist(rows[i : i + 300], SCHEMA) for i in range(0, 2001, 300)]
    got = pa.Table.from_batches(committed_batches(batches), SCHEMA).to_pylist()
    assert got == rows[:1500]


def test_no_rows():
    assert list(committed_batches([])) == []
