"""Templates of path postfixes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.postfix import (
    parse_path_postfix_template,
    render_path_postfix,
    validate_path_postfix_template,
)
from tests import extent
from tests.protocol.support import error_of

FRAGMENT = pb.Fragment(
    journal="a/journal", begin=0x1234, end=0x5678, compression_codec=pb.CompressionCodec.GZIP
)
SPEC = pb.JournalSpec(
    name="a/journal",
    replication=3,
    labels=pb.label_set("content-type", "text/csv", "topic", "one", "topic", "two"),
    flags=pb.JournalSpec.O_RDWR,
    fragment=pb.JournalSpec.Fragment(length=5, refresh_interval=pb.duration_proto(60 * 10**9)),
)
TIME = datetime(2024, 2, 29, 5, 6, 7, 89, tzinfo=UTC)


def arguments() -> dict:
    return {
        "fragment": FRAGMENT,
        "first_append_time": TIME,
        "registers": pb.label_set("region", "eu"),
        "spec": SPEC,
    }


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("", ""),
        ("a/b", "a/b"),
        ('date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}', "date=2024-02-29"),
        ("{{ .Spool.Begin }}-{{ .Spool.End }}", "4660-22136"),
        (
            "{{ .Spool.Journal }}|{{ .Name }}|{{ .JournalSpec.Name }}",
            "a/journal|a/journal|a/journal",
        ),
        ('{{ .Spool.Registers.ValueOf "region" }}', "eu"),
        ('{{ .JournalSpec.LabelSet.ValueOf "topic" }}', "one"),
        ('{{ .JournalSpec.LabelSet.ValuesOf "topic" }}', "[one two]"),
        ("{{ .JournalSpec.Replication }} {{ .JournalSpec.Flags }}", "3 O_RDWR"),
        ("{{ .JournalSpec.Fragment.RefreshInterval }}", "1m0s"),
        ("{{ .Spool.CompressionCodec }}", "GZIP"),
        ("{{ .Spool.FirstAppendTime.UTC.Year }}", "2024"),
        ("{{ .Spool.FirstAppendTime.YearDay }}", "60"),
        ("{{ .Spool.FirstAppendTime.Day }}", "29"),
        ("{{ .Spool.FirstAppendTime.Nanosecond }}", "89000"),
        ("{{ .Spool.FirstAppendTime.IsZero }}", "false"),
        ("{{ .Spool.FirstAppendTime.Weekday }}", "Thursday"),
        ("{{ printf `%d` .Spool.FirstAppendTime.Weekday }}", "4"),
        ('{{ printf "%016x" .Spool.Begin }}', "0000000000001234"),
        (
            '{{ printf "%-5d|%+d|%5s|%x|%X|%o|%b|%%|%q|%v|%t" 1 2 "a" 255 255 8 5 "q" 7 true }}',
            '1    |+2|    a|ff|FF|10|101|%|"q"|7|true',
        ),
        ('{{ printf "%.2s|%5.1s|%05d|% d" "abc" "xyz" -42 7 }}', "ab|    x|-0042| 7"),
        ('{{ .Spool.Begin | printf "%d" }}', "4660"),
        ('{{ "2006" | .Spool.FirstAppendTime.Format }}', "2024"),
        ("{{ print 1 2 `a` `b` 3 4 }}", "1 2ab3 4"),
        ("{{ println `x` 1 }}", "x 1\n"),
        (
            '{{ if eq (.Spool.Registers.ValueOf "region") "us" "eu" }}yes{{ else }}no{{ end }}',
            "yes",
        ),
        ('{{ if .Spool.Registers.ValueOf "none" }}yes{{ else }}no{{ end }}', "no"),
        ("{{ if false }}a{{ else if 0 }}b{{ else if 1 }}c{{ else }}d{{ end }}", "c"),
        ("{{ if false }}a{{ else with `x` }}{{ . }}{{ end }}", "x"),
        ('{{ with .Spool.Registers.ValueOf "none" }}a{{ else }}b{{ end }}', "b"),
        ("{{ with .Spool.FirstAppendTime }}{{ .Month }}/{{ .Hour }}{{ end }}", "February/5"),
        (
            "{{ with .JournalSpec }}{{ with .LabelSet }}{{ .ValueOf `topic` }}{{ end }}{{ end }}",
            "one",
        ),
        ("{{ (.Spool.Registers.ValueOf `region`) }}", "eu"),
        ("{{ (.Spool.FirstAppendTime.UTC).Year }}", "2024"),
        ("{{ ne 1 2 }} {{ lt 1 2 }} {{ ge `b` `a` }} {{ not `` }}", "true true true true"),
        ("{{ and 1 0 2 }} {{ or 0 `` 3 }} {{ and 0 (index .Labels 99) }}", "0 3 0"),
        ("{{ len `é` }} {{ len .Labels }}", "2 3"),
        ("a {{- /* note */ -}} b", "ab"),
        ("a {{- `x` -}} \n b", "axb"),
        ("a {{/* }} */}} b", "a  b"),
        ('{{ `}}` }}{{ "\\"\\u00e9\\n" }}', '}}"é\n'),
        ("{{ 0x10 }} {{ -3 }} {{ 010 }}", "16 -3 8"),
        ("{{\n`x`\n}}", "x"),
    ],
)
def test_results(template: str, result: str):
    assert render_path_postfix(template, **arguments()) == result


@pytest.mark.parametrize(
    "template",
    [
        "{{ range .Labels }}{{ end }}",
        '{{ define "x" }}{{ end }}',
        '{{ template "x" }}',
        "{{ $x := 1 }}",
        "{{ $.Name }}",
        "{{ html `x` }}",
        "{{ nil }}",
        "{{ 1.5 }}",
        "{{ 'c' }}",
        "{{ 99999999999999999999 }}",
        "{{ 09 }}",
        "{{ if true }}x",
        "{{ else }}",
        "{{ if true }}{{ else }}{{ else }}{{ end }}",
        "{{ end }}",
        "{{ if true }}{{ end 5 }}",
        "{{ if true }}{{ else 5 }}{{ end }}",
        "{{ if }}x{{ end }}",
        "{{ }}",
        "{{ | }}",
        "{{ 1 | 2 }}",
        "{{ 1 2 }}",
        "{{ (1 }}",
        "{{ 1) }}",
        "{{ .Name.Nope }}",
        "{{ `x`.Nope }}",
        "{{ .Name 5 }}",
        '{{ .Spool.FirstAppendTime.Format "a" "b" }}',
        "{{ .Spool.FirstAppendTime.Format 3 }}",
        "{{ .Spool }}",
        "{{ .JournalSpec }}",
        "{{ eq 1 `a` }}",
        "{{ eq .Spool 1 }}",
        "{{ eq 1 }}",
        "{{ lt true false }}",
        "{{ and }}",
        "{{ index .Labels 5 }}",
        "{{ index .Labels `x` }}",
        "{{ index `x` 0 }}",
        "{{ len 5 }}",
        "{{ printf 5 }}",
        "{{ printf `%d` }}",
        "{{ printf `%d` `x` }}",
        "{{ printf `%z` 1 }}",
        "{{ printf `%` 1 }}",
        "{{ printf `x` 1 }}",
        "{{ printf `%999999999d` 1 }}",
        "{{ print .Spool }}",
        '{{ "unclosed }}',
        "{{ `unclosed }}",
        '{{ "\\q" }}',
        '{{ "\\xff" }}',
        "{{/* unclosed }}",
        "{{/* x */ y }}",
        "{{ .Spool.Begin.End }}",
        "{{ .Begin.Nope }}",
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{{ if 1 }}" * 500 + "{{ end }}" * 500,
        "{{ é }}",
        "{{ a-b }}",
        "{{ @ }}",
    ],
)
def test_whatever_is_not_known_is_refused(template: str):
    error = error_of(render_path_postfix, template, **arguments())
    assert error is not None
    assert error.startswith(
        ("parsing PathPostfixTemplate: template: :", "executing PathPostfixTemplate (")
    )
    error = error_of(parse_path_postfix_template, template)
    assert error is not None
    assert error.startswith("PathPostfixTemplate: template: postfix:")


def test_errors_name_the_line():
    error = error_of(parse_path_postfix_template, "a\nb\n  {{ .Nope }}")
    assert error is not None
    assert error.startswith(
        'PathPostfixTemplate: template: postfix:3:5: executing "postfix" at <.Nope>: '
        "can't evaluate field Nope in type "
    )


@pytest.mark.parametrize("doubled", ["print . .", 'printf "%q%q" . .', 'printf "%v%s" . .'])
def test_texts_do_not_grow_without_limit(doubled: str):
    text = '{{with "aaaaaaaa"}}' + f"{{{{with {doubled}}}}}" * 60 + "{{end}}" * 61
    with pytest.raises(pb.ValidationError, match="text of more than 1024 characters"):
        parse_path_postfix_template(text)


def test_long_values_are_not_printed():
    values = arguments()
    values["spec"].fragment.stores.append(f"s3://{'x' * 1024}/")
    for text in ("{{ .JournalSpec.Fragment.Stores }}", "{{ print .JournalSpec.Fragment.Stores }}"):
        template = parse_path_postfix_template(text)
        with pytest.raises(pb.ValidationError, match="text of more than 1024 characters"):
            template.render(**values)


@pytest.mark.parametrize("piece", ["{{ 1 }}", "literal/"])
def test_a_template_has_a_limit(piece: str):
    longest = piece * (4096 // len(piece))
    validate_path_postfix_template(longest)
    with pytest.raises(pb.ValidationError, match="more than 4096 characters"):
        validate_path_postfix_template(longest + piece)


def test_a_template_is_checked_when_it_is_made():
    template = parse_path_postfix_template("{{ .Spool.Begin }}")
    assert repr(template) == "PathPostfixTemplate('{{ .Spool.Begin }}')"
    assert template.render(**arguments()) == "4660"
    # What is promoted when it's evaluated isn't when it's checked.
    assert render_path_postfix("{{ .Begin }}", **arguments()) == "4660"
    with pytest.raises(pb.ValidationError, match="can't evaluate field Begin"):
        parse_path_postfix_template("{{ .Begin }}")


@extent.examples(100)
@given(
    st.text(max_size=30)
    | st.lists(
        st.sampled_from(
            [
                "{{",
                "}}",
                "{{- ",
                " -}}",
                "/*",
                "*/",
                "if ",
                "else ",
                "end ",
                "with ",
                ".Spool",
                ".Begin",
                ".Labels",
                " ",
                "(",
                ")",
                "|",
                "`a`",
                '"%d"',
                "printf ",
                "eq ",
                "index ",
                "1 ",
                "x",
                "\n",
                ".",
            ]
        ),
        max_size=20,
    ).map("".join)
)
def test_any_text_is_a_template_or_a_validation_error(template):
    error = error_of(render_path_postfix, template, **arguments())
    if error is None and error_of(parse_path_postfix_template, template) is None:
        built = parse_path_postfix_template(template)
        assert built.render(**arguments()) == render_path_postfix(template, **arguments())
