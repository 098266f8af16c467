"""Names of labels, and content types, which have a meaning to the protocol."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = "content-type"
"""Content type of a journal, which selects the framing of its messages."""
MESSAGE_TYPE: Final = "app.gazette.dev/message-type"
"""Type of the messages of a journal; requires `CONTENT_TYPE`."""
MESSAGE_SUBTYPE: Final = "app.gazette.dev/message-subtype"
"""Refinement of `MESSAGE_TYPE`, which it requires."""
TAG: Final = "app.gazette.dev/tag"
"""Free tag; may be given more than once."""
MANAGED_BY: Final = "app.gazette.dev/managed-by"
"""Name of the tool which manages the specification."""
INSTANCE: Final = "app.gazette.dev/instance"
"""Name of the deployment which the specification belongs to."""
REGION: Final = "app.gazette.dev/region"
"""Region which the specification belongs to."""

CONTENT_TYPE_CSV: Final = "text/csv"
CONTENT_TYPE_JSON_LINES: Final = "application/x-ndjson"
CONTENT_TYPE_PROTO_FIXED: Final = "application/x-protobuf-fixed"
CONTENT_TYPE_RECOVERY_LOG: Final = "application/x-gazette-recoverylog"

SINGLE_VALUE_LABELS: Final = frozenset(
    {CONTENT_TYPE, INSTANCE, MANAGED_BY, MESSAGE_SUBTYPE, MESSAGE_TYPE, REGION}
)
"""Labels which may have one value only."""

META_NAME: Final = "name"
"""Derived label which holds the name of a journal; never stored."""
META_PREFIX: Final = "prefix"
"""Derived label of listings which matches journal names by a prefix ending in a slash."""
