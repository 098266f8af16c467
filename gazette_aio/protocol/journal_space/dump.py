"""Journal-space trees written as YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration
from gazette_aio.protocol.journal_space.yaml_tree import is_string

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.protocol.journal_space.space import Node

_WIDTH: Final = 80
# Some readers take these for numbers of base 60.
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)


def dump_journal_space(node: Node) -> str:
    """Write a tree of journal specifications as YAML."""
    import yaml as yaml_module  # noqa: PLC0415

    yaml: Any = yaml_module
    events = [
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_Writer(yaml).node(node),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    ]
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.emit(events, Dumper=dumper, allow_unicode=True, width=_WIDTH)
    return text


class _Writer:
    """Makes the events which a tree is written by."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml

    def node(self, node: Node) -> list[Any]:
        spec = node.spec
        members: dict[str, list[Any]] = {}
        if node.comment:
            members["comment"] = self._text(node.comment)
        if node.delete is not None:
            members["delete"] = self._plain("true" if node.delete else "false")
        if spec.name:
            members["name"] = self._text(spec.name)
        self._integer(members, "replication", spec.replication)
        if spec.labels.labels:
            members["labels"] = self._list(map(self._label, spec.labels.labels))
        fragment = self._fragment(spec.fragment, has_no_stores=node.has_no_stores)
        if fragment:
            members["fragment"] = self._mapping(fragment)
        self._enum(members, "flags", pb.JournalSpec.Flag, spec.flags)
        self._integer(members, "max_append_rate", spec.max_append_rate)
        if spec.HasField("suspend"):
            suspend: dict[str, list[Any]] = {}
            self._enum(suspend, "level", pb.JournalSpec.Suspend.Level, spec.suspend.level)
            self._integer(suspend, "offset", spec.suspend.offset)
            members["suspend"] = self._mapping(suspend)
        self._integer(members, "revision", node.revision)
        if node.children:
            members["children"] = self._list(map(self.node, node.children))
        return self._mapping(members)

    def _label(self, label: pb.Label) -> list[Any]:
        members = {"name": self._text(label.name), "value": self._text(label.value)}
        if label.prefix:
            members["prefix"] = self._plain("true")
        return self._mapping(members)

    def _fragment(
        self, fragment: pb.JournalSpec.Fragment, *, has_no_stores: bool
    ) -> dict[str, list[Any]]:
        members: dict[str, list[Any]] = {}
        self._integer(members, "length", fragment.length)
        self._enum(members, "compression_codec", pb.CompressionCodec, fragment.compression_codec)
        if fragment.stores or has_no_stores:
            members["stores"] = self._list(map(self._text, fragment.stores))
        for name in ("refresh_interval", "retention", "flush_interval"):
            if nanoseconds := duration_nanoseconds(getattr(fragment, name)):
                members[name] = self._plain(format_duration(nanoseconds))
        if fragment.path_postfix_template:
            members["path_postfix_template"] = self._text(fragment.path_postfix_template)
        return members

    def _integer(self, members: dict[str, list[Any]], name: str, value: int) -> None:
        if value:
            members[name] = self._plain(str(value))

    def _enum(self, members: dict[str, list[Any]], name: str, enum: Any, value: int) -> None:
        if value:
            members[name] = self._plain(enum.Name(value) if value in enum.values() else str(value))

    def _plain(self, text: str) -> list[Any]:
        return [self._yaml.ScalarEvent(None, None, (True, True), text)]

    def _text(self, text: str) -> list[Any]:
        style: str | None
        if "\n" in text:
            style = "|"
        elif is_string(text) and not _SEXAGESIMAL.fullmatch(text):
            # The emitter quotes it nevertheless if it can't stand plainly.
            style = None
        else:
            style = '"'
        return [self._yaml.ScalarEvent(None, None, (True, True), text, style=style)]

    def _list(self, items: Iterable[list[Any]]) -> list[Any]:
        return [
            self._yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False),
            *(event for item in items for event in item),
            self._yaml.SequenceEndEvent(),
        ]

    def _mapping(self, members: dict[str, list[Any]]) -> list[Any]:
        events = [self._yaml.MappingStartEvent(None, None, implicit=True, flow_style=False)]
        for name, value in members.items():
            events += self._plain(name)
            events += value
        events.append(self._yaml.MappingEndEvent())
        return events
