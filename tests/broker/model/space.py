"""Model of a broker of one journal space, without files or tasks."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import gazette_aio.protocol as pb

Suspend = pb.AppendRequest.Suspend
Level = pb.JournalSpec.Suspend.Level
FAR = 1 << 40
"""A modification time which nothing reaches."""
JUMP_AGE_SECONDS = 6 * 3600
FLUSH_SECONDS = 24 * 3600
"""Age from which a fragment counts as flushed, unless the journal has an interval."""


class Fragment(NamedTuple):
    """Content of a journal which is one fragment."""

    begin: int
    content: bytes
    codec: int
    mod_time: int = 0
    """When it was stored, zero if it wasn't."""

    @property
    def end(self) -> int:
        return self.begin + len(self.content)

    @property
    def stored(self) -> bool:
        return self.mod_time > 0


@dataclasses.dataclass
class Answer:
    """What an append is answered."""

    error: str = ""
    """Text of a failure; if there's none, all else counts."""
    status: int = pb.Status.OK
    routed: bool = True
    begin: int = 0
    end: int = 0
    digest: bytes = b""
    codec: int = 0
    registers: pb.LabelSet | None = None
    chunks: int = 0


@dataclasses.dataclass
class Message:
    """A metadata message of a read, and the content which follows it."""

    status: int
    offset: int
    write_head: int = 0
    fragment: Fragment | None = None
    content: bytes = b""


class Journal:
    """A journal in one of its lives.

    Args:
        spec: Its spec.
        stored: Fragments in the store of its name, which outlive it.
        clock: Returns Unix time.
    """

    def __init__(
        self, spec: pb.JournalSpec, stored: list[Fragment], clock: Callable[[], float]
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.first_append = 0.0
        """When the fragment in progress got its first content."""
        self.roll_pending = False
        self.stored = stored
        self.complete: list[Fragment] = []
        self.begin = 0
        self.content = b""
        self.codec: int = spec.fragment.compression_codec
        self.registers = pb.LabelSet()
        self.mod_revision = 0
        self.create_revision = 0
        self.changed = True
        """Whether the spec was written since its revision was last looked at."""

    @property
    def head(self) -> int:
        return self.begin + len(self.content)

    @property
    def index(self) -> list[Fragment]:
        stored = self.stored if self.spec.fragment.stores else []
        local = [*self.complete, Fragment(self.begin, self.content, self.codec)]
        return sorted([*stored, *(fragment for fragment in local if fragment.content)])

    @property
    def write_head(self) -> int:
        return self.index[-1].end if self.index else 0

    @property
    def level(self) -> int:
        return self.spec.suspend.level

    @property
    def writable(self) -> bool:
        return self.spec.flags != pb.JournalSpec.Flag.O_RDONLY

    def suspend(self, level: pb.JournalSpec.Suspend.Level.ValueType, offset: int) -> None:
        self.spec.suspend.CopyFrom(pb.JournalSpec.Suspend(level=level, offset=offset))
        self.changed = True

    def roll(self, offset: int) -> None:
        if self.content:
            self.complete.append(Fragment(self.begin, self.content, self.codec))
        self.begin, self.content, self.first_append = offset, b"", 0.0
        self.codec = self.spec.fragment.compression_codec
        self.roll_pending = False

    def flush(self) -> None:
        if self.content:
            self.roll(self.head)
        if self.spec.fragment.stores:
            now = int(self.clock())
            self.stored += [fragment._replace(mod_time=now) for fragment in self.complete]
            self.complete.clear()

    def pulse(self) -> None:
        """Do what an empty append does, other than to make room for one."""
        blocked = max(self.write_head, self.spec.suspend.offset) > self.head and self.writable
        if self.content and not blocked:
            self._roll_if_due()

    # Append

    def append(self, request: pb.AppendRequest, chunks: list[bytes], framing: str) -> Answer:
        """Return the answer to a valid first message, `chunks`, and the end which `framing` is."""
        if self.level == Level.FULL:
            if request.suspend != Suspend.SUSPEND_RESUME:
                return Answer(status=pb.Status.SUSPENDED, routed=False)
            self.suspend(Level.NONE, self.spec.suspend.offset)
        if (answer := self._precondition(request)) is not None:
            return answer
        if (answer := self._suspension(request)) is not None and not answer.routed:
            return answer
        self._roll_if_due()
        content = b"".join(chunks)
        may_have_content = self.writable and request.suspend <= Suspend.SUSPEND_NO_RESUME
        if content and not may_have_content:
            return Answer(status=pb.Status.NOT_ALLOWED)
        if (error := _FRAMING_ERRORS.get(framing)) is not None:
            return Answer(error=f"append stream: {error}")
        modifies = request.HasField("union_registers") or request.HasField("subtract_registers")
        if modifies and not content:
            return Answer(error="append stream: register modification requires non-empty Append")
        if answer is not None:
            return answer
        begin = self.head
        if not self.content:
            self.first_append = self.clock()
        self.content += content
        if modifies:
            self.registers = _updated(self.registers, request)
        return Answer(
            begin=begin,
            end=self.head,
            digest=hashlib.sha1(content).digest(),
            codec=self.codec,
            registers=self.registers,
            chunks=len(chunks) + 1,
        )

    def _precondition(self, request: pb.AppendRequest) -> Answer | None:
        if request.HasField("check_registers") and not _matches(
            self.registers, request.check_registers
        ):
            return Answer(status=pb.Status.REGISTER_MISMATCH, registers=self.registers)
        if self.spec.suspend.offset > self.head:
            self.roll(self.spec.suspend.offset)
        furthest = max(self.head, self.write_head)
        if self.head < furthest and not request.offset and self.writable:
            return Answer(status=pb.Status.INDEX_HAS_GREATER_OFFSET)
        if request.offset not in (0, furthest):
            return Answer(status=pb.Status.WRONG_APPEND_OFFSET)
        if request.offset and self.head < furthest:
            self.roll(furthest)
        return None

    def _suspension(self, request: pb.AppendRequest) -> Answer | None:
        """Change the suspension; return how an append which goes on without content ends."""
        suspended = Answer(status=pb.Status.SUSPENDED)
        match request.suspend:
            case Suspend.SUSPEND_RESUME if self.level == Level.PARTIAL:
                self.suspend(Level.NONE, self.head)
            case Suspend.SUSPEND_NO_RESUME if self.level == Level.PARTIAL:
                # Nothing is rolled, but nothing could be either: it was when it was suspended.
                return dataclasses.replace(suspended, routed=False, chunks=-1)
            case Suspend.SUSPEND_IF_FLUSHED | Suspend.SUSPEND_NOW if not self.index:
                self.suspend(Level.FULL, self.head)
                return dataclasses.replace(suspended, routed=False)
            case Suspend.SUSPEND_NOW | Suspend.SUSPEND_IF_FLUSHED if self.level == Level.NONE and (
                request.suspend == Suspend.SUSPEND_NOW or self._is_flushed()
            ):
                self.suspend(Level.PARTIAL, self.head)
                self.roll_pending = True
                return suspended
            case Suspend.SUSPEND_IF_FLUSHED | Suspend.SUSPEND_NOW if self.level == Level.PARTIAL:
                return suspended
            case _:
                pass
        return None

    def _is_flushed(self) -> bool:
        last = self.index[-1]
        age = self.spec.fragment.flush_interval.seconds or FLUSH_SECONDS
        return last.stored and last.mod_time <= self.clock() - age

    def _roll_if_due(self) -> None:
        length = len(self.content)
        first = bool(self.index) and self.index[0].begin == self.begin
        interval = self.spec.fragment.flush_interval.seconds
        later = interval and self.first_append // interval != self.clock() // interval
        if not length or length > self.spec.fragment.length or first or later or self.roll_pending:
            self.roll(self.head)

    # Read

    def read(self, request: pb.ReadRequest) -> list[Message]:
        """Return the messages of a read which doesn't block."""
        if self.level == Level.FULL:
            return [Message(pb.Status.SUSPENDED, 0)]
        if self.spec.flags == pb.JournalSpec.Flag.O_WRONLY:
            return [Message(pb.Status.NOT_ALLOWED, 0)]
        messages: list[Message] = []
        offset = self.write_head if request.offset == -1 else request.offset
        while True:
            fragment, offset = self._find(offset, request.begin_mod_time)
            if fragment is None:
                unavailable = pb.Status.OFFSET_NOT_YET_AVAILABLE
                return [*messages, Message(unavailable, offset, self.write_head)]
            message = Message(pb.Status.OK, offset, self.write_head, fragment)
            messages.append(message)
            if request.metadata_only or (fragment.stored and request.do_not_proxy):
                return messages
            end = min(fragment.end, request.end_offset or fragment.end)
            message.content = fragment.content[offset - fragment.begin : end - fragment.begin]
            offset = max(offset, end)
            if request.end_offset and offset >= request.end_offset:
                return messages

    def _find(self, offset: int, begin_mod_time: int) -> tuple[Fragment | None, int]:
        for position, fragment in enumerate(self.index):
            if fragment.end <= offset:
                continue
            if fragment.begin > offset:
                old = fragment.mod_time < int(self.clock()) - JUMP_AGE_SECONDS
                if not fragment.stored or (position and not old):
                    break
                offset = fragment.begin
            if not (fragment.stored and fragment.mod_time < begin_mod_time):
                return fragment, offset
            offset = fragment.end
        return None, offset

    # ListFragments

    def fragments(self, request: pb.FragmentsRequest) -> tuple[list[Fragment], int]:
        """Return a page, and the token of the next one."""
        selected = [
            fragment
            for fragment in self.index
            if fragment.begin >= request.next_page_token
            and not (fragment.stored and fragment.mod_time < request.begin_mod_time)
            and not (
                request.end_mod_time
                and not (fragment.stored and fragment.mod_time <= request.end_mod_time)
            )
        ]
        limit = request.page_limit or 1000
        token = selected[limit].begin if len(selected) > limit else 0
        return selected[:limit], token


_FRAMING_ERRORS = {
    "half-close": "unexpected EOF",
    "empty twice": "expected EOF after empty Content chunk",
    "content after empty": "expected EOF after empty Content chunk",
    "journal": "expected Content chunk",
    "invalid journal": "Journal: cannot begin with '/' (/invalid)",
    "offset": "unexpected Offset",
}
FRAMINGS = ("commit", *_FRAMING_ERRORS)


def framed(request: pb.AppendRequest, chunks: list[bytes], framing: str) -> list[pb.AppendRequest]:
    """Return the messages of an append."""
    empty = pb.AppendRequest()
    tail = {
        "commit": [empty],
        "half-close": [],
        "empty twice": [empty, empty],
        "content after empty": [empty, pb.AppendRequest(content=b"late")],
        "journal": [pb.AppendRequest(journal=request.journal)],
        "invalid journal": [pb.AppendRequest(journal="/invalid")],
        "offset": [pb.AppendRequest(offset=5)],
    }[framing]
    return [request, *(pb.AppendRequest(content=chunk) for chunk in chunks), *tail]


class Space:
    """All journals, and the store.

    Args:
        clock: Returns Unix time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.journals: dict[str, Journal] = {}
        self.store: dict[str, list[Fragment]] = {}

    def apply(self, changes: list[pb.ApplyRequest.Change]) -> tuple[str, bool]:
        """Apply valid changes; return an error, and if there's none whether they were applied."""
        names = [change.upsert.name or change.delete for change in changes]
        if len(set(names)) < len(names):
            return "etcdserver: duplicate key given in txn request", False
        for name, change in zip(names, changes, strict=True):
            journal = self.journals.get(name)
            current = journal.mod_revision if journal else 0
            if change.expect_mod_revision not in (-1, current):
                return "", False
        for name, change in zip(names, changes, strict=True):
            if not change.HasField("upsert"):
                self.journals.pop(name, None)
                continue
            spec = pb.JournalSpec()
            spec.CopyFrom(change.upsert)
            if (journal := self.journals.get(name)) is not None:
                journal.spec, journal.changed = spec, True
            else:
                self.journals[name] = Journal(spec, self.store.setdefault(name, []), self.clock)
        return "", True


def _values(labels: pb.LabelSet) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for label in labels.labels:
        values.setdefault(label.name, []).append(label.value)
    return values


def _matches(registers: pb.LabelSet, selector: pb.LabelSelector) -> bool:
    held = _values(registers)
    if not held:
        return True
    for name, values in _values(selector.include).items():
        if not set(values) & set(held.get(name, [])):
            return False
    excluded = _values(selector.exclude).items()
    return not any(set(values) & set(held.get(name, [])) for name, values in excluded)


def _updated(registers: pb.LabelSet, request: pb.AppendRequest) -> pb.LabelSet:
    held = _values(registers)
    for name, values in _values(request.subtract_registers).items():
        if held.get(name) == values:
            del held[name]
    held.update(_values(request.union_registers))
    labels = [pb.Label(name=name, value=value) for name in sorted(held) for value in held[name]]
    return pb.LabelSet(labels=labels)
