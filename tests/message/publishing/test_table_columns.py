"""Publishing of tables: columns of extension types, many chunks, and a slow import."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gazette_aio.message import Publisher, csv_adapter, json_adapter
from gazette_aio.message.adapters.base import Adapter
from tests.message.publishing.batch_fakes import BatchAppends
from tests.waiting import turns

pa: Any = pytest.importorskip("pyarrow")

NDJSON = ("one/journal", "application/x-ndjson")
CSV = ("one/journal", "text/csv")


@pytest.fixture
def pool() -> Iterator[Any]:
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(default)


async def lines(table: Any, adapter: Adapter[Any], target: Any) -> list[str]:
    appends: Any = BatchAppends()
    await Publisher(appends, adapter).publish_committed_batch(target, table=table)
    content: bytes = b"".join(appends.journals.values())
    return content.decode().splitlines()


async def test_numbers_of_an_extension_are_quoted_as_names() -> None:
    keys = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1], pa.int8()))
    table = pa.table({"x": pa.MapArray.from_arrays([0, 2], keys, pa.array(["a", "b"]))})

    (line,) = await lines(table, json_adapter(), NDJSON)

    assert line.endswith(',"x":{"0":"a","1":"b"}}')


async def test_text_of_an_extension_is_a_field_as_it_is() -> None:
    documents = pa.array(['{"k":"v"}', '"', "null", None], pa.json_(pa.string()))

    records = await lines(pa.table({"x": documents}), csv_adapter(uuid_column=1), CSV)

    fields = [record.rpartition(",")[0] for record in records]
    assert fields == ['"{""k"":""v""}"', '""""', "null", ""]


async def test_chunks_are_not_copied_for_each_of_many_journals(pool: Any) -> None:
    rows, chunks, journals = 20_000, 20, 50
    size = rows // chunks
    whole = pa.table({"n": range(rows), "text": ["x" * 100] * rows})
    table = pa.concat_tables([whole.slice(start, size) for start in range(0, rows, size)])
    before: int = pool.total_bytes_allocated()

    def by_number(row: dict[str, Any]) -> tuple[str, str]:
        return f"part/{row['n'] % journals}", NDJSON[1]

    published = await lines(table, json_adapter(), by_number)

    assert len(published) == rows
    assert pool.total_bytes_allocated() - before < 20 * table.nbytes


class SlowImport:
    """Finder of modules that holds up the import of one of them."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.began = threading.Event()
        self.may_end = threading.Event()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.module:
            self.began.set()
            self.may_end.wait(30)


async def test_tables_are_published_while_the_first_one_imports_arrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SlowImport("gazette_aio.message.publishing.arrow_values")
    monkeypatch.setattr(sys, "meta_path", [slow, *sys.meta_path])
    for module in (slow.module, "gazette_aio.message.publishing.table_rows"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    table = pa.table({"n": [1]})

    first = asyncio.create_task(lines(table, json_adapter(), NDJSON))
    await asyncio.to_thread(slow.began.wait, 30)
    second = asyncio.create_task(lines(table, json_adapter(), NDJSON))
    await turns(20)
    slow.may_end.set()

    for (line,) in await asyncio.gather(first, second):
        assert line.endswith(',"n":1}')
