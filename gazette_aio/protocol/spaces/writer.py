"""YAML trees written as documents, in the forms which the tools of brokers read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration
from gazette_aio.protocol.shown import shown_text
from gazette_aio.protocol.spaces.yaml_tree import Mapping, Scalar, Sequence, is_string

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.duration_pb2 import Duration

    from gazette_aio.protocol._generated.broker_pb2 import Label
    from gazette_aio.protocol.spaces.yaml_tree import Tree

_WIDTH: Final = 80
# Some readers take these for numbers of base 60.
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)


def write_document(root: Tree) -> str:
    """Return the YAML document of a tree."""
    import yaml as yaml_module  # noqa: PLC0415

    yaml: Any = yaml_module
    events = [yaml.StreamStartEvent(), yaml.DocumentStartEvent(explicit=False)]
    _add_events(yaml, root, events)
    events += [yaml.DocumentEndEvent(explicit=False), yaml.StreamEndEvent()]
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.emit(events, Dumper=dumper, allow_unicode=True, width=_WIDTH)
    # The emitter escapes control characters. Others stand in double quotes: see `_style()`.
    return shown_text(text, keep="\n\t")


def text_scalar(text: str) -> Scalar:
    """Return a string, which is quoted where it would read as another type."""
    return Scalar(0, text, is_plain=False)


def write_label(label: Label) -> Mapping:
    """Return a label with the keys `name` and `value`, and `prefix` if it's set."""
    writer = MappingWriter()
    writer.add("name", text_scalar(label.name))
    writer.add("value", text_scalar(label.value))
    if label.prefix:
        writer.flag("prefix", value=True)
    return writer.mapping


class MappingWriter:
    """Builds a mapping. Zero values, which are unset fields, are left out."""

    def __init__(self) -> None:
        self.mapping: Mapping = Mapping(0)
        """The mapping as built so far."""

    def add(self, name: str, value: Tree) -> None:
        """Add a member of any value."""
        self.mapping.pairs.append((Scalar(0, name, is_plain=True), value))

    def items(self, name: str, items: Iterable[Tree]) -> None:
        """Add a list, also an empty one."""
        self.add(name, Sequence(0, list(items)))

    def flag(self, name: str, *, value: bool | None) -> None:
        """Add a boolean, unless it's None."""
        if value is not None:
            self._plain(name, "true" if value else "false")

    def text(self, name: str, value: str) -> None:
        """Add a string, unless it's empty."""
        if value:
            self.add(name, text_scalar(value))

    def integer(self, name: str, value: int) -> None:
        """Add an integer, unless it's zero."""
        if value:
            self._plain(name, str(value))

    def enum(self, name: str, enum: Any, value: int) -> None:
        """Add the name of an enum value, or a number without a name, unless it's zero."""
        if value:
            self._plain(name, enum.Name(value) if value in enum.values() else str(value))

    def duration(self, name: str, value: Duration) -> None:
        """Add a duration, unless it's zero."""
        if nanoseconds := duration_nanoseconds(value):
            self._plain(name, format_duration(nanoseconds))

    def _plain(self, name: str, text: str) -> None:
        self.add(name, Scalar(0, text, is_plain=True))


def _add_events(yaml: Any, tree: Tree, events: list[Any]) -> None:
    match tree:
        case Scalar():
            style = None if tree.is_plain else _style(tree.text)
            events.append(yaml.ScalarEvent(None, None, (True, True), tree.text, style=style))
        case Sequence():
            events.append(yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False))
            for item in tree.items:
                _add_events(yaml, item, events)
            events.append(yaml.SequenceEndEvent())
        case Mapping():
            events.append(yaml.MappingStartEvent(None, None, implicit=True, flow_style=False))
            for name, value in tree.pairs:
                _add_events(yaml, name, events)
                _add_events(yaml, value, events)
            events.append(yaml.MappingEndEvent())


def _style(text: str) -> str | None:
    if shown_text(text, keep="\n\t") != text:
        return '"'
    if "\n" in text:
        return "|"
    # Without a style, the emitter quotes a string only if it can't be plain.
    return None if is_string(text) and not _SEXAGESIMAL.fullmatch(text) else '"'
