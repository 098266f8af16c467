"""Differences between specs that are applied and specs that brokers or members have."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf import json_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.protocol import consumer as pc
    from gazette_aio.protocol._generated import broker_pb2 as pb

    Spec = pb.JournalSpec | pc.ShardSpec

_NO_TIME: Final = "0s"
"""A duration that is set to its default, as brokers return it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpecChange:
    """Change of one journal or shard."""

    name: str
    action: str
    """`create`, `update`, `delete` or `keep`."""
    fields: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    """Old and new values by the path of the field; None for no value."""
    conflict: str = ""
    """Why the change is refused, or empty."""


def compare(
    changes: Iterable[pb.ApplyRequest.Change | pc.ApplyRequest.Change],
    present: Mapping[str, pb.ListResponse.Journal | pc.ListResponse.Shard],
) -> list[SpecChange]:
    """Return what changes do to journals, or to shards.

    Args:
        changes: Changes of an ApplyRequest.
        present: Journals or shards that exist, by name.
    """
    compared: list[SpecChange] = []
    for change in changes:
        upserts = change.HasField("upsert")
        name = spec_name(change.upsert) if upserts else change.delete
        found = present.get(name)
        conflict = _conflict(change.expect_mod_revision, 0 if found is None else found.mod_revision)
        if not upserts:
            compared.append(SpecChange(name, "delete", {}, conflict))
            continue
        old = {} if found is None else _fields(found.spec)
        new = _fields(change.upsert)
        changed = {
            path: (old.get(path), new.get(path))
            for path in sorted(old.keys() | new.keys())
            if old.get(path) != new.get(path)
        }
        action = "create" if found is None else "update" if changed else "keep"
        compared.append(SpecChange(name, action, changed, conflict))
    return compared


def spec_name(spec: Spec) -> str:
    """Return the name of a journal, or the ID of a shard."""
    name: str = getattr(spec, _name_field(spec))
    return name


def _name_field(spec: Spec) -> str:
    return "id" if "id" in spec.DESCRIPTOR.fields_by_name else "name"


def _conflict(expected: int, present: int) -> str:
    if expected in {-1, present}:
        return ""
    if not present:
        return f"revision {expected} is expected, but there's none"
    if not expected:
        return f"exists already, at revision {present}"
    return f"revision {expected} is expected, but it's {present}"


def _fields(spec: Spec) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    _flatten(json_format.MessageToDict(spec, preserving_proto_field_name=True), "", fields)
    del fields[_name_field(spec)]
    fields.pop("labels.labels", None)
    for label in spec.labels.labels:
        earlier = fields.get(path := f"labels.{label.name}")
        fields[path] = label.value if earlier is None else f"{earlier}, {label.value}"
    return fields


def _flatten(value: dict[str, Any], path: str, into: dict[str, Any]) -> None:
    for name, each in value.items():
        if isinstance(each, dict):
            _flatten(cast("dict[str, Any]", each), f"{path}{name}.", into)
        elif each != _NO_TIME:
            into[path + name] = each


def lines_of(changes: Iterable[SpecChange]) -> list[str]:
    """Return changes as lines: `+` creates, `-` deletes, `~` updates, and `=` keeps."""
    signs = {"create": "+", "delete": "-", "update": "~", "keep": "="}
    lines: list[str] = []
    for change in changes:
        lines.append(f"{signs[change.action]} {change.name}")
        for path, (old, new) in change.fields.items():
            match old, new:
                case None, _:
                    lines.append(f"    + {path}: {_shown(new)}")
                case _, None:
                    lines.append(f"    - {path}: {_shown(old)}")
                case _:
                    lines.append(f"    {path}: {_shown(old)} -> {_shown(new)}")
        if change.conflict:
            lines.append(f"    ! {change.conflict}: this would be refused")
    return lines


def _shown(value: Any) -> str:
    match value:
        case list():
            return ", ".join(map(_shown, cast("list[object]", value)))
        case dict():
            members = cast("dict[str, Any]", value).items()
            return " ".join(f"{name}={_shown(each)}" for name, each in members)
        case _:
            return str(value)
