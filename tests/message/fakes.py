"""In-memory stand-ins of the client: journals of bytes, their readers and appends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy, WatchedList
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.protocol.errors import OffsetJumpError
from gazette_aio.protocol.status_errors import JournalNotFoundError, OffsetNotYetAvailableError


class FakeAppend:
    """An append which is committed at once, unless its service is told to fail."""

    def __init__(self, service, journal):
        self._service, self._journal, self._error = service, journal, None
        self._data = b""
        self.commit_range = None
        self.batch = None

    def write(self, data):
        self._data += data
        return len(data)

    async def drain(self):
        pass

    def roll_back(self, error):
        self._error = error
        self._service.locks[self._journal].release()

    def done(self):
        return True

    def exception(self):
        return self._service.failures.get(self._journal)

    @property
    def response(self):
        return self.commit_range

    @property
    def operation(self):
        return finished_operation(self.exception())

    def require(self, error):
        self._error = self._error or error
        return self

    def release(self):
        self._service.locks[self._journal].release()
        if self._error is not None:
            raise self._error
        self.commit_range = self._service.commit(self._journal, self._data)

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        failure = self._service.failures.get(self._journal)
        if failure is not None:
            raise failure
        return self.commit_range


class FakeAppends:
    """An AppendService of in-memory journals."""

    cutoff_bytes = 1 << 26

    def __init__(self, client=None, *, fast=True):
        self.journals = {} if client is None else client.journals
        self.fast = fast
        self.failures = {}
        self.locks = {}
        self.started = 0

    def commit(self, journal, data):
        content = self.journals.setdefault(journal, bytearray())
        begin = len(content)
        content += data
        return begin, len(content)

    def cleared_error(self, journal):
        return None

    async def list(self, selector):
        specs = [pb.JournalSpec(name=label.value) for label in selector.include.labels]
        return pb.ListResponse(journals=[pb.ListResponse.Journal(spec=spec) for spec in specs])

    def try_append(self, journal, data):
        lock = self.locks.setdefault(journal, asyncio.Lock())
        if not self.fast or lock.locked():
            return None
        append = FakeAppend(self, journal)
        append.commit_range = self.commit(journal, data)
        return append

    async def start_append(self, journal, dependencies=()):
        self.started += 1
        await self.locks.setdefault(journal, asyncio.Lock()).acquire()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.locks[journal].release()
            raise
        return FakeAppend(self, journal)


async def follow(upkeep, client, selector):
    """Keep listings current with what a FakeClient has."""
    try:
        while True:
            if client.watch_failure is not None:
                upkeep.fail(client.watch_failure)
                return
            listing, changed = client.listing(selector), client.applied
            if listing != upkeep.listing:
                upkeep.publish(listing)
            await changed.wait()
    except asyncio.CancelledError:
        upkeep.close()
        raise


class FakeList(WatchedList):
    """A WatchedList of a FakeClient."""

    def __init__(self, client, selector):
        super().__init__(client, selector)
        upkeep, asked = self._upkeep, pb.parse_label_selector(self._selector)
        upkeep.run = lambda: follow(upkeep, client, asked)


class FakeClient:
    """A client of in-memory journals.

    Args:
        content_types: Content type of each journal.
        chunk: Size of the chunks which readers return, or a function of (journal, offset).
    """

    retry_policy = RetryPolicy(backoff=lambda _attempt: 0.0)
    dispatcher = SimpleNamespace(endpoint="http://in.memory")

    @property
    def context(self):
        return self

    def __init__(self, content_types, *, chunk=1000):
        self.content_types = dict(content_types)
        self.journals = {name: bytearray() for name in content_types}
        self.revisions = dict.fromkeys(content_types, 1)
        self.revision = 1
        self.chunk = chunk if callable(chunk) else lambda _journal, _offset: chunk
        self.reads = []
        self.lists = []
        self.readers = []
        self.holes = {}
        self.grown = asyncio.Event()
        self.events = {}
        self.refusals = {}
        self.topics = {}
        self.watches = set()
        self.watch_failure = None
        self.fragment = None
        self.applied = asyncio.Event()

    def listing(self, selector):
        response = pb.ListResponse()
        for name, content_type in sorted(self.content_types.items()):
            spec = pb.JournalSpec(name=name)
            if content_type is not None:
                spec.labels.labels.add(name="content-type", value=content_type)
            spec.labels.labels.add(name="topic", value=self.topics.get(name, "t"))
            if pb.selector_matches(selector, pb.label_set_ext(spec)):
                revision = self.revisions[name]
                response.journals.add(
                    spec=spec, create_revision=revision, mod_revision=self.revision
                )
        return response

    async def list(self, selector):
        self.lists.append(selector)
        await asyncio.sleep(0)
        return self.listing(selector)

    def watch(self, selector):
        return FakeList(self, selector)

    def _apply(self):
        self.revision += 1
        self.applied.set()
        self.applied = asyncio.Event()
        self.wake()

    def wake(self):
        """Let readers which wait look again."""
        self.grown.set()
        self.grown = asyncio.Event()

    def create(self, name, content_type, data=b""):
        """Create a journal, or apply another content type to it."""
        if name not in self.journals:
            self.journals[name] = bytearray(data)
            self.revisions[name] = self.revision + 1
        self.content_types[name] = content_type
        self._apply()

    def delete(self, name, *, tell=True):
        """Delete a journal; watches are told of it later, unless `tell`."""
        del self.journals[name]
        if tell:
            self.forget(name)

    def forget(self, name):
        """Tell watches of a deletion."""
        del self.content_types[name]
        self._apply()

    def move(self, name, topic):
        """Give a journal another value of its label `topic`, which is `t` at first."""
        self.topics[name] = topic
        self._apply()

    def append(self, journal, data):
        self.journals[journal] += data
        self.wake()

    def read(self, request):
        copied = pb.ReadRequest()
        copied.CopyFrom(request)
        self.reads.append(copied)
        reader = FakeReader(self, copied)
        self.readers.append(reader)
        return reader


class FakeReader:
    """A RetryReader of an in-memory journal."""

    def __init__(self, client, request):
        self.client, self.request = client, pb.ReadRequest()
        self.request.CopyFrom(request)
        self.closed = False
        self.opened = False

    @property
    def journal(self):
        return self.request.journal

    @property
    def offset(self):
        return self.request.offset

    @property
    def response(self):
        response = pb.ReadResponse(write_head=len(self.client.journals.get(self.journal, b"")))
        if self.client.fragment is not None:
            response.fragment.CopyFrom(self.client.fragment)
        return response

    @property
    def write_head(self):
        return self.response.write_head

    def __aiter__(self):
        return self

    async def __anext__(self):
        assert not self.closed
        request = self.request
        name = request.journal.partition(";")[0]
        while True:
            await asyncio.sleep(0)
            if self.closed:
                raise StopAsyncIteration
            if name not in self.client.journals:
                raise JournalNotFoundError(journal=name)
            if name in self.client.refusals:
                raise self.client.refusals[name]
            end = request.end_offset
            if 0 < end <= request.offset:
                raise StopAsyncIteration
            content = self.client.journals[name]
            if request.offset == -1:
                request.offset = len(content)
            hole = self.client.holes.get(name)
            if hole and hole[0] <= request.offset < hole[1]:
                request.offset = hole[1]
                if 0 < end <= hole[1]:
                    raise StopAsyncIteration  # Nothing is told of a hole up to the end.
                raise OffsetJumpError(journal=name, offset=hole[1], requested=hole[0])
            failures = self.client.events.get(name)
            if failures and failures[0][0] <= request.offset:
                raise failures.pop(0)[1]
            stop = min(len(content), request.offset + self.client.chunk(name, request.offset))
            if end:
                stop = min(stop, end)
            if hole and request.offset < hole[0]:
                stop = min(stop, hole[0])
            if stop > request.offset:
                chunk = bytes(content[request.offset : stop])
                request.offset = stop
                return chunk
            if not request.block:
                raise OffsetNotYetAvailableError(journal=name)
            await self.client.grown.wait()

    async def aclose(self):
        self.closed = True
        self.client.wake()
