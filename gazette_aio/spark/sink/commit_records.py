"""Records of a commit journal, which decide the batches of Spark sinks. A record is a line of JSON.

    {"v":1,"t":"commit","q":"<query>","s":"<sink>","b":12,"r":"<run>","n":"<nonce>","rows":345,
     "j":["journal", …], "a":[["text","<prefix>","<suffix>"], …], "i":[0, …],
     "p":[["<producer>","<clock>",[0, …]], …]}

`p` has the producers of a batch, the clocks of their acknowledgements, and indices of their
journals in `j`. `i` has for each journal the index of its acknowledgements' template in `a`. Clocks
are hexadecimal, because numbers of JSON don't have 64 bits everywhere.

Any process which can append to the journal may have written a line, and drivers of several releases
may share the journal. Lines without a version aren't records, and are skipped, and so are unknown
kinds of this version: a kind which readers must not skip needs another version. Lines of other
versions, and damaged records of known kinds, can't be skipped, because they may be decisions. They
are `Refused`, and no batch is decided for their sink; or for any sink, if they don't name one.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from gazette_aio.message.framing import framing_by_content_type
from gazette_aio.message.uuid import ACK_TXN, ProducerID, build_uuid
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VERSION: Final = 1
MAX_LINE_BYTES: Final = 4 << 20
"""Longest line of a record: some 80 000 producers."""
MAX_ACK_BYTES: Final = 64 << 20
"""Greatest number of bytes of a record's acknowledgements."""
HEADER: Final = b'{"v":1,"t":"header"}\n'
"""First line of a commit journal, because appends can't require an offset of zero."""

_HEX_64: Final = re.compile(r"[0-9a-f]{1,16}")
_PROBES: Final = (UUID(int=0x5A3C_96E1_0F4B_1D87_B2C3_0123_4567_89AB), UUID(int=0x77 << 120))
_TEXT, _RAW = "text", "raw"
_RUN, _TRANSACTION = "run:", "txn:"
_UUID_BYTES = 36


class CommitKind(enum.StrEnum):
    """Kinds of records."""

    COMMIT = "commit"
    """Decides a batch."""
    RETIRE = "retire"
    """Producers must not be used for a further batch."""
    ABORT = "abort"
    """The messages of these producers are rolled back, and don't decide a batch."""
    DONE = "done"
    """All acknowledgements of the batch were appended."""


class SinkKey(NamedTuple):
    """Identity of a sequence of batches."""

    query: str
    sink: str

    @classmethod
    def of_transaction(cls, name: str, sink: str) -> SinkKey:
        """Return the key of a batch which is published once, even if its job runs several times."""
        return cls(f"{_TRANSACTION}{name}", sink)

    @classmethod
    def of_run(cls, nonce: str, sink: str) -> SinkKey:
        """Return the key of the only batch of a job's run."""
        return cls(f"{_RUN}{nonce}", sink)

    @property
    def is_of_run(self) -> bool:
        """Whether the key is of one run of a job, and never used again."""
        return self.query.startswith(_RUN)

    @property
    def is_of_one_batch(self) -> bool:
        """Whether the key has a single batch, whose producers aren't used again."""
        return self.query.startswith((_RUN, _TRANSACTION))


class AckTemplate(NamedTuple):
    """Template of the framed acknowledgements of a journal, usable without an adapter."""

    prefix: bytes
    """Bytes before the UUID."""
    suffix: bytes
    """Bytes after the UUID."""
    text: bool
    """Whether the UUID is text; otherwise it's 16 bytes."""

    def frame(self, producer: bytes, clock: int) -> bytes:
        """Return the frame of an acknowledgement."""
        uuid = build_uuid(producer, clock, ACK_TXN)
        return self.prefix + (str(uuid).encode() if self.text else uuid.bytes) + self.suffix


class Span(NamedTuple):
    """Journals and acknowledgement of a producer in a batch."""

    producer: ProducerID
    ack: int
    """Clock of the acknowledgement."""
    journals: tuple[int, ...] = ()
    """Indices of the journals."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """Report of a task about the messages which it published, and which are pending."""

    key: SinkKey
    batch: int
    producer: ProducerID
    ack: int
    """Clock after those of all messages."""
    rows: int
    journals: tuple[tuple[str, AckTemplate], ...]
    """Journals of the messages; empty if the task published nothing."""
    firsts: tuple[int, ...] = ()
    """Clock of the first message, by journal."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One record of a commit journal."""

    kind: CommitKind
    key: SinkKey
    batch: int
    run: str = ""
    """Run of the query, informative."""
    nonce: str = ""
    """Distinguishes the record from those of other attempts to decide the batch."""
    rows: int = 0
    spans: tuple[Span, ...] = ()
    journals: tuple[str, ...] = ()
    templates: tuple[AckTemplate, ...] = ()
    template_of: tuple[int, ...] = ()
    """Index of the template, by journal."""

    @property
    def producers(self) -> frozenset[ProducerID]:
        """All producers of the record."""
        return frozenset(span.producer for span in self.spans)

    def acknowledgements(self) -> dict[str, bytes]:
        """Return the framed acknowledgements of all producers, by journal."""
        frames: dict[str, list[bytes]] = {journal: [] for journal in self.journals}
        for span in self.spans:
            for index in span.journals:
                template = self.templates[self.template_of[index]]
                frames[self.journals[index]].append(template.frame(span.producer, span.ack))
        return {journal: b"".join(parts) for journal, parts in frames.items() if parts}

    def producers_of(self, journals: Iterable[str]) -> frozenset[ProducerID]:
        """Return the producers of some journals."""
        named = set(journals)
        indices = {index for index, journal in enumerate(self.journals) if journal in named}
        return frozenset(s.producer for s in self.spans if not indices.isdisjoint(s.journals))


class Refused(NamedTuple):
    """A line which can't be skipped, and isn't understood."""

    key: SinkKey | None
    """Sink of the line, or None if it's unknown."""
    reason: str


def ack_template(acknowledgement: Callable[[UUID], bytes], content_type: str) -> AckTemplate:
    """Return the template of a journal's acknowledgements.

    Args:
        acknowledgement: Makes an acknowledgement from its UUID, like an Adapter's method.
        content_type: Content type of the journal.

    Raises:
        ConfigurationError: Acknowledgements differ in more than their UUIDs.
        UnrecognizedContentTypeError: The content type has no framing.
        ValidationError: The adapter can't make an acknowledgement.
    """
    framing = framing_by_content_type(content_type)
    one, other = (framing.encode(acknowledgement(probe)) for probe in _PROBES)
    for text in (True, False):
        first, second = (str(uuid).encode() if text else uuid.bytes for uuid in _PROBES)
        prefix, found, suffix = one.partition(first)
        if found and other == prefix + second + suffix:
            return AckTemplate(prefix, suffix, text)
    raise ConfigurationError(f"acknowledgements of {content_type} differ in more than their UUIDs")


def commit_record(
    key: SinkKey, batch: int, messages: Iterable[TaskMessage], *, run: str = "", nonce: str = ""
) -> CommitRecord | None:
    """Return the record which decides a batch, or None if no task published anything.

    Raises:
        ValidationError: Messages are of another batch, share a producer, or are too many.
    """
    journals: dict[str, int] = {}
    templates: dict[AckTemplate, int] = {}
    template_of: list[int] = []
    spans: dict[ProducerID, Span] = {}
    rows = 0
    for message in messages:
        if message.key != key or message.batch != batch:
            raise ValidationError(f"a message isn't of batch {batch} of {key.sink!r}: {message!r}")
        if not message.journals:
            continue
        for journal, template in message.journals:
            index = templates.setdefault(template, len(templates))
            if journals.setdefault(journal, len(journals)) == len(template_of):
                template_of.append(index)
            elif template_of[journals[journal]] != index:
                raise ValidationError(f"tasks disagree on acknowledgements of {journal}")
        indices = tuple(dict.fromkeys(journals[journal] for journal, _ in message.journals))
        if message.producer in spans:
            raise ValidationError(f"two tasks published as producer {message.producer.hex()}")
        spans[message.producer] = Span(message.producer, message.ack, indices)
        rows += message.rows
    if not spans:
        return None
    record = CommitRecord(
        CommitKind.COMMIT, key, batch, run, nonce, rows,
        tuple(spans.values()), tuple(journals), tuple(templates), tuple(template_of),
    )  # fmt: skip
    _check_ack_bytes(record)
    return record


def roll_backs(messages: Iterable[TaskMessage]) -> dict[str, bytes]:
    """Return framed acknowledgements which roll messages back, by journal."""
    frames: dict[str, bytes] = {}
    for message in messages:
        for (journal, template), first in zip(message.journals, message.firsts, strict=True):
            # Wire: the acknowledgement's clock is before the first message, which drops the
            # messages.
            frame = template.frame(message.producer, first - 1)
            frames[journal] = frames.get(journal, b"") + frame
    return frames


def encode_record(record: CommitRecord) -> bytes:
    """Return the line of a record.

    Raises:
        ValidationError: The line is too long.
    """
    line = msgspec.json.encode(
        _Line(
            v=VERSION,
            t=record.kind.value,
            q=record.key.query,
            s=record.key.sink,
            b=record.batch,
            r=record.run,
            n=record.nonce,
            rows=record.rows,
            j=record.journals,
            a=tuple(
                (_TEXT if a.text else _RAW, a.prefix.decode("latin-1"), a.suffix.decode("latin-1"))
                for a in record.templates
            ),
            i=record.template_of,
            p=tuple((span.producer.hex(), f"{span.ack:x}", span.journals) for span in record.spans),
        )
    )
    if len(line) >= MAX_LINE_BYTES:
        raise ValidationError(
            f"record of {len(line)} bytes exceeds {MAX_LINE_BYTES}: batches need fewer tasks, by"
            " coalesce(), or fewer journals"
        )
    return line + b"\n"


def decode_lines(lines: list[bytes], latest: int) -> list[CommitRecord | Refused]:
    """Return the records of lines without their newlines.

    Only the `latest` commit records of each sink are decoded and returned; older ones may be
    damaged. Most of a journal is older commit records, which take far longer to decode than to
    skip.
    """
    outlines = [_outline(line) for line in lines]
    batches: dict[SinkKey, list[int]] = {}
    """Batches of the latest commit records by sink, in descending order."""
    found: list[CommitRecord | Refused] = []
    for line, outline in zip(reversed(lines), reversed(outlines), strict=True):
        if isinstance(outline, _Outline) and (key := outline.commits) is not None:
            batch: int = outline.b
            later = batches.setdefault(key, [])
            if not later or batch < later[-1]:
                if len(later) == latest:
                    continue
                later.append(batch)
        if (record := _decode(line, outline)) is not None:
            found.append(record)
    return found[::-1]


def decode_line(line: bytes) -> CommitRecord | Refused | None:
    """Return the record of a line without its newline, or None to skip the line."""
    return _decode(line, _outline(line))


def _outline(line: bytes) -> _Outline | Refused | None:
    if len(line) >= MAX_LINE_BYTES:
        return Refused(None, f"a line of {len(line)} bytes")
    try:
        return _decode_outline(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode(line: bytes, outline: _Outline | Refused | None) -> CommitRecord | Refused | None:
    if not isinstance(outline, _Outline):
        return outline
    version, kind, key = outline.v, outline.t, outline.key
    if type(version) is not int:
        return None
    if version != VERSION:
        return Refused(key, f"a record of version {version}")
    # Sinks find their records by key: a line without a key belongs to no sink.
    if key is None or not isinstance(kind, str) or kind not in _KINDS:
        return None
    try:
        return _record(_decode_line(line), key)
    except (ValueError, UnicodeError, RecursionError) as error:
        return Refused(key, f"a damaged record ({error})")


_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Outline(msgspec.Struct):
    v: Any = None
    t: Any = None
    q: Any = None
    s: Any = None
    b: Any = None

    @property
    def key(self) -> SinkKey | None:
        is_named = isinstance(self.q, str) and isinstance(self.s, str)
        return SinkKey(self.q, self.s) if is_named else None

    @property
    def commits(self) -> SinkKey | None:
        """Sink of a commit record, or None for other lines."""
        is_commit = type(self.v) is int and self.v == VERSION and self.t == CommitKind.COMMIT.value
        return self.key if is_commit and type(self.b) is int else None


class _Line(msgspec.Struct, omit_defaults=True):
    v: int
    t: str
    q: str
    s: str
    b: _Count
    r: str = ""
    n: str = ""
    rows: _Count = 0
    j: tuple[str, ...] = ()
    a: tuple[tuple[str, str, str], ...] = ()
    i: tuple[_Count, ...] = ()
    p: tuple[tuple[str, str, tuple[_Count, ...]], ...] = ()


_KINDS: Final = frozenset(kind.value for kind in CommitKind)
_decode_outline: Final = msgspec.json.Decoder(_Outline).decode
_decode_line: Final = msgspec.json.Decoder(_Line).decode


def _record(line: _Line, key: SinkKey) -> CommitRecord:
    if len(set(line.j)) != len(line.j) or len(line.i) != len(line.j) or "" in line.j:
        raise ValueError("its journals")
    if any(index >= len(line.a) for index in line.i):
        raise ValueError("its templates")
    spans = tuple(_span(producer, ack, journals) for producer, ack, journals in line.p)
    if len({span.producer for span in spans}) != len(spans):
        raise ValueError("a producer occurs twice")
    kind = CommitKind(line.t)
    for span in spans:
        if any(index >= len(line.j) for index in span.journals):
            raise ValueError("the journals of a producer")
        if kind is CommitKind.COMMIT and not span.journals:
            raise ValueError("a producer without journals")
    if kind is CommitKind.COMMIT and not spans:
        raise ValueError("no producers")
    record = CommitRecord(
        kind, key, line.b, line.r, line.n, line.rows,
        spans, line.j, tuple(_template(*form) for form in line.a), line.i,
    )  # fmt: skip
    _check_ack_bytes(record)
    return record


def _span(producer: str, ack: str, journals: tuple[int, ...]) -> Span:
    if not (_HEX_64.fullmatch(producer) and len(producer) == 12 and _HEX_64.fullmatch(ack)):
        raise ValueError("a producer or its clock")
    if len(set(journals)) != len(journals):
        raise ValueError("the journals of a producer")
    return Span(ProducerID(bytes.fromhex(producer)), int(ack, 16), journals)


def _template(kind: str, prefix: str, suffix: str) -> AckTemplate:
    if kind not in (_TEXT, _RAW):
        raise ValueError("the form of a UUID")
    return AckTemplate(prefix.encode("latin-1"), suffix.encode("latin-1"), kind == _TEXT)


def _check_ack_bytes(record: CommitRecord) -> None:
    sizes = [len(template.prefix) + len(template.suffix) for template in record.templates]
    by_journal = [sizes[index] + _UUID_BYTES for index in record.template_of]
    total = sum(by_journal[index] for span in record.spans for index in span.journals)
    if total > MAX_ACK_BYTES:
        raise ValidationError(f"acknowledgements of {total} bytes exceed {MAX_ACK_BYTES}")
