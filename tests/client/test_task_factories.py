"""Programs whose event loop has a task factory of their own, such as that of eager tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import gazette_aio
import gazette_aio.protocol as pb
from gazette_aio import Publisher, ReadCommittedIter, connect, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.testing import create_journals, journal_spec
from tests.message.publishing.by_hand import acknowledge

JOURNAL = "tasks/journal"
SPEC = journal_spec(JOURNAL, labels={pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES})


def mapping(_message):
    return JOURNAL, pb.CONTENT_TYPE_JSON_LINES


async def append_publish_and_read(directory):
    """Return the numbers of messages of all forms of appends, as they're read."""
    adapter = json_adapter(dict)
    async with EmbeddedBroker(directory) as broker, connect(broker.endpoint) as client:
        await create_journals(client, SPEC)
        publisher = Publisher(client.appends, adapter)
        await client.append(JOURNAL, b"")
        assert await publisher.publish_committed(mapping, {"n": 0})
        for number in (1, 2):
            publisher.publish_uncommitted_nowait(mapping, {"n": number})
        async with client.appends.append(JOURNAL) as held:
            # The journal is locked: these are queued.
            for number in (3, 4):
                publisher.publish_uncommitted_nowait(mapping, {"n": number})
        await held
        await acknowledge(publisher)
        for exclusive in (False, True):
            async with publisher.transaction(exclusive=exclusive):
                await publisher.publish_uncommitted(mapping, {"n": 5 + exclusive})
        async with publisher.transaction():
            await publisher.publish_uncommitted_batch(mapping, [{"n": 7}])
        async with ReadCommittedIter(JOURNAL, adapter, client=client, skip_acks=True) as iterator:
            return [envelope.message["n"] async for envelope in iterator]


async def test_tasks_are_not_made_by_the_factory_of_the_program(tmp_path):
    made = []

    def factory(loop, work, **options):
        made.append(Path(work.cr_code.co_filename))
        return asyncio.Task(work, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(factory)
    assert await append_publish_and_read(tmp_path) == list(range(8))
    rooms = Path(gazette_aio.__file__).parent
    ours = [rooms / "aio", rooms / "client", rooms / "message"]
    assert [path for path in made if any(map(path.is_relative_to, ours))] == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks(tmp_path):
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    assert await append_publish_and_read(tmp_path) == list(range(8))
