"""Transactions over two journals: each publishes its number to both."""

from __future__ import annotations

from typing import Any

from gazette_aio.message import ReadCommittedIter, json_adapter
from gazette_aio.message.mapping import ListedTarget

NDJSON = "application/x-ndjson"
JOURNALS = ONE, TWO = ("topic/one", "topic/two")


def to(journal: str, content_type: str = NDJSON) -> Any:
    """Return the mapping of all messages to one journal."""

    def mapping(_message: Any) -> tuple[str, str]:
        return ListedTarget((journal, content_type))

    return mapping


async def commit(publisher: Any, log: Any, number: int) -> None:
    """Commit the transaction of a number."""
    async with publisher.transaction(intents=log) as transaction:
        for journal in JOURNALS:
            await publisher.publish_uncommitted(to(journal), {"v": number})
        transaction.state = {"row": number}


async def committed(client: Any) -> list[tuple[str, Any]]:
    """Return the journal and the number of each committed message, in order."""
    source = ReadCommittedIter(list(JOURNALS), json_adapter(), client=client, skip_acks=True)
    async with source as messages:
        return sorted([(env.journal, env.message["v"]) async for env in messages])


def rows(*numbers: Any) -> list[tuple[str, Any]]:
    """Return what `committed()` returns after the transactions of the numbers."""
    return sorted((journal, number) for journal in JOURNALS for number in numbers)
