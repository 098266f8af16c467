"""Labels and content types which the protocol defines."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = "content-type"
"""Content type of a journal, which selects the framing of its messages."""
MESSAGE_TYPE: Final = "app.gazette.dev/message-type"
"""Type of the messages of a journal; requires `CONTENT_TYPE`."""
MESSAGE_SUBTYPE: Final = "app.gazette.dev/message-subtype"
"""Refinement of `MESSAGE_TYPE`; requires that label."""
TAG: Final = "app.gazette.dev/tag"
"""Free tag; may have several values."""
MANAGED_BY: Final = "app.gazette.dev/managed-by"
"""Name of the tool which manages the spec."""
INSTANCE: Final = "app.gazette.dev/instance"
"""Name of the spec's deployment."""
REGION: Final = "app.gazette.dev/region"
"""Region of the spec."""

CONTENT_TYPE_CSV: Final = "text/csv"
CONTENT_TYPE_JSON_LINES: Final = "application/x-ndjson"
CONTENT_TYPE_PROTO_FIXED: Final = "application/x-protobuf-fixed"
CONTENT_TYPE_RECOVERY_LOG: Final = "application/x-gazette-recoverylog"

SINGLE_VALUE_LABELS: Final = frozenset(
    {CONTENT_TYPE, INSTANCE, MANAGED_BY, MESSAGE_SUBTYPE, MESSAGE_TYPE, REGION}
)
"""Labels which can't have several values."""

META_NAME: Final = "name"
"""Derived label with the name of a journal; never stored."""
META_PREFIX: Final = "prefix"
"""Derived label of listings, which matches journal names by a prefix that ends in a slash."""
META_ID: Final = "id"
"""Derived label with the ID of a shard; never stored."""
