"""Model of a watch of journals, beside the model of a journal space."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from tests.broker.caller import eventually

if TYPE_CHECKING:
    from tests.broker.caller import Caller
    from tests.broker.model.space import Journal, Space

SELECTIONS = ("all", "name", "prefix", "not the name", "none")

Signature = tuple[int, int]
"""Number of journals, and the newest revision of them: only a change of these is told."""


def _selector(selection: str) -> pb.LabelSelector:
    name = pb.label_set("name", "test/stored")
    match selection:
        case "name":
            return pb.LabelSelector(include=name)
        case "prefix":
            label = pb.Label(name="name", value="test/", prefix=True)
            return pb.LabelSelector(include=pb.LabelSet(labels=[label]))
        case "not the name":
            return pb.LabelSelector(exclude=name)
        case "none":
            return pb.LabelSelector(include=pb.label_set("name", "test/none"))
        case _:
            return pb.LabelSelector()


class Watch:
    """A watch which is compared with the model after each step.

    Args:
        space: The model.
        selection: Which journals it selects; empty for a watch that was never begun.
    """

    def __init__(self, space: Space, selection: str = "") -> None:
        self.selection = selection
        self._space = space
        self._call: Any = None
        self._task: asyncio.Task[None] | None = None
        self._header: pb.Header | None = None
        self._signature: Signature | None = None
        self._journals: list[pb.ListResponse.Journal] = []
        self._resumed_at = 0

    def begin(self, caller: Caller) -> None:
        """Begin, where an earlier call was if there was one."""
        request = pb.ListRequest(watch=True, selector=_selector(self.selection))
        self._resumed_at = 0
        if self._header is not None:
            request.watch_resume.CopyFrom(self._header)
            self._resumed_at = self._header.etcd.revision
        self._signature = None
        self._call = caller.list_call(request)
        self._task = asyncio.create_task(self._receive(self._call))

    async def check(self, revision: int) -> None:
        """Wait until what's shown is what the model has at a revision of the broker."""
        if self._task is None or (self._signature is None and revision <= self._resumed_at):
            return  # It waits for any change at all.
        expected = self._selected()
        newest = max((journal.mod_revision for journal in expected), default=-1)

        async def is_shown() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return self._signature == (len(expected), newest)

        await eventually(is_shown)
        for found, journal in zip(self._journals, expected, strict=True):
            assert found.mod_revision == journal.mod_revision
            assert found.spec == journal.spec

    async def ended(self) -> None:
        """Require that the broker has ended the stream, without an error."""
        if self._task is not None:
            async with asyncio.timeout(30):
                await self._task
            self._task = None

    async def aclose(self) -> None:
        """Cancel the call. Idempotent."""
        if self._task is not None:
            task, self._task = self._task, None
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            self._call.cancel()

    def _selected(self) -> list[Journal]:
        names = sorted(self._space.journals)
        match self.selection:
            case "name":
                names = [name for name in names if name == "test/stored"]
            case "not the name":
                names = [name for name in names if name != "test/stored"]
            case "none":
                names = []
            case _:
                pass
        return [self._space.journals[name] for name in names]

    async def _receive(self, call: Any) -> None:
        journals: list[pb.ListResponse.Journal] = []
        header: pb.Header | None = None
        async for response in call:
            assert response.status == pb.Status.OK
            if header is None:
                header = response.header
                assert header.route.primary == -1
                assert header.etcd.revision > self._resumed_at
                journals = list(response.journals)
                continue
            assert response.header == _EMPTY
            journals += response.journals
            if response.journals:
                continue
            newest = max((journal.mod_revision for journal in journals), default=-1)
            signature = (len(journals), newest)
            assert signature != self._signature, "a snapshot which shows nothing new"
            assert header.etcd.revision >= newest
            self._signature, self._journals, self._header = signature, journals, header
            header = None


_EMPTY = pb.Header(process_id=pb.ProcessSpec.ID(), route=pb.Route(), etcd=pb.Header.Etcd())
