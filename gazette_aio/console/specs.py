"""Edits of journal specs: the text to edit, the change that an edit asks for, its differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

import gazette_aio.protocol as pb
from gazette_aio.protocol.journal_space.differences import compare

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT: Final = 64 << 10
"""Most characters of a spec."""

_SOURCE: Final = "spec"


class SpecEdit(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An edited spec."""

    name: str
    """Journal that is edited, or created."""
    revision: str
    """Revision that the edit is based on; `0` creates the journal."""
    text: str


def spec_text(journal: pb.ListResponse.Journal) -> dict[str, str]:
    """Return the spec of a listed journal as YAML without its revision, which an edit expects."""
    text = pb.dump_journal_space(pb.Node(spec=journal.spec))
    return {"name": journal.spec.name, "revision": str(journal.mod_revision), "text": text}


def edit_request(edit: SpecEdit) -> pb.ApplyRequest:
    """Return the request of an edit. Long texts take long to parse.

    Raises:
        ValidationError: The text isn't the spec of this journal, or isn't valid.
    """
    if len(edit.text) > MAX_TEXT:
        raise pb.ValidationError(f"a spec has at most {MAX_TEXT} characters")
    if not (edit.revision.isascii() and edit.revision.isdigit() and len(edit.revision) < 19):
        raise pb.ValidationError("expected the revision that the edit is based on")
    pb.validate_journal(edit.name, allow_parent=False)
    request = pb.load_journal_space(edit.text, source=_SOURCE).to_apply_request()
    if len(request.changes) != 1 or not request.changes[0].HasField("upsert"):
        raise pb.ValidationError("expected the spec of one journal, without `delete`")
    [change] = request.changes
    if change.upsert.name != edit.name:
        raise pb.ValidationError(f"expected the spec of {edit.name}: journals can't be renamed")
    revision = int(edit.revision)
    if change.expect_mod_revision not in (0, revision):
        raise pb.ValidationError("the text has another revision than the edit: leave it out")
    # Invariant: an edit never applies to a spec that the browser didn't show.
    change.expect_mod_revision = revision
    pb.validate(change.upsert)
    return request


def review(
    request: pb.ApplyRequest, present: Mapping[str, pb.ListResponse.Journal]
) -> dict[str, Any]:
    """Return the effect that the request of an edit would have.

    Args:
        request: The request.
        present: The present journal by its name; empty if it doesn't exist.

    Returns:
        The `action`, which is `create`, `update` or `keep`; the `fields` that it changes, with
        None for no value; and `conflict`, the reason for which brokers would refuse it, or empty.
    """
    [change] = compare(request.changes, present)
    fields = [
        {"path": path, "old": _shown(old), "new": _shown(new)}
        for path, (old, new) in change.fields.items()
    ]
    return {"action": change.action, "fields": fields, "conflict": change.conflict}


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    return ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
