"""Lag of a streaming query, from the progress which Spark reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from gazette_aio.spark.streaming.reports import sources_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@overload
def lag(
    progress: Mapping[str, Any] | str | None, unit: Literal["bytes", "rows"] = "bytes"
) -> dict[str, int]: ...
@overload
def lag(progress: Mapping[str, Any] | str | None, unit: Literal["seconds"]) -> dict[str, float]: ...
def lag(
    progress: Mapping[str, Any] | str | None,
    unit: Literal["bytes", "rows", "seconds"] = "bytes",
) -> dict[str, int] | dict[str, float]:
    """Return the lag of each journal of a streaming query.

    The lag is from the end of the reported batch to the write heads at that time. The lag of a
    journal with several sources is the greatest of them.

    PySpark before 4.2 doesn't report write heads; such sources and sources other than Gazette's are
    left out.

    Args:
        progress: `query.lastProgress`, which may be None, `event.progress` of a listener, or its
            JSON.
        unit: `bytes` which the query has yet to read, by default; `rows`, which are messages
            without acknowledgements; or `seconds`, the age of the first message which is yet to be
            read. Rows and seconds are known of journals whose UUIDs the query has read ahead, and
            are 0 where nothing is left; other journals are left out.

    Raises:
        ValidationError: The progress isn't JSON, or a later version of this package wrote the
            offsets.

    Example:
        behind = sum(lag(query.lastProgress).values())
        oldest = max(lag(query.lastProgress, "seconds").values(), default=0)
    """
    behind: dict[str, float] = {}
    for source in sources_of(progress):
        for name, journal in source.journals.items():
            left: float | None = getattr(journal, unit)
            if left is not None:
                behind[name] = max(behind.get(name, 0), left)
    return dict(sorted(behind.items()))
