"""YAML documents of specs, in the forms that the tools of brokers read."""

from __future__ import annotations

import functools
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration
from gazette_aio.protocol.shown import shown_text
from gazette_aio.protocol.spaces.reader import FLAGS, PRESENT

_WIDTH: Final = 80
_ALWAYS: Final = frozenset({"protocol.Label.name", "protocol.Label.value"})
# Words that the tools of brokers take for booleans, and PyYAML doesn't.
_WORDS: Final = frozenset({"y", "Y", "n", "N"})


def message_form(message: Message) -> dict[str, Any]:
    """Return a message as values of YAML. Zero values, which are unset fields, are left out."""
    form: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = _form(getattr(message, field.name))
        if (enum := field.enum_type or FLAGS.get(field.full_name)) and value:
            known = enum.values_by_number.get(value)
            value = value if known is None else known.name
        present = field.full_name in PRESENT and message.HasField(field.name)
        if value or present or field.full_name in _ALWAYS:
            form[field.name] = value
    return form


def _form(value: Any) -> Any:
    match value:
        case Duration():
            nanoseconds = duration_nanoseconds(value)
            return format_duration(nanoseconds) if nanoseconds else None
        case pb.LabelSet():
            return list(map(message_form, value.labels))
        case Message():
            return message_form(value)
        case str() | int():
            return value
        case _:
            return list(map(_form, value))


def write_document(form: dict[str, Any]) -> str:
    """Return the YAML document of a mapping, with strings quoted that read as another type."""
    import yaml  # noqa: PLC0415

    text: str = yaml.dump(form, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=_WIDTH)
    # The dumper escapes control characters. Others stand in double quotes: see `_represent()`.
    return shown_text(text, keep="\n\t")


@functools.cache
def _dumper() -> Any:
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def represent(dumper: Any, text: str) -> Any:
        tag = "tag:yaml.org,2002:str"
        style = "|" if "\n" in text else None
        if (
            shown_text(text, keep="\n\t") != text
            or text in _WORDS
            or dumper.resolve(yaml.ScalarNode, text, (True, False)) != tag
        ):
            style = '"'
        # Without a style, a string is quoted only if it can't be plain.
        return dumper.represent_scalar(tag, text, style=style)

    text_dumper: Any = type("Dumper", (base,), {})
    text_dumper.add_representer(str, represent)
    return text_dumper
