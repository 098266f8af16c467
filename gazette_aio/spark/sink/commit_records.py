"""Records of a commit journal, which decide the batches of Spark sinks: one line of JSON each.

    {"v":1,"t":"commit","q":"<query>","s":"<sink>","b":12,"r":"<run>","n":"<nonce>","rows":345,
     "j":["journal", …], "a":[["text","<prefix>","<suffix>"], …], "i":[0, …],
     "p":[["<producer>","<clock>",[0, …]], …]}

`p` has the producers of a batch, the clocks of their acknowledgements, and indices of the journals
`j` which they wrote to. `i` has for each journal the index of its form of acknowledgements in `a`.
Clocks are hexadecimal, since numbers of JSON don't hold 64 bits everywhere.

Whoever can append to the journal may have written a line, and drivers of several releases may share
it. Lines which aren't of a version can't be records, and are passed over. So are unknown kinds of
this version: what readers must not pass over takes another version. Lines of other versions can't
be passed over, nor records of known kinds which are damaged: a decision might be among them.
They're `Refused`, and no batch is decided for their sinks; or for any, if they don't name one.
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
"""Most bytes of the acknowledgements of a record."""
HEADER: Final = b'{"v":1,"t":"header"}\n'
"""First line of a commit journal. Appends can't be made to depend on an offset of zero."""

_HEX_64: Final = re.compile(r"[0-9a-f]{1,16}")
_PROBES: Final = (UUID(int=0x5A3C_96E1_0F4B_1D87_B2C3_0123_4567_89AB), UUID(int=0x77 << 120))
_TEXT, _RAW = "text", "raw"
_RUN, _TRANSACTION = "run:", "txn:"
_UUID_BYTES = 36


class Kind(enum.StrEnum):
    """Kinds of records."""

    COMMIT = "commit"
    """Decides a batch."""
    RETIRE = "retire"
    """Producers must not be used for a further batch."""
    ABORT = "abort"
    """A batch isn't decided by these producers, whose messages are rolled back."""
    DONE = "done"
    """All acknowledgements of the batch were appended."""


class SinkKey(NamedTuple):
    """Identity of what batches are counted for."""

    query: str
    sink: str

    @classmethod
    def of_transaction(cls, name: str, sink: str) -> SinkKey:
        """Return the key of a batch which is published once, however often its job is run."""
        return cls(f"{_TRANSACTION}{name}", sink)

    @classmethod
    def of_run(cls, nonce: str, sink: str) -> SinkKey:
        """Return the key of a batch which is one run of a job."""
        return cls(f"{_RUN}{nonce}", sink)

    @property
    def is_of_run(self) -> bool:
        """Whether there's no other run of its batch, so that nobody asks for it thereafter."""
        return self.query.startswith(_RUN)

    @property
    def is_of_one_batch(self) -> bool:
        """Whether it has no more than one batch, whose producers aren't used again."""
        return self.query.startswith((_RUN, _TRANSACTION))


class AckTemplate(NamedTuple):
    """Form of the framed acknowledgements of a journal, which needs no adapter any more."""

    prefix: bytes
    """What precedes the UUID."""
    suffix: bytes
    """What follows the UUID."""
    text: bool
    """Whether the UUID is text, or else 16 bytes."""

    def frame(self, producer: bytes, clock: int) -> bytes:
        """Return the frame of an acknowledgement."""
        uuid = build_uuid(producer, clock, ACK_TXN)
        return self.prefix + (str(uuid).encode() if self.text else uuid.bytes) + self.suffix


class Span(NamedTuple):
    """What a producer published in a batch."""

    producer: ProducerID
    ack: int
    """Clock of its acknowledgement."""
    journals: tuple[int, ...] = ()
    """Indices of its journals."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """What a task reports of the messages which it published, and which are yet to be decided."""

    key: SinkKey
    batch: int
    producer: ProducerID
    ack: int
    """Clock beyond those of all its messages."""
    rows: int
    journals: tuple[tuple[str, AckTemplate], ...]
    """Journals which it published to. None, if it published nothing."""
    firsts: tuple[int, ...] = ()
    """By journal, the clock of its first message."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a commit journal."""

    kind: Kind
    key: SinkKey
    batch: int
    run: str = ""
    """Run of the query, for people."""
    nonce: str = ""
    """Tells the record apart from those of other attempts to decide the batch."""
    rows: int = 0
    spans: tuple[Span, ...] = ()
    journals: tuple[str, ...] = ()
    templates: tuple[AckTemplate, ...] = ()
    template_of: tuple[int, ...] = ()
    """By journal, the index of its template."""

    @property
    def producers(self) -> frozenset[ProducerID]:
        """All producers it names."""
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
        """Return the producers of some of its journals."""
        named = set(journals)
        indices = {index for index, journal in enumerate(self.journals) if journal in named}
        return frozenset(s.producer for s in self.spans if not indices.isdisjoint(s.journals))


class Refused(NamedTuple):
    """A line which can't be passed over, and can't be understood."""

    key: SinkKey | None
    """The sink it's of, or None if that's unknown."""
    reason: str


def ack_template(acknowledgement: Callable[[UUID], bytes], content_type: str) -> AckTemplate:
    """Return the form of the acknowledgements of a journal.

    Args:
        acknowledgement: Returns an acknowledgement of its UUID, as that of an Adapter does.
        content_type: Content type of the journal.

    Raises:
        ConfigurationError: What surrounds UUIDs isn't the same in all acknowledgements.
        UnrecognizedContentTypeError: There's no framing of the content type.
        ValidationError: The adapter can't make an acknowledgement.
    """
    framing = framing_by_content_type(content_type)
    one, other = (framing.encode(acknowledgement(probe)) for probe in _PROBES)
    for text in (True, False):
        first, second = (str(uuid).encode() if text else uuid.bytes for uuid in _PROBES)
        prefix, found, suffix = one.partition(first)
        if found and other == prefix + second + suffix:
            return AckTemplate(prefix, suffix, text)
    raise ConfigurationError(f"acknowledgements of {content_type} aren't the same but for UUIDs")


def commit_record(
    key: SinkKey, batch: int, messages: Iterable[TaskMessage], *, run: str = "", nonce: str = ""
) -> Record | None:
    """Return the record which decides a batch, or None if nothing was published.

    Raises:
        ValidationError: The messages aren't all of the batch, share a producer, or are too many.
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
    record = Record(
        Kind.COMMIT, key, batch, run, nonce, rows,
        tuple(spans.values()), tuple(journals), tuple(templates), tuple(template_of),
    )  # fmt: skip
    _check_ack_bytes(record)
    return record


def roll_backs(messages: Iterable[TaskMessage]) -> dict[str, bytes]:
    """Return framed acknowledgements which roll messages back, by journal."""
    frames: dict[str, bytes] = {}
    for message in messages:
        for (journal, template), first in zip(message.journals, message.firsts, strict=True):
            # Wire: it acknowledges no more than what has been before, and drops the rest.
            frame = template.frame(message.producer, first - 1)
            frames[journal] = frames.get(journal, b"") + frame
    return frames


def encode_record(record: Record) -> bytes:
    """Return the line of a record.

    Raises:
        ValidationError: It's too long.
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


def decode_lines(lines: list[bytes], latest: int) -> list[Record | Refused]:
    """Return the records of lines without their newlines.

    Commit records are left out which so many later ones of the same sink make obsolete, and needn't
    be sound: most of a journal is of them, and they'd take far longer to decode than to skip.
    """
    outlines = [_outline(line) for line in lines]
    batches: dict[SinkKey, list[int]] = {}
    """By sink, batches of its latest commit records, from behind: each is before the next."""
    found: list[Record | Refused] = []
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


def decode_line(line: bytes) -> Record | Refused | None:
    """Return the record of a line without its newline, or None if it's none to heed."""
    return _decode(line, _outline(line))


def _outline(line: bytes) -> _Outline | Refused | None:
    if len(line) >= MAX_LINE_BYTES:
        return Refused(None, f"a line of {len(line)} bytes")
    try:
        return _decode_outline(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode(line: bytes, outline: _Outline | Refused | None) -> Record | Refused | None:
    if not isinstance(outline, _Outline):
        return outline
    version, kind, key = outline.v, outline.t, outline.key
    if type(version) is not int:
        return None
    if version != VERSION:
        return Refused(key, f"a record of version {version}")
    # A sink finds its own records by their keys: without one, it's nobody's.
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
        """The sink of which it commits a batch, if it's such a record."""
        is_commit = type(self.v) is int and self.v == VERSION and self.t == Kind.COMMIT.value
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


_KINDS: Final = frozenset(kind.value for kind in Kind)
_decode_outline: Final = msgspec.json.Decoder(_Outline).decode
_decode_line: Final = msgspec.json.Decoder(_Line).decode


def _record(line: _Line, key: SinkKey) -> Record:
    if len(set(line.j)) != len(line.j) or len(line.i) != len(line.j) or "" in line.j:
        raise ValueError("its journals")
    if any(index >= len(line.a) for index in line.i):
        raise ValueError("its templates")
    spans = tuple(_span(producer, ack, journals) for producer, ack, journals in line.p)
    if len({span.producer for span in spans}) != len(spans):
        raise ValueError("a producer is named twice")
    kind = Kind(line.t)
    for span in spans:
        if any(index >= len(line.j) for index in span.journals):
            raise ValueError("the journals of a producer")
        if kind is Kind.COMMIT and not span.journals:
            raise ValueError("a producer without journals")
    if kind is Kind.COMMIT and not spans:
        raise ValueError("no producers")
    record = Record(
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


def _check_ack_bytes(record: Record) -> None:
    sizes = [len(template.prefix) + len(template.suffix) for template in record.templates]
    by_journal = [sizes[index] + _UUID_BYTES for index in record.template_of]
    total = sum(by_journal[index] for span in record.spans for index in span.journals)
    if total > MAX_ACK_BYTES:
        raise ValidationError(f"acknowledgements of {total} bytes exceed {MAX_ACK_BYTES}")
