"""Path postfixes of persisted fragments, which lay out stores for other tools.

A template such as `date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}` is evaluated when a
fragment is persisted. A subset of the template language is supported. Anything else is refused, so
that no wrong path is written.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol._generated.broker_pb2 import Fragment, JournalSpec, LabelSet
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.fragment import codec_name
from gazette_aio.protocol.go.template_values import Named, TemplateMethod, TemplateRecord
from gazette_aio.protocol.go.text import duration_nanoseconds, format_duration
from gazette_aio.protocol.go.time import (
    MONTHS,
    WEEKDAYS,
    ZERO_TIME,
    civil,
    format_time,
    unix_nanoseconds,
)
from gazette_aio.protocol.labels import value_of, values_of

if TYPE_CHECKING:
    from datetime import datetime

    from gazette_aio.protocol._generated.broker_pb2 import Label
    from gazette_aio.protocol.go.template_eval import Template

_VALIDATED_AS: Final = "postfix"


class PathPostfixTemplate:
    """A parsed and valid template."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The template."""
        _validate(text)
        self._template = _parse(text)

    def __repr__(self) -> str:
        return f"PathPostfixTemplate({self.text!r})"

    def render(
        self,
        *,
        fragment: Fragment,
        first_append_time: datetime | int,
        registers: LabelSet,
        spec: JournalSpec,
    ) -> str:
        """Evaluate the template for a fragment to be persisted.

        Args:
            fragment: The fragment.
            first_append_time: Time of the fragment's first append; an integer is Unix nanoseconds.
            registers: Registers of the journal.
            spec: Spec of the journal.

        Raises:
            ValidationError: The template can't be evaluated.
        """
        time = unix_nanoseconds(first_append_time)
        root = _root(fragment, time, registers, spec)
        return _execute(self._template, self.text, root)


def parse_path_postfix_template(text: str) -> PathPostfixTemplate:
    """Parse a template, and check it as brokers do when a journal is applied.

    Raises:
        ValidationError: The template isn't valid, or uses an unsupported feature.
    """
    return PathPostfixTemplate(text)


def validate_path_postfix_template(text: str) -> None:
    """Check a template as brokers do when a journal is applied.

    Raises:
        ValidationError: The template isn't valid, or uses an unsupported feature.
    """
    if text:
        _validate(text)


def render_path_postfix(
    text: str,
    *,
    fragment: Fragment,
    first_append_time: datetime | int,
    registers: LabelSet,
    spec: JournalSpec,
) -> str:
    """Parse and evaluate a template, without checking it as `PathPostfixTemplate` does.

    Raises:
        ValidationError: The template can't be parsed or evaluated.
    """
    try:
        template = _parse(text)
    except ValidationError as error:
        raise ValidationError(f"parsing PathPostfixTemplate: {error}") from None
    time = unix_nanoseconds(first_append_time)
    return _execute(template, text, _root(fragment, time, registers, spec))


# Errors aren't cached, thus neither are texts which are too long.
@functools.lru_cache(maxsize=256)
def _parse(text: str) -> Template:
    return _template(text, "")


@functools.lru_cache(maxsize=256)
def _validate(text: str) -> None:
    template = within("PathPostfixTemplate", _template, text, _VALIDATED_AS)
    within("PathPostfixTemplate", template.execute, _validation_root())


def _template(text: str, name: str) -> Template:
    # Few programs use templates, but all import this package.
    from gazette_aio.protocol.go.template_eval import Template  # noqa: PLC0415

    return Template(text, name=name)


def _execute(template: Template, text: str, root: TemplateRecord) -> str:
    try:
        return template.execute(root)
    except ValidationError as error:
        raise ValidationError(f"executing PathPostfixTemplate ({text}): {error}") from None


def _validation_root() -> TemplateRecord:
    """Return zero values in the shape by which templates are validated.

    Unlike `_root()`, the shape doesn't promote the fields of the spool.
    """
    fragment = _fragment_members(Fragment())
    spool_type = (
        "struct { protocol.Fragment; FirstAppendTime time.Time; Registers protocol.LabelSet }"
    )
    spool = TemplateRecord(
        spool_type,
        {
            **fragment,
            "Fragment": TemplateRecord("protocol.Fragment", fragment),
            "FirstAppendTime": _time(ZERO_TIME),
            "Registers": _label_set(LabelSet()),
        },
    )
    spec = _spec_members(JournalSpec())
    return TemplateRecord(
        f"struct {{ Spool {spool_type}; protocol.JournalSpec }}",
        {**spec, "Spool": spool, "JournalSpec": TemplateRecord("protocol.JournalSpec", spec)},
    )


def _root(fragment: Fragment, time: int, registers: LabelSet, spec: JournalSpec) -> TemplateRecord:
    fields = _fragment_members(fragment)
    inner = TemplateRecord("protocol.Fragment", fields)
    spool: dict[str, Any] = {
        **fields,
        "Fragment": TemplateRecord("fragment.Fragment", {**fields, "Fragment": inner}),
        "FirstAppendTime": _time(time),
        "Registers": _label_set(registers),
    }
    spec_fields = _spec_members(spec)
    members: dict[str, Any] = {**spool, **spec_fields}
    # Both sides have this field, so that neither is promoted.
    del members["Fragment"]
    members["Spool"] = TemplateRecord("fragment.Spool", spool)
    members["JournalSpec"] = TemplateRecord("protocol.JournalSpec", spec_fields)
    return TemplateRecord("struct { fragment.Spool; *protocol.JournalSpec }", members)


def _fragment_members(fragment: Fragment) -> dict[str, Any]:
    codec = fragment.compression_codec
    return {
        "Journal": fragment.journal,
        "Begin": fragment.begin,
        "End": fragment.end,
        "CompressionCodec": Named(codec, codec_name(codec)),
        "BackingStore": fragment.backing_store,
        "ModTime": fragment.mod_time,
        "PathPostfix": fragment.path_postfix,
    }


def _spec_members(spec: JournalSpec) -> dict[str, Any]:
    labels = _label_set(spec.labels)
    fragment = spec.fragment
    codec = fragment.compression_codec
    flags = JournalSpec.Flag.values()
    return {
        **labels.members,
        "Name": spec.name,
        "Replication": spec.replication,
        "LabelSet": labels,
        "Flags": Named(
            spec.flags,
            JournalSpec.Flag.Name(JournalSpec.Flag.ValueType(spec.flags))
            if spec.flags in flags
            else str(spec.flags),
        ),
        "MaxAppendRate": spec.max_append_rate,
        "Fragment": TemplateRecord(
            "protocol.JournalSpec_Fragment",
            {
                "Length": fragment.length,
                "CompressionCodec": Named(codec, codec_name(codec)),
                "Stores": list(fragment.stores),
                "RefreshInterval": _duration(duration_nanoseconds(fragment.refresh_interval)),
                "Retention": _duration(duration_nanoseconds(fragment.retention)),
                "FlushInterval": _duration(duration_nanoseconds(fragment.flush_interval)),
                "PathPostfixTemplate": fragment.path_postfix_template,
            },
        ),
    }


def _duration(nanoseconds: int) -> Named:
    return Named(nanoseconds, format_duration(nanoseconds))


def _label_set(labels: LabelSet) -> TemplateRecord:
    return TemplateRecord(
        "protocol.LabelSet",
        {
            "Labels": lambda: [_label(label) for label in labels.labels],
            "ValueOf": TemplateMethod(lambda name: value_of(labels, name)),
            "ValuesOf": TemplateMethod(lambda name: values_of(labels, name) or []),
        },
    )


def _label(label: Label) -> TemplateRecord:
    prefix = "true" if label.prefix else "false"
    return TemplateRecord(
        "protocol.Label",
        {"Name": label.name, "Value": label.value, "Prefix": label.prefix},
        lambda: f"{{{label.name} {label.value} {prefix}}}",
    )


def _time(nanoseconds: int) -> TemplateRecord:
    """Return a time, which is always UTC."""
    return TemplateRecord(
        "time.Time",
        {
            "Day": lambda: civil(nanoseconds).day,
            "Format": TemplateMethod(lambda layout: format_time(nanoseconds, layout)),
            "Hour": lambda: civil(nanoseconds).hour,
            "IsZero": lambda: nanoseconds == ZERO_TIME,
            "Minute": lambda: civil(nanoseconds).minute,
            "Month": lambda: _month(civil(nanoseconds).month),
            "Nanosecond": lambda: civil(nanoseconds).nanosecond,
            "Second": lambda: civil(nanoseconds).second,
            "String": lambda: format_time(nanoseconds),
            "UTC": lambda: _time(nanoseconds),
            "Unix": lambda: nanoseconds // 1_000_000_000,
            "UnixMicro": lambda: nanoseconds // 1_000,
            "UnixMilli": lambda: nanoseconds // 1_000_000,
            "UnixNano": lambda: nanoseconds,
            "Weekday": lambda: _weekday(civil(nanoseconds).weekday),
            "Year": lambda: civil(nanoseconds).year,
            "YearDay": lambda: civil(nanoseconds).year_day,
        },
        lambda: format_time(nanoseconds),
    )


def _month(month: int) -> Named:
    return Named(month, MONTHS[month - 1])


def _weekday(weekday: int) -> Named:
    # Go's weeks begin with Sunday, Python's with Monday.
    return Named((weekday + 1) % 7, WEEKDAYS[weekday])
