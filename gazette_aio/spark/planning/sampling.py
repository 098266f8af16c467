"""Schemas inferred from the newest messages of journals."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.planning.journal_ranges import JournalRange
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.spark.planning.tasks import plan_tasks
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.reading.partitions import read_task
from gazette_aio.spark.rows.inference import infer_schema
from gazette_aio.spark.types import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyarrow import Schema

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo

SAMPLE_BYTES: Final = 4 << 20
"""Greatest number of bytes from which a schema is inferred."""

SAMPLE_JOURNALS: Final = 16
"""Greatest number of journals from which a schema is inferred."""

_READS_AT_ONCE: Final = 4
_VALUES: Final = pa.schema([pa.field("_value", RESERVED["_value"])])


async def sample_schema(client: JournalClient, options: SourceOptions) -> Schema:
    """Return the exact Arrow schema of the newest messages of journals.

    Args:
        client: Client to use.
        options: Options of the source.

    Raises:
        ConfigurationError: Journals don't exist, have several content types, or have no messages
            with columns.
        GazetteError: The journals can't be read.

    Cancellation: aborts.
    """
    journals = await list_journals(client, options, fragments=True)
    content_types = sorted({journal.content_type for journal in journals})
    if len(content_types) > 1:
        types = ", ".join(map(repr, content_types))
        raise ConfigurationError(
            f"no schema can be inferred from journals of content types {types}:"
            " select journals of one type, set option 'format', or pass a schema"
        )
    # Bad records have no columns, and it doesn't matter which messages commit.
    lenient = replace(
        options, mode="DROPMALFORMED", starting_timestamp_ms=None, ending_timestamp_ms=None
    )

    written = _newest(journals)
    limit = SAMPLE_BYTES // max(len(written), 1)

    async def read(journal: JournalInfo) -> list[bytes]:
        (task,) = plan_tasks([_tail(journal, limit)], max_split_bytes=journal.head, labels=())
        messages: list[bytes] = []
        size = 0
        async with aclosing(read_task(task, lenient, _VALUES)) as batches:
            async for batch in batches:
                values = cast("Any", batch.column(0))
                messages += values.drop_null().to_pylist()
                size += values.nbytes
                if size >= limit:
                    break
        return messages

    found = await map_bounded(read, written, limit=_READS_AT_ONCE)
    return await in_thread(infer_schema, options, content_types[0], chain.from_iterable(found))


def _newest(journals: Iterable[JournalInfo]) -> list[JournalInfo]:
    """Return the journals which were written last; journals with local fragments come first."""

    def age(journal: JournalInfo) -> tuple[bool, int, str]:
        last = max(journal.fragments or (), key=lambda fragment: fragment.end)
        return last.mod_time != 0, -last.mod_time, journal.name

    written = (journal for journal in journals if journal.earliest < journal.head)
    return sorted(written, key=age)[:SAMPLE_JOURNALS]


def _tail(journal: JournalInfo, size: int) -> JournalRange:
    """Return the last bytes of a journal, or its last fragment if it can't be cut elsewhere."""
    if journal.is_divisible:
        begin = max(journal.head - size, journal.earliest)
    else:
        fragments = journal.fragments or ()
        begin = max(fragment.begin for fragment in fragments if fragment.begin < journal.head)
    return JournalRange(journal, begin, journal.head)
