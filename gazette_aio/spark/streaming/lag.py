"""Lag of a streaming query, from the progress which Spark reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.spark.streaming.offsets import Offsets, is_recreated


def lag(progress: Mapping[str, Any] | str | None) -> dict[str, int]:
    """Return the number of bytes of each journal which a streaming query has yet to read.

    The lag is from the end of the reported batch to the write heads at that time. The lag of a
    journal with several sources is the greatest of them.

    PySpark before 4.2 doesn't report write heads; such sources and sources other than Gazette's are
    left out.

    Args:
        progress: `query.lastProgress`, which may be None, `event.progress` of a listener, or its
            JSON.

    Raises:
        ValidationError: The progress isn't JSON, or a later version of this package wrote the
            offsets.

    Example:
        behind = sum(lag(query.lastProgress).values())
    """
    behind: dict[str, int] = {}
    for source in _sources(progress):
        ended, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if ended is None or latest is None:
            continue
        for name, head in latest.journals.items():
            revision = latest.revisions.get(name, 0)
            known = name in ended.journals and not is_recreated(ended, name, revision, head)
            left = head - ended.journals[name] if known else head
            behind[name] = max(behind.get(name, 0), left)
    return dict(sorted(behind.items()))


def _sources(progress: Mapping[str, Any] | str | None) -> list[Mapping[str, Any]]:
    if progress is None:
        return []
    if isinstance(progress, str):
        try:
            parsed: object = json.loads(progress)
        except ValueError as error:
            raise ValidationError(f"not the progress of a query: {error}") from error
        if not isinstance(parsed, Mapping):
            raise ValidationError("not the progress of a query: it isn't an object")
        progress = cast("Mapping[str, Any]", parsed)
    return cast("list[Mapping[str, Any]]", progress.get("sources") or [])


def _offsets(value: object) -> Offsets | None:
    """Return offsets of Gazette's source, which Spark reports as text or object; or None."""
    if isinstance(value, str):
        try:
            value = cast("object", json.loads(value))
        except ValueError:
            return None
    if not (isinstance(value, Mapping) and {"v", "j"} <= value.keys()):
        return None
    return Offsets.parse(cast("Mapping[str, Any]", value))
