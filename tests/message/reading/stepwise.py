"""A reader of one journal, whose content arrives step by step, without an event loop."""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.message import NDJSONFraming, raw_adapter
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.reading.journal_input import Arrival, ArrivalKind, JournalInput
from gazette_aio.message.reading.reader import OutputReader

RAW = raw_adapter("_meta.uuid")


@dataclasses.dataclass(frozen=True)
class NeedContent:
    """The reader waits for the next arrival."""


@dataclasses.dataclass(frozen=True)
class NeedReplay:
    """The reader waits for content that it reads again."""

    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Pause:
    """Other tasks have a turn."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """An error was raised."""

    error: Exception


class _Wait:
    def __init__(self, need):
        self._need = need

    def __await__(self):
        yield self._need


class _Replay:
    """Reader of a replay, which is fed by hand."""

    def __init__(self, request):
        self.offset = request.offset
        self.events = deque()
        self._need = NeedReplay(request.offset, request.end_offset)

    async def __anext__(self):
        while not self.events:
            await _Wait(self._need)
        event = self.events.popleft()
        if isinstance(event, Exception):
            raise event
        self.offset, chunk = event
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self):
        pass


class Reading:
    """Steps of a reader: the outputs, what it waits for, and errors."""

    running, open, source, is_selection = False, 0, "a/j", False

    def __init__(self, engine, content, *, adapter=RAW, begin=0, allow_replay_gaps=False):
        self.content = content
        self.engine = engine
        self.reader = OutputReader("Reading", self, engine, allow_replay_gaps=allow_replay_gaps)
        self.ready: Any = ()
        """Envelopes that were returned, and not taken."""
        request = pb.ReadRequest(journal="a/j", offset=begin)
        journal_format = JournalFormat(
            "a/j", Origin(pb.JournalSpec(name="a/j")), NDJSONFraming(), adapter
        )
        self.journal = JournalInput(self, request, engine.begin(journal_format, begin))
        self.replay: Any = None
        self._arrivals: deque[Any] = deque()
        self._coroutine: Any = None

    # What the reader uses.

    async def next_arrival(self):
        while not self._arrivals:
            await _Wait(NeedContent())
        return self._arrivals.popleft()

    def read(self, request):
        self.replay = _Replay(request)
        return self.replay

    def may_park(self, source):
        return False

    # Steps.

    def step(self):
        """Return outputs, or another step."""
        if self._coroutine is None:
            self._coroutine = self.reader.next()
        try:
            return self._coroutine.send(None) or Pause()
        except StopIteration as end:
            self._coroutine = None
            return end.value
        except Exception as error:  # noqa: BLE001 - a step.
            self._coroutine = None
            return Stop(error)

    def next(self) -> Any:
        """Return the clocks that are delivered, or another step than a pause."""
        while isinstance(step := self.step(), Pause):
            pass
        return [envelope.clock for envelope in step] if isinstance(step, list) else step

    def take(self, count):
        """Return the clocks of the next messages, which may be delivered one by one."""
        clocks = []
        while len(clocks) < count:
            clocks += self.next()
        return clocks

    def checkpoint(self):
        self.reader.settle(self.ready)
        return self.engine.checkpoint()

    # Content.

    def feed_lines(self):
        """Feed line after line, each of which needs another one, but for the last."""
        at = 0
        for each in self.content.splitlines(keepends=True):
            if at:
                assert self.next() == NeedContent()
            self.feed(at, at + len(each))
            at += len(each)

    def arrive(self, kind, begin=0, chunk=b"", error=None):
        self._arrivals.append(Arrival(self.journal, kind, chunk, begin, error))

    def feed(self, begin=0, end=None):
        self.arrive(ArrivalKind.CHUNK, begin, self.content[begin:end])

    def feed_replay(self, begin, end):
        end = min(end, len(self.content))
        self.replay.events.append((end, self.content[begin:end]))

    def end_replay(self, offset):
        self.replay.events.append((offset, None))

    def fail_replay(self, error):
        self.replay.events.append(error)
