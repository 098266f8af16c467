"""Random histories of messages as content of journals, and tasks which read it from memory."""

from __future__ import annotations

import itertools
import json
import struct

import pyarrow as pa

from gazette_aio.message import build_uuid
from gazette_aio.message.framing import FIXED_FRAME_WORD, framing_by_content_type
from gazette_aio.message.ranges.committed import (
    RangeState,
    RangeSummary,
    advance,
    plan_splits,
    summarize,
)
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading.task import All, CommittedFrom, CommittedSplitOf, Task
from gazette_aio.spark.types import RESERVED
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL, envelope
from tests.spark.memory import Memory

ACK = 2
TYPES = {
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "protobuf-fixed": "application/x-protobuf-fixed",
}
SCHEMA = pa.schema(
    [pa.field(name, RESERVED[name]) for name in ("_begin", "_end", "_value", "_uuid", "_flags")]
    + [pa.field("_corrupt_record", pa.string())]
)


def options(**given):
    """Return options of a source."""
    base = {"brokers": "http://localhost:1", "journals": JOURNAL}
    return SourceOptions.parse({**base, **given}, streaming=False)


def frame(form, uuid, number):
    """Return a framed message, and its payload."""
    if form == "ndjson":
        payload = f'{{"_meta":{{"uuid":"{uuid}"}},"n":{number}}}'.encode()
        return payload + b"\n", payload
    if form == "csv":
        payload = f'{uuid},"n, {number}"'.encode()
        return payload + b"\n", payload
    payload = b"\x0a\x10" + uuid.bytes + b"\x12\x01" + bytes([number % 128])
    return FIXED_FRAME_WORD + struct.pack("<I", len(payload)) + payload, payload


def garbage(rng, form):
    """Return bytes which are no message, and the text of their row."""
    text = "".join(rng.choice("abcdefgh ") for _ in range(rng.randrange(1, 30)))
    return (text + "\n", text) if form != "protobuf-fixed" else (text, text)


class History:
    """Content of a journal of random messages, with bad records in between if that's wanted."""

    def __init__(self, rng, form, log, *, bad=0.0, encode=None):
        self.form = form
        self.content = b""
        self.log = []  # As they're placed in the content.
        self.payloads = {}
        self.bad = []  # Begins, ends and texts of bad records.
        for number, row in enumerate(log):
            if number and rng.random() < bad:
                junk, text = garbage(rng, form)
                begin = len(self.content)
                self.content += junk.encode()
                self.bad.append((begin, len(self.content), text))
            message, payload = frame(form, build_uuid(row.producer, row.clock, row.flags), number)
            if encode is not None:
                message = encode(payload)
            begin = len(self.content)
            self.payloads[begin] = payload
            self.log.append(envelope(begin, len(message), row.clock, row.flags, row.producer))
            self.content += message

    def begins(self, found):
        """Return begins and bytes of the messages which begin at offsets, but acknowledgements."""
        acks = {row.begin for row in self.log if row.flags == ACK}
        return [(begin, self.payloads[begin]) for begin in found if begin not in acks]

    def all(self):
        """Return begins and bytes of all messages."""
        return self.begins(row.begin for row in self.log)

    def committed(self, first=0, end=1 << 63):
        """Return begins and bytes of what a sequencer delivers up to `end`, from `first` on."""
        log = [row for row in self.log if row.begin < end]
        delivered = sequencing.Scalar(log).delivered
        return self.begins(begin for begin, _, _ in delivered if begin >= first)

    def rows_within(self, begin, end):
        return sequencing.columns([row for row in self.log if begin <= row.begin < end])

    def cuts(self, rng, count):
        """Return offsets where the content may be cut, its ends included."""
        size = len(self.content)
        if framing_by_content_type(TYPES[self.form]).is_lines:
            inner = [rng.randrange(1, size) for _ in range(count)]
        else:
            # Fragments begin and end with messages, or with garbage.
            edges = [row.begin for row in self.log if row.begin]
            inner = rng.sample(edges, min(count, len(edges)))
        return sorted({0, size, *inner})

    def task(self, begin, end, kind=None):
        size = end - begin
        is_aligned = begin == 0
        content_type = TYPES[self.form]
        head = len(self.content)
        return Task(JOURNAL, begin, end, content_type, (), head, kind or All(), size, is_aligned)

    def committed_tasks(self, cuts):
        """Return the tasks of consecutive ranges, each with the state at its begin."""
        tasks, state = [], RangeState()
        for begin, end in itertools.pairwise(cuts):
            kind = CommittedFrom(json.dumps(state.to_json()))
            tasks.append(self.task(begin, end, kind))
            state = advance(state, self.rows_within(begin, end))
        return tasks

    def split_tasks(self, cuts, *, is_last_summarized=True):
        """Return the tasks of the splits of the whole content.

        The last one needn't be summarized, but for what decides on the others.
        """
        ranges = list(itertools.pairwise(cuts))
        summaries = [summarize(self.rows_within(*each)) for each in ranges]
        if is_last_summarized:
            kinds = [CommittedSplitOf(each) for each in plan_splits(RangeState(), summaries).splits]
        else:
            known, ahead = plan_splits(RangeState(), summaries[:-1]), RangeSummary()
            rows = self.rows_within(*ranges[-1])
            for row in range(rows.rows):
                if known.is_decided(ahead):
                    break
                ahead = summarize(rows.slice(row, row + 1), ahead)
            plan = plan_splits(RangeState(), summaries[:-1], ahead)
            kinds = [CommittedSplitOf(each) for each in plan.splits]
            kinds.append(CommittedFrom(json.dumps(plan.state.to_json()), entering=False))
        return [self.task(*each, kind) for each, kind in zip(ranges, kinds, strict=True)]


class Run:
    """The rows of a task, of content in memory which comes in random chunks.

    Args:
        rng: Random numbers.
        content: Content of the journal.
        task: What to read.
        given: Options of the source.
        lost: Ranges of the content which aren't there.
        limits: Sizes of steps and of pending messages.
    """

    def __init__(self, rng, content, task, given, *, lost=(), schema=SCHEMA, **limits):
        def cut(begin, end):
            return (
                {rng.randrange(begin, end) for _ in range(rng.randrange(5))} if begin < end else ()
            )

        memory = Memory(content, cut, lost)
        batches = memory.read(task, given, schema, **limits)
        self.again, self.skipped = memory.again, memory.skipped
        self.sizes = [batch.num_rows for batch in batches]
        self.table = pa.Table.from_batches(batches, schema)

    @property
    def rows(self):
        """Begins and bytes of the messages, and of bad records."""
        columns = (self.table.column(name).to_pylist() for name in ("_begin", "_value"))
        return list(zip(*columns, strict=True))

    @property
    def messages(self):
        """Begins and bytes of those which aren't bad."""
        texts = self.table.column("_corrupt_record").to_pylist()
        return [row for row, text in zip(self.rows, texts, strict=True) if text is None]

    @property
    def bad(self):
        """Begins, ends and texts of bad records."""
        names = ("_begin", "_end", "_corrupt_record")
        columns = (self.table.column(name).to_pylist() for name in names)
        return [row for row in zip(*columns, strict=True) if row[2] is not None]


def random_log(rng, count=60):
    kind = rng.choice((sequencing.well_formed, sequencing.wild, sequencing.outside))
    return kind(rng, rng.randrange(1, count))
