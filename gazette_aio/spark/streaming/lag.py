"""How far a streaming query is behind, from what Spark tells of its progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.spark.streaming.offsets import Offsets, is_recreated


def lag(progress: Mapping[str, Any] | str | None) -> dict[str, int]:
    """Return how many bytes of each journal a streaming query has yet to read.

    It's as of the end of the batch that the progress is of: from there up to the write heads as
    they were then. A journal which several sources read is as far behind as the last of them.

    PySpark before 4.2 has no write heads in what it tells; nor have sources other than Gazette's.
    They're left out.

    Args:
        progress: `query.lastProgress`, which may be None, `event.progress` of a listener, or its
            JSON.

    Raises:
        ValidationError: It isn't JSON, or offsets are of a later version of this package.

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
    """Return offsets of ours, which Spark tells as text or as an object; or None."""
    if isinstance(value, str):
        try:
            value = cast("object", json.loads(value))
        except ValueError:
            return None
    if not (isinstance(value, Mapping) and {"v", "j"} <= value.keys()):
        return None
    return Offsets.parse(cast("Mapping[str, Any]", value))
