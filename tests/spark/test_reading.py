"""Rows of tasks: of content in memory, cut anywhere, and of journals of a broker."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import replace

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message.framing import FIXED_FRAME_WORD
from gazette_aio.message.ranges.committed import RangeState, plan_splits, summarize
from gazette_aio.spark.planning.journal_ranges import JournalInfo, Split
from gazette_aio.spark.planning.tasks import plan_split_tasks
from gazette_aio.spark.reading import engines as row_engines
from tests import extent
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL
from tests.spark.histories import TYPES, History, Run, options, random_log

FORMS = ["ndjson", "csv", "protobuf-fixed"]


def histories(form, **given):
    """Yield random histories."""
    for seed in extent.seeds(10):
        rng = random.Random(seed)
        yield seed, rng, History(rng, form, random_log(rng), **given)


def limits(rng):
    """Return small limits, for content to be worked on in small steps, and to be read again."""
    return {
        "step_bytes": rng.choice((1, 200, 1 << 20)),
        "max_pending_bytes": rng.choice((0, 100, 400, 1 << 20)),
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_message_is_in_one_range(form):
    for seed, rng, history in histories(form, bad=0.1):
        cuts = history.cuts(rng, 4)
        runs = [
            Run(rng, history.content, history.task(begin, end), options(), **limits(rng))
            for begin, end in itertools.pairwise(cuts)
        ]
        assert [row for run in runs for row in run.messages] == history.all(), seed
        assert [row for run in runs for row in run.bad] == history.bad, seed
        for run in runs:
            begins = [begin for begin, _ in run.rows]
            assert begins == sorted(begins), seed


@pytest.mark.parametrize("form", FORMS)
def test_ranges_deliver_what_commits_in_them(form):
    again = 0
    for seed, rng, history in histories(form, bad=0.05):
        tasks = history.committed_tasks(history.cuts(rng, 3))
        runs = [Run(rng, history.content, task, options(), **limits(rng)) for task in tasks]
        assert [row for run in runs for row in run.messages] == history.committed(), seed
        assert [row for run in runs for row in run.bad] == history.bad, seed
        again += sum(len(run.again) for run in runs)
    assert again, "content is read again"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("last", ["summarized", "not summarized"])
def test_splits_deliver_what_is_committed_of_their_own(form, last):
    again, is_summarized = 0, last == "summarized"
    for seed, rng, history in histories(form, bad=0.05):
        tasks = history.split_tasks(history.cuts(rng, 3), is_last_summarized=is_summarized)
        runs = [Run(rng, history.content, task, options(), **limits(rng)) for task in tasks]
        for task, run in zip(tasks, runs, strict=True):
            within = history.committed(task.begin, task.end)
            assert run.messages[: len(within)] == within, seed
        messages = [row for run in runs for row in run.messages]
        assert sorted(messages) == sorted(history.committed()), seed
        assert sorted(row for run in runs for row in run.bad) == history.bad, seed
        again += sum(len(run.again) for run in runs)
    assert again, "content is read again"


@pytest.mark.parametrize(("form", "torn"), [("ndjson", b"abc"), ("csv", b'x,"torn')])
def test_a_torn_record_before_the_last_split_takes_nothing_along(form, torn):
    rng = random.Random(1)
    former = History(rng, form, sequencing.parse("A1c"))
    latter = History(rng, form, sequencing.parse("A2c A3c A4k"))
    content = former.content + torn + latter.content
    begin, head = len(content) - len(latter.content), len(content)
    plan = plan_splits(RangeState(), [summarize(sequencing.columns(former.log))])
    assert plan.state.offset < begin
    info = JournalInfo(JOURNAL, head, TYPES[form])
    splits = [Split(info, 0, begin, begin, True), Split(info, begin, head, head - begin, True)]
    _, task = plan_split_tasks(splits, plan)
    again = 0
    for _ in range(5):
        run = Run(rng, content, task, options(), step_bytes=1, max_pending_bytes=0)
        assert run.messages == [(begin + at, payload) for at, payload in latter.all()]
        again += len(run.again)
    assert again, "what commits was evicted"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["all", "committed", "split"])
def test_modes(form, kind):
    rng = random.Random(1)
    history = History(rng, form, sequencing.well_formed(rng, 60), bad=0.2)
    cuts = [0, len(history.content)]
    tasks = {
        "all": [history.task(*cuts)],
        "committed": history.committed_tasks(cuts),
        "split": history.split_tasks(cuts),
    }
    (task,) = tasks[kind]
    run = Run(rng, history.content, task, options(mode="DROPMALFORMED"), max_pending_bytes=200)
    assert run.messages == run.rows
    assert sorted(run.rows) == sorted(history.all() if kind == "all" else history.committed())
    assert run.skipped == len(history.bad)
    begin, end, _ = history.bad[0]
    with pytest.raises(pb.FramingError) as info:
        Run(rng, history.content, task, options(mode="FAILFAST"))
    first_line = str(info.value).splitlines()[0]
    assert first_line.startswith(f"bad record of journal {task.journal} at bytes [{begin}, ")
    assert (info.value.begin, info.value.journal) == (begin, task.journal)
    assert info.value.end <= end


def test_acknowledgements_are_rows_only_if_asked_for():
    rng = random.Random(2)
    history = History(rng, "ndjson", sequencing.parse("A1c A2c A3k B1o B2k"))
    task = history.task(0, len(history.content))
    assert len(Run(rng, history.content, task, options()).rows) == 3
    given = options(isolation="read-uncommitted", includeAcks="true")
    run = Run(rng, history.content, task, given)
    assert run.table.column("_flags").to_pylist() == [1, 1, 2, 0, 2]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [1, 5, -1])
def test_a_partial_record_at_the_head_is_none_yet(form, keep):
    rng = random.Random(3)
    history = History(rng, form, sequencing.parse("A1o A2o A3o"))
    last = history.log[-1].begin
    end = last + keep if keep > 0 else len(history.content) - 1
    content = history.content[:end]
    for begin in (0, history.log[1].begin):
        task = replace(history.task(begin, end), head=end)
        run = Run(rng, content, task, options(mode="FAILFAST"))
        assert run.rows == [row for row in history.all() if begin <= row[0] < last]


@pytest.mark.parametrize("form", ["csv", "protobuf-fixed"])
def test_a_range_which_ends_within_a_record(form):
    """It can't be told from a record which is torn."""
    rng = random.Random(4)
    history = History(rng, form, sequencing.parse("A1o A2o A3o"))
    begin = history.log[2].begin
    run = Run(rng, history.content, history.task(0, begin + 9), options())
    assert run.messages == history.all()[:2]
    ((*place, text),) = run.bad
    assert place == [begin, begin + 9]
    assert text.encode("utf-8", "replace")


def test_a_message_of_several_broken_chunks_is_one_bad_record():
    """Garbage between fixed frames is one record, however it's cut."""
    for seed in range(30):
        rng = random.Random(seed)
        history = History(rng, "protobuf-fixed", sequencing.parse("A1o A2o"))
        at = history.log[1].begin
        content = history.content[:at] + b"x" * 300 + history.content[at:]
        task = history.task(0, len(content))
        run = Run(rng, content, task, options(), step_bytes=rng.choice((1, 100)))
        assert run.bad == [(at, at + 300, "x" * 300)]
        assert [begin for begin, _ in run.rows] == [0, at, at + 300]


def test_bad_frames_behind_garbage():
    """Rows have the order of the content, whatever it is that's bad."""
    rng = random.Random(1)
    history = History(rng, "protobuf-fixed", sequencing.parse("A1o A2o A3o"))
    frame = FIXED_FRAME_WORD + struct.pack("<I", 3) + b"\x0a\x01x"
    first, second = (row.begin for row in history.log[1:])
    for part in (b"garbage" + frame, b"garbage" + frame + b"more" + frame):
        content = history.content[:first] + part + history.content[first:second] + part
        content += history.content[second:]
        run = Run(rng, content, history.task(0, len(content)), options())
        begins = [begin for begin, _ in run.rows]
        assert begins == sorted(begins)
        assert len(run.bad) == 2 * part.count(b"\x0a\x01x") * 2
        assert len(run.messages) == 3
    part = b"garbage" + history.content[first:second] + frame
    content = history.content[:first] + part + history.content[second:]
    run = Run(rng, content, history.task(0, len(content)), options())
    assert [row[:2] for row in run.bad] == [
        (first, first + 7),
        (second + 7, second + 7 + len(frame)),
    ]
    assert [begin for begin, _ in run.rows] == [0, first, first + 7, second + 7, second + 7 + 11]


def test_lost_content_is_passed_over_with_what_it_tears():
    for seed in extent.seeds(10):
        rng = random.Random(seed)
        form = rng.choice(FORMS)
        history = History(rng, form, sequencing.well_formed(rng, 40))
        # Reading goes on with a fragment, which begins with a record.
        first, second = sorted(rng.sample(range(len(history.log)), 2))
        gap = (history.log[first].begin + rng.randrange(4), history.log[second].begin)
        left = [r for r in history.log if r.end <= gap[0] or r.begin >= gap[1]]
        cuts = history.cuts(rng, 2)
        rows = []
        for begin, end in itertools.pairwise(cuts):
            run = Run(rng, history.content, history.task(begin, end), options(), lost=[gap])
            assert not run.bad, seed
            rows += run.messages
        assert rows == history.begins(row.begin for row in left), seed


def test_content_of_unknown_type():
    rng = random.Random(5)
    content = rng.randbytes(3_500_000)
    history = History(rng, "ndjson", [])
    for begin, end, lost in ((0, len(content), ()), (10, 3_000_000, ((2_000_000, 2_050_000),))):
        task = replace(
            history.task(begin, end), content_type="application/octet-stream", head=len(content)
        )
        run = Run(rng, content, task, options(), lost=lost)
        mega = 1 << 20
        cuts = {begin, end, *range(mega, end, mega), *(at for gap in lost for at in gap)}
        cuts = sorted(cuts)
        parts = [(a, content[a:b]) for a, b in itertools.pairwise(cuts) if (a, b) not in lost]
        assert run.rows == parts
        assert run.table.column("_end").to_pylist() == [a + len(data) for a, data in parts]
        assert run.table.column("_uuid").null_count == len(parts)


def test_committed_messages_need_a_framing():
    rng = random.Random(6)
    history = History(rng, "ndjson", sequencing.parse("A1o"))
    (task,) = history.committed_tasks([0, len(history.content)])
    task = replace(task, content_type="text/unknown")
    with pytest.raises(pb.ConfigurationError, match="content type 'text/unknown'"):
        Run(rng, history.content, task, options())


@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_content_which_changed_since_it_was_planned(limit):
    rng = random.Random(7)
    history = History(rng, "ndjson", sequencing.parse("A1c A2c A3c A4k A5c A6c A7k A8c A9k"))
    (task,) = history.split_tasks([0, len(history.content)])
    gap = (history.log[4].begin, history.log[6].begin)
    Run(rng, history.content, task, options(), max_pending_bytes=limit)
    with pytest.raises(pb.SequencerStateError):
        Run(rng, history.content[: gap[0]], task, options(), max_pending_bytes=limit)


SEQUENCES = {
    "messages without a UUID": ("Z0o A1c Z0o", [0, 2]),
    "a producer which is seen first": ("A5k A4o A6o", [2]),
    "duplicates outside of transactions": ("A5o A5o A4o A6o", [0, 3]),
    "unknown flags": ("A1x A1x A2x", [0, 2]),
    "a message outside of transactions discards pending ones": ("A1c A2o A3k", [1]),
    "duplicates of what is done": ("A3o A2c A3c A4c A5k", [0, 3]),
    "duplicates of what is pending": ("A1c A3c A3c A2c A4k", [0, 1]),
    "a commit": ("A1c B1c A2c A3k B2k", [0, 2, 1]),
    "a commit of a part": ("A1c A2c A3c A2k A3k", [0, 1]),
    "a roll-back": ("A1o A2c A1k A3c A4k", [0, 3]),
    "a roll-back to before": ("A5o A6c A2k A3o A4c A4k", [0, 3, 4]),
    "a second acknowledgement": ("A1c A2k A2k A3c A3k", [0, 3]),
    "what is pending at the end": ("A1c A2k A3c", [0]),
}


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("count", [0, 2, 100])
def test_sequences(name, count):
    """Of one range, and of several down to one for each message."""
    text, expected = SEQUENCES[name]
    rng = random.Random(8)
    history = History(rng, "protobuf-fixed", sequencing.parse(text))
    at = [row.begin for row in history.log]
    delivered = history.begins(at[index] for index in expected)
    assert history.committed() == delivered
    cuts = history.cuts(rng, count)

    def rows(tasks):
        return [row for task in tasks for row in Run(rng, history.content, task, options()).rows]

    assert rows(history.committed_tasks(cuts)) == delivered
    assert sorted(rows(history.split_tasks(cuts))) == sorted(delivered)


def test_small_batches_are_put_together():
    """Bad records, and the pieces between them, aren't batches of their own."""
    rng = random.Random(9)
    history = History(rng, "ndjson", sequencing.well_formed(rng, 400), bad=0.5)
    task = history.task(0, len(history.content))
    run = Run(rng, history.content, task, options(batchRows="100"), step_bytes=1 << 20)
    sizes = run.sizes
    assert sum(sizes) == len(history.all()) + len(history.bad)
    assert max(sizes) <= 100
    assert len(sizes) < 20
    run = Run(rng, history.content, task, options(batchBytes="2000"), step_bytes=1 << 20)
    assert len(run.sizes) > 20


def test_messages_which_are_too_large(monkeypatch):
    monkeypatch.setattr(row_engines, "MAX_FRAME_BYTES", 200)
    rng = random.Random(10)
    for form in FORMS:
        history = History(rng, form, sequencing.parse("A1o A2o A3o"))
        at = history.log[1].begin
        large = {
            "ndjson": b"x" * 300 + b"\n",
            "csv": b"x" * 300 + b"\n",
            "protobuf-fixed": FIXED_FRAME_WORD + struct.pack("<I", 300) + b"x" * 300,
        }[form]
        content = history.content[:at] + large + history.content[at:]
        run = Run(rng, content, history.task(0, len(content)), options())
        moved = [(begin + len(large) * (begin >= at), data) for begin, data in history.all()]
        assert run.messages == moved, form
        assert run.bad[0][0] == at, form
