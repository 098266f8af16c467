"""Runs steps on a broker and on the model of it, and compares all which can be seen."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.broker.host.options import FsyncMode
from tests.broker.caller import WRITE_FAILURES, Caller, calling
from tests.broker.model.changes import (
    LOCAL,
    STORED,
    Change,
    Flag,
    change_error,
    label_set_of,
    spec_of,
    suspension_of,
)
from tests.broker.model.space import (
    FAR,
    Answer,
    Fragment,
    Level,
    Message,
    Space,
    Suspend,
    framed,
)
from tests.broker.model.watch import Watch


class Driver:
    """Runs steps on a broker and on the model, and compares."""

    def __init__(self, directory: Path, fsync: FsyncMode) -> None:
        self.directory = directory
        self.fsync = fsync
        self.clock = ManualClock(start=1_700_000_000)
        self.space = Space(self.clock)
        self.watch_state = Watch(self.space)
        self.touched: set[Path] = set()
        self.revision = 0
        self.count = 0

    async def run(self, steps: list[tuple[str, dict[str, Any]]]) -> None:
        await self._start()
        try:
            setup = [Change("upsert", name, "0") for name in (STORED, LOCAL)]
            await self.apply(changes=setup)
            await self._check_space()
            for name, parts in steps:
                await getattr(self, name)(**parts)
                await self._check_space()
                await self.watch_state.check(self.revision)
            await self._check_all()
            await self.restart()
        finally:
            await self.watch_state.aclose()
            await self.stack.aclose()

    async def _start(self) -> None:
        self.stack = AsyncExitStack()
        # Fragments are persisted, and journals looked at, when a step says so.
        broker = EmbeddedBroker(
            self.directory,
            fsync=self.fsync,
            http_port=None,
            persist_delay=1e9,
            pulse_interval=1e9,
            clock=self.clock,
        )
        self.broker = await self.stack.enter_async_context(broker)
        self.caller: Caller = await self.stack.enter_async_context(calling(broker.endpoint))

    # Steps

    async def restart(self) -> None:
        await self.broker.stop()
        await self.watch_state.ended()
        await self.stack.aclose()
        await self._start()
        await self.rewatch()
        await self._check_space()
        await self._check_all()

    async def recreate(self, name: str, suspension: str) -> None:
        """Begin another life of a journal: what was persisted of earlier ones is there."""
        await self.flush(name)
        await self.apply(changes=[Change("delete", name, "-1")])
        await self.apply(changes=[Change("upsert", name, "0", suspension=suspension)])

    async def flush(self, name: str) -> None:
        journal = self.space.journals.get(name)
        if journal is not None and journal.level != Level.FULL:
            await self.broker.flush(name)
            journal.flush()
            # Files are as old as the clock says.
            directory = self.directory / "fragments" / name
            for path in set(directory.glob("*-*")) - self.touched:
                os.utime(path, (self.clock(), self.clock()))
                self.touched.add(path)
            await self.broker.refresh(name)

    async def pulse(self, name: str) -> None:
        journal = self.space.journals.get(name)
        if journal is not None and journal.level != Level.FULL:
            await self.broker.pulse(name)
            journal.pulse()

    async def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)
        await self.broker.control.settled()

    async def watch(self, selection: str) -> None:
        await self.watch_state.aclose()
        self.watch_state = Watch(self.space, selection)
        self.watch_state.begin(self.caller)

    async def rewatch(self) -> None:
        """Begin a watch again where an earlier one was, as of then."""
        if self.watch_state.selection:
            await self.watch_state.aclose()
            self.watch_state.begin(self.caller)

    async def apply(self, changes: list[Change]) -> None:
        request = [self._change(change) for change in changes]
        call = self.caller.apply_call(pb.ApplyRequest(changes=request))
        errors = [
            (index, error)
            for index, change in enumerate(request)
            if (error := change_error(change)) is not None
        ]
        if errors:
            await _expect_error(call, f"Changes[{errors[0][0]}]", errors[0][1])
            return
        before = self.revision
        error, applied = self.space.apply(request)
        if error:
            await _expect_error(call, error)
            return
        response = await call
        self._saw(response.header, routed=False)
        expected = pb.Status.OK if applied else pb.Status.ETCD_TRANSACTION_FAILED
        assert response.status == expected, (changes, response)
        if any(journal.changed for journal in self.space.journals.values()):
            assert self.revision > before

    async def race_upserts(self, name: str, racers: int) -> None:
        # All expect the same revision: one gets it.
        change = self._change(Change("upsert", name, "now"))
        calls = [self.caller.apply_call(pb.ApplyRequest(changes=[change])) for _ in range(racers)]
        statuses = [response.status for response in await asyncio.gather(*calls)]
        lost = pb.Status.ETCD_TRANSACTION_FAILED
        assert sorted(statuses) == [pb.Status.OK] + [lost] * (racers - 1)
        assert self.space.apply([change]) == ("", True)

    async def append(
        self,
        name: str,
        place: str,
        sizes: list[int],
        framing: str,
        registers: tuple[str, str, str, str],
        suspend: int,
    ) -> None:
        chunks = [self._content(size) for size in sizes]
        request = self._append_request(
            name, place, suspend, registers if not suspend else ("",) * 4
        )
        call = self._send(framed(request, chunks, framing))
        if request.offset < 0:
            text = f"invalid Offset ({request.offset}; expected >= 0)"
            await _expect_error(call, text)
            return
        if (journal := self.space.journals.get(name)) is None:
            response = await call
            self._saw(response.header, routed=False)
            assert response.status == pb.Status.JOURNAL_NOT_FOUND
            return
        await self._compare_append(name, call, journal.append(request, chunks, framing))

    async def bad_first_message(self, name: str, kind: str) -> None:
        if kind == "nothing":
            await _expect_error(self._send([]), "EOF")
        elif kind == "content":
            first = pb.AppendRequest(journal=name, content=b"x")
            await _expect_error(self._send([first]), "unexpected Content")
        else:
            first = pb.AppendRequest(journal="/bad")
            await _expect_error(self._send([first]), "Journal: cannot begin with '/' (/bad)")

    async def cancel(self, name: str, sizes: list[int]) -> None:
        journal = self.space.journals.get(name)
        call = self.caller.append_call()
        try:
            await call.write(pb.AppendRequest(journal=name))
            for size in sizes:
                await call.write(pb.AppendRequest(content=self._content(size)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # It was answered already.
        call.cancel()
        # It may have come as far as any other which doesn't commit, and has no further effect.
        if journal is not None:
            request = pb.AppendRequest(journal=name)
            await self._compare_append(
                name,
                self._send(framed(request, [], "commit")),
                journal.append(request, [], "commit"),
            )

    async def race_appends(self, name: str, racers: list[list[int]]) -> None:
        journal = self.space.journals.get(name)
        if journal is None or journal.level != Level.NONE or not journal.writable:
            return
        if journal.head < max(journal.write_head, journal.spec.suspend.offset):
            return
        requests = [
            pb.AppendRequest(journal=name, union_registers=pb.label_set("race", str(number)))
            for number in range(len(racers))
        ]
        contents = [[self._content(size) for size in sizes] for sizes in racers]
        sent = [
            self._send(framed(request, chunks, "commit"))
            for request, chunks in zip(requests, contents, strict=True)
        ]
        responses = await asyncio.gather(*sent)
        order = sorted(range(len(racers)), key=lambda index: responses[index].commit.begin)
        for index in order:
            answer = journal.append(requests[index], contents[index], "commit")
            self._compare(name, responses[index], answer)

    async def read(
        self,
        name: str,
        place: str,
        end: str,
        metadata_only: bool,
        do_not_proxy: bool,
        since: str,
    ) -> None:
        request = pb.ReadRequest(
            journal=name,
            offset=self._offset(name, place),
            end_offset=max(0, self._offset(name, end)),
            metadata_only=metadata_only,
            do_not_proxy=do_not_proxy,
            begin_mod_time=self._time(since),
        )
        call = self.caller.read_call(request)
        if request.offset < -1:
            text = f"invalid Offset ({request.offset}; expected -1 <= Offset <= MaxInt64)"
            await _expect_error(_drain(call), text)
        elif 0 < request.end_offset < request.offset:
            text = f"invalid EndOffset ({request.end_offset}; expected 0 or Offset <= EndOffset)"
            await _expect_error(_drain(call), text)
        else:
            await self._compare_read(name, request, await _drain(call))

    async def blocked_read(self, name: str, ahead: int, sizes: list[int]) -> None:
        """Read at the write head or behind it, and append what's waited for."""
        journal = self.space.journals.get(name)
        if journal is None or journal.level or journal.spec.flags not in (0, Flag.O_RDWR):
            return
        chunks = [self._content(size) for size in (*sizes, 10)]
        request = pb.AppendRequest(journal=name, offset=max(journal.head, journal.write_head))
        begin = max(request.offset, journal.spec.suspend.offset)
        end = begin + sum(map(len, chunks))
        offset = begin + min(ahead, end - begin - 1)
        read = pb.ReadRequest(journal=name, offset=offset, end_offset=end, block=True)
        reading = asyncio.ensure_future(_drain(self.caller.read_call(read)))
        answer = Answer(status=pb.Status.WRONG_APPEND_OFFSET)
        for _ in range(2):  # The first may be refused, and has then made room for the second.
            request.offset = max(journal.head, journal.write_head)
            answer = journal.append(request, chunks, "commit")
            await self._compare_append(name, self._send(framed(request, chunks, "commit")), answer)
            if answer.status == pb.Status.OK:
                break
        assert (answer.status, answer.begin) == (pb.Status.OK, begin)
        async with asyncio.timeout(30):
            messages = await reading
        self._compare_messages(messages, journal.read(read))

    async def blocked_by_delete(self, name: str) -> None:
        journal = self.space.journals.get(name)
        if journal is None or journal.level == Level.FULL or journal.spec.flags == Flag.O_WRONLY:
            return
        read = pb.ReadRequest(journal=name, offset=journal.write_head + 1, block=True)
        reading = asyncio.ensure_future(_drain(self.caller.read_call(read)))
        # The deletion may come first.
        await self.apply(changes=[Change("delete", name, "-1")])
        async with asyncio.timeout(30):
            statuses = [message.status for message in await reading]
        assert statuses in ([], [pb.Status.JOURNAL_NOT_FOUND])

    async def list_fragments(
        self, name: str, token: str, limit: int, since: str, until: str
    ) -> None:
        request = pb.FragmentsRequest(
            journal=name,
            next_page_token=self._offset(name, token),
            page_limit=limit,
            begin_mod_time=self._time(since),
            end_mod_time=self._time(until),
        )
        call = self.caller.fragments_call(request)
        begin, end = request.begin_mod_time, request.end_mod_time
        if 0 < end < begin:
            await _expect_error(call, f"invalid EndModTime ({end} must be after {begin})")
            return
        if request.next_page_token < 0:
            text = f"invalid NextPageToken ({request.next_page_token}; must be >= 0)"
            await _expect_error(call, text)
            return
        if limit > 10000:
            await _expect_error(call, "invalid PageLimit (10001; must be >= 0 and <= 10000)")
            return
        response = await call
        journal = self.space.journals.get(name)
        expected = pb.Status.OK
        if journal is None:
            expected = pb.Status.JOURNAL_NOT_FOUND
        elif journal.level == Level.FULL:
            expected = pb.Status.SUSPENDED
        elif journal.spec.flags == Flag.O_WRONLY:
            expected = pb.Status.NOT_ALLOWED
        assert response.status == expected
        self._saw(response.header, routed=expected in (pb.Status.OK, pb.Status.NOT_ALLOWED))
        if journal is None or expected != pb.Status.OK:
            return
        fragments, next_token = journal.fragments(request)
        assert response.next_page_token == next_token
        _compare_fragments(name, [f.spec for f in response.fragments], fragments)

    async def page_through(self, name: str, limit: int, since: str) -> None:
        """List all fragments, page by page."""
        journal = self.space.journals.get(name)
        if journal is None or journal.level == Level.FULL or journal.spec.flags == Flag.O_WRONLY:
            return
        request = pb.FragmentsRequest(journal=name, begin_mod_time=self._time(since))
        whole, _ = journal.fragments(request)
        request.page_limit = limit
        found: list[pb.Fragment] = []
        for _ in range(len(whole) // limit + 1):
            response = await self.caller.fragments_call(request)
            assert response.status == pb.Status.OK
            fragments = [fragment.spec for fragment in response.fragments]
            assert len(fragments) == limit or not response.next_page_token
            found += fragments
            if not (token := response.next_page_token):
                break
            assert token > request.next_page_token
            request.next_page_token = token
        assert not request.next_page_token or fragments
        _compare_fragments(name, found, whole)

    # What steps are made of

    def _time(self, name: str) -> int:
        return {"": 0, "now": int(self.clock()), "recent": int(self.clock()) - 3000, "far": FAR}[
            name
        ]

    def _content(self, size: int) -> bytes:
        self.count += 1
        return (b"%d." % self.count * size)[:size]

    def _offset(self, name: str, place: str) -> int:
        journal = self.space.journals.get(name)
        head, write_head = (journal.head, journal.write_head) if journal else (3, 3)
        known = {"head": head, "write head": write_head, "half": write_head // 2}
        base, _, behind = place.rpartition("+")
        if base:
            return known[base] + int(behind)
        base, _, before = place.rpartition("-")
        if base:
            return known[base] - int(before)
        return known[place] if place in known else int(place)

    def _change(self, change: Change) -> pb.ApplyRequest.Change:
        journal = self.space.journals.get(change.name)
        now = journal.mod_revision if journal else 0
        known = {"now": now, "now-1": now - 1}
        made = pb.ApplyRequest.Change(expect_mod_revision=known.get(change.revision, 0))
        if change.revision not in known:
            made.expect_mod_revision = int(change.revision)
        if change.kind in ("delete", "both"):
            made.delete = change.name
        if change.kind in ("upsert", "both"):
            made.upsert.CopyFrom(spec_of(change))
            made.upsert.fragment.flush_interval.seconds = change.flush_seconds
            if journal is None and change.suspension == "full at 1024":
                made.upsert.suspend.CopyFrom(suspension_of(Level.FULL, 1024))
            elif change.suspension == "partial":
                made.upsert.suspend.CopyFrom(suspension_of(Level.PARTIAL, 0))
            elif change.suspension == "none at 2000":
                made.upsert.suspend.CopyFrom(suspension_of(Level.NONE, 2000))
            elif journal is not None and change.suspension != "clear":
                made.upsert.suspend.CopyFrom(journal.spec.suspend)
                if not journal.spec.HasField("suspend"):
                    made.upsert.ClearField("suspend")
        return made

    def _append_request(
        self, name: str, place: str, suspend: int, registers: tuple[str, ...]
    ) -> pb.AppendRequest:
        request = pb.AppendRequest(
            journal=name, offset=self._offset(name, place), suspend=Suspend.ValueType(suspend)
        )
        check, exclude, union, subtract = map(label_set_of, registers)
        if check or exclude:
            request.check_registers.CopyFrom(pb.LabelSelector(include=check, exclude=exclude))
        if union:
            request.union_registers.CopyFrom(union)
        if subtract:
            request.subtract_registers.CopyFrom(subtract)
        return request

    async def _send(self, messages: list[pb.AppendRequest]) -> pb.AppendResponse:
        call = self.caller.append_call()
        # Race: a call which is answered already takes no more, and the answer tells why.
        with contextlib.suppress(*WRITE_FAILURES):
            for message in messages:
                await call.write(message)
            await call.done_writing()
        response: pb.AppendResponse = await call
        return response

    # What's compared

    def _saw(self, header: pb.Header, *, routed: bool) -> None:
        assert header.process_id == self.broker.process_id
        assert header.etcd.revision >= self.revision
        self.revision = header.etcd.revision
        if routed:
            assert list(header.route.members) == [header.process_id]
            assert header.route.primary == 0
            assert list(header.route.endpoints) == [self.broker.endpoint]
        else:
            assert (len(header.route.members), header.route.primary) == (0, -1)

    async def _compare_append(
        self, name: str, call: Coroutine[Any, Any, pb.AppendResponse], answer: Answer
    ) -> None:
        if answer.error:
            await _expect_error(call, answer.error, exact=True)
        else:
            self._compare(name, await call, answer)

    def _compare(self, name: str, response: pb.AppendResponse, answer: Answer) -> None:
        assert response.status == answer.status, (name, response, answer)
        # A refusal of a journal which isn't wholly suspended tells where it is.
        self._saw(response.header, routed=answer.routed or answer.chunks < 0)
        assert response.HasField("registers") == (answer.registers is not None)
        assert response.registers == (answer.registers or pb.LabelSet())
        assert response.HasField("commit") == (answer.status == pb.Status.OK)
        if answer.status == pb.Status.OK:
            commit = response.commit
            assert (commit.journal, commit.begin, commit.end) == (name, answer.begin, answer.end)
            assert pb.sum_to_digest(commit.sum) == answer.digest
            assert commit.compression_codec == answer.codec
            assert response.total_chunks == answer.chunks

    async def _compare_read(
        self, name: str, request: pb.ReadRequest, messages: list[pb.ReadResponse]
    ) -> None:
        if (journal := self.space.journals.get(name)) is None:
            assert [message.status for message in messages] == [pb.Status.JOURNAL_NOT_FOUND]
            self._saw(messages[0].header, routed=False)
            return
        self._compare_messages(messages, journal.read(request))

    def _compare_messages(self, messages: list[pb.ReadResponse], expected: list[Message]) -> None:
        seen: list[Message] = []
        for position, message in enumerate(messages):
            assert message.HasField("header") == (position == 0)
            if position == 0:
                self._saw(message.header, routed=message.status != pb.Status.SUSPENDED)
            if message.content:
                assert message.offset == seen[-1].offset + len(seen[-1].content)
                assert not message.HasField("fragment")
                seen[-1].content += message.content
                continue
            seen.append(Message(message.status, message.offset, message.write_head))
            fragment = expected[len(seen) - 1].fragment
            assert message.HasField("fragment") == (fragment is not None)
            if fragment is not None:
                _compare_fragments(message.fragment.journal, [message.fragment], [fragment])
                assert bool(message.fragment_url) == fragment.stored
                seen[-1].fragment = fragment
        assert seen == expected

    async def _check_space(self) -> None:
        listed = await self.caller.journals()
        assert [journal.spec.name for journal in listed] == sorted(self.space.journals)
        written: set[int] = set()
        newest = max((j.mod_revision for j in self.space.journals.values()), default=0)
        for found in listed:
            journal = self.space.journals[found.spec.name]
            assert found.spec == journal.spec
            assert found.route.primary == (-1 if journal.level == Level.FULL else 0)
            if not journal.create_revision:
                journal.create_revision = found.create_revision
                assert found.create_revision == found.mod_revision
            assert found.create_revision == journal.create_revision
            if journal.changed:
                assert found.mod_revision > newest
                written.add(found.mod_revision)
                journal.mod_revision, journal.changed = found.mod_revision, False
            assert found.mod_revision == journal.mod_revision

    async def _check_all(self) -> None:
        for name, journal in self.space.journals.items():
            request = pb.ReadRequest(journal=name)
            await self._compare_read(name, request, await _drain(self.caller.read_call(request)))
            if journal.level == Level.FULL or journal.spec.flags == Flag.O_WRONLY:
                continue
            await self.list_fragments(name, "0", 0, since="", until="")
            barrier = pb.AppendRequest(journal=name, suspend=Suspend.SUSPEND_KEEP)
            answer = journal.append(barrier, [], "commit")
            await self._compare_append(name, self._send(framed(barrier, [], "commit")), answer)


def _compare_fragments(name: str, found: list[pb.Fragment], expected: list[Fragment]) -> None:
    for fragment, model in zip(found, expected, strict=True):
        assert (fragment.journal, fragment.begin, fragment.end) == (name, model.begin, model.end)
        assert pb.sum_to_digest(fragment.sum) == hashlib.sha1(model.content).digest()
        assert fragment.compression_codec == model.codec
        assert fragment.backing_store == ("file:///" if model.stored else "")
        assert fragment.mod_time == model.mod_time


async def _drain(call: Any) -> list[pb.ReadResponse]:
    return [message async for message in call]


async def _expect_error(call: Any, *parts: str, exact: bool = False) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    text = caught.value.details() or ""
    assert caught.value.code() is grpc.StatusCode.UNKNOWN, text
    assert all(part in text for part in parts), (text, parts)
    assert not exact or text == parts[0]
