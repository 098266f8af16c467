"""What processes of Spark keep of batches and queries, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

import gazette_aio.protocol as pb
from gazette_aio.message.uuid import ProducerID
from gazette_aio.spark import GazetteDataSource
from gazette_aio.spark.sink import writers
from gazette_aio.spark.sink.commit_records import (
    AckTemplate,
    CommitKind,
    CommitRecord,
    SinkKey,
    TaskMessage,
)
from gazette_aio.spark.sink.writers import SinkMessage
from tests.pyspark.versions import STREAMS

SCHEMA = StructType().add("id", LongType())
RUN = "1b671a64-40d5-401d-97d8-0123456789ab"


def test_only_the_latest_batches_are_known(journals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write which another run has decided is told from a second one in its batch."""

    async def decided(_: Any, tasks: list[TaskMessage], batch: int, **__: Any) -> CommitRecord:
        return CommitRecord(CommitKind.COMMIT, tasks[0].key, batch, "another run")

    monkeypatch.setattr(writers, "commit_batch", decided)
    journals.create("a")
    writer = GazetteDataSource(journals.options(fileRoot=None, fetchTimeout=None)).writer(
        SCHEMA, False
    )

    def commit(query: int) -> None:
        key = SinkKey(f"query-{query}", "sink")
        targets = (("a", AckTemplate(b"", b"", text=True)),)
        task = TaskMessage(key, 7, ProducerID(b"\x01abcde"), 1, 1, targets)
        writer.commit([SinkMessage(task, RUN)])

    for query in range(2000):
        commit(query)
    for query in (1999, 1500):
        with pytest.raises(pb.ConfigurationError, match="each write needs an option 'sinkId'"):
            commit(query)
    commit(0)


@STREAMS
def test_a_sink_is_warned_of_once_whatever_its_token(
    journals: Any, caplog: pytest.LogCaptureFixture
) -> None:
    journals.create("a")
    for number in range(3):
        given = journals.options(fileRoot=None, fetchTimeout=None, token=f"token-{number}")
        assert GazetteDataSource(given).streamWriter(SCHEMA, False).plan.targets
    warned = [text for text in caplog.messages if "without option 'commitJournal'" in text]
    assert len(warned) == 1
