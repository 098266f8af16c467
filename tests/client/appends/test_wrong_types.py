"""Content of wrong types, which is refused before anything is sent."""

from __future__ import annotations

import io
from typing import Any

import pytest

from gazette_aio.client import JournalClient
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import JOURNAL, MemoryJournals

WRONG: list[Any] = ["text", 5, None, [b"data"]]


@pytest.mark.parametrize("content", WRONG)
async def test_an_append_of_no_bytes(
    broker: StubBroker, client: JournalClient, content: Any
) -> None:
    journals = MemoryJournals(broker)
    name = type(content).__name__
    with pytest.raises(TypeError, match=f"content: expected bytes, .*, not {name}"):
        await client.append(JOURNAL, b"first", content)
    with pytest.raises(TypeError, match=f"data: expected bytes, not {name}"):
        client.appends.try_append(JOURNAL, content)
    async with client.appends.append(JOURNAL) as pending:
        with pytest.raises(TypeError, match=f"data: expected bytes, not {name}"):
            pending.write(content)
        pending.write(bytearray(b"own "))
        pending.write(memoryview(b"content"))
    with pytest.raises(TypeError, match=f"data: expected bytes, not {name}"):
        client.appends.try_append(JOURNAL, content)
    view: Any = bytearray(b", more")
    assert client.appends.try_append(JOURNAL, view) is not None
    await client.appends.flush()
    assert journals.contents == {JOURNAL: b"own content, more"}


async def test_parts_of_no_bytes(broker: StubBroker, client: JournalClient) -> None:
    journals = MemoryJournals(broker)
    parts: Any = lambda: ["text"]  # noqa: E731
    text: Any = io.StringIO("text")
    for content in (parts, text):
        with pytest.raises(TypeError, match="data: expected bytes, not str"):
            await client.append(JOURNAL, content)
    assert not journals.contents
