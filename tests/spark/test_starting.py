from __future__ import annotations

import logging
from typing import Any

import pytest

from gazette_aio.spark import start_query

TIMED_OUT = "[X] Timed out while waiting for the Python worker to connect back."
TOO_SLOW = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back."
"""As Spark 4.3 tells it; that it timed out is the cause there, which isn't told."""


class Query:
    """A query of Spark: it initializes for a while, and then runs or fails.

    A failed query tells so before it ends to be active.
    """

    def __init__(self, error: str | None) -> None:
        self.error = error
        self.looks = 5

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name.
        return self.looks > 0 or self.error is None

    @property
    def status(self) -> dict[str, str]:
        self.looks -= 1
        if self.looks > 2:
            return {"message": "Initializing sources"}
        if self.error is None:
            return {"message": "Waiting for data"}
        return {"message": f"Terminated with exception: {self.error}"}

    def exception(self) -> Exception | None:
        return None if self.error is None else RuntimeError(self.error)


class Writer:
    def __init__(self, *errors: str | None) -> None:
        self.queries = [Query(error) for error in errors]
        self.starts = 0

    def start(self) -> Query:
        self.starts += 1
        return self.queries[self.starts - 1]


def started(writer: Writer, **options: float) -> Any:
    return start_query(writer, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_source_too_slow_to_connect_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer(TOO_SLOW, TIMED_OUT, None)
    with caplog.at_level(logging.WARNING):
        assert started(writer) is writer.queries[2]
    assert writer.starts == 3
    assert [record.name for record in caplog.records] == [
        "gazette_aio.spark.streaming.starting"
    ] * 2
    assert writer.queries[2].looks <= 2, "it was returned before its sources had begun"


@pytest.mark.parametrize("error", [None, "no such journal"])
def test_other_queries_are_started_once(error: str | None) -> None:
    writer = Writer(error)
    assert started(writer) is writer.queries[0]
    assert writer.starts == 1


def test_the_last_failure_is_returned() -> None:
    writer = Writer(TOO_SLOW)
    query = started(writer, timeout_seconds=0.0)
    assert str(query.exception()) == TOO_SLOW
    assert writer.starts == 1
