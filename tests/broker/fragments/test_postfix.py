"""Templates of path postfixes, and layouts of times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.postfix import check_template, format_time, render_path_postfix
from tests import extent, golden, known_differences
from tests.protocol import support

TIME = datetime(2024, 2, 29, 5, 6, 7, 89, tzinfo=UTC)
SPEC = pb.JournalSpec(name="a/journal", labels=pb.label_set("topic", "one", "topic", "two"))
FRAGMENT = pb.Fragment(
    journal="a/journal", begin=0x1234, end=0x5678, compression_codec=pb.CompressionCodec.GZIP
)


def rendered(template: str) -> str:
    return render_path_postfix(
        template,
        fragment=FRAGMENT,
        first_append_time=TIME,
        registers=pb.label_set("region", "eu"),
        spec=SPEC,
    )


def golden_result(case: dict[str, Any]) -> str | None:
    """Return the postfix of a golden case, or None if its template is refused."""
    microseconds = support.unix_nanoseconds(case["first_append_time"]) // 1000
    try:
        check_template(case["template"])
    except pb.ValidationError:
        return None
    return render_path_postfix(
        case["template"],
        fragment=support.fragment(case["fragment"]),
        first_append_time=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds),
        registers=support.labels(case["registers"]),
        spec=support.spec(case["spec"]),
    )


def test_golden_templates():
    differing: set[str] = set()
    for case in golden.load("fragments.json")["path_postfix"]:
        refused = case["spec_validation_error"] is not None
        # A template that can't be evaluated has an error in place of its result.
        expected = None if refused else case.get("result", case["error"])
        if golden_result(case) != expected:
            differing.add(case["template"])
    assert differing == set(known_differences.PATH_POSTFIXES)


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("{{.Spool.Begin}}-{{ .Spool.End }}", "4660-22136"),
        ("{{ .Spool.Journal }}|{{ .Name }}|{{ .JournalSpec.Name }}", "|".join(["a/journal"] * 3)),
        ('{{ .ValueOf "topic" }}{{ .JournalSpec.ValueOf "topic" }}', "oneone"),
        ('{{ .LabelSet.ValueOf "topic" }}{{ .JournalSpec.LabelSet.ValueOf "topic" }}', "oneone"),
        ('{{ .Spool.Registers.ValueOf "region" }}-{{ .Spool.Registers.ValueOf "no" }}', "eu-"),
        ("{{ .Spool.CompressionCodec }}", "GZIP"),
        ("{{ .Spool.FirstAppendTime.Year }}/{{ .Spool.FirstAppendTime.YearDay }}", "2024/60"),
        ("{{\n.Spool.FirstAppendTime.Format\t`2006-01-02`}}", "2024-02-29"),
        ('{{ .Spool.FirstAppendTime.Format "}}{{" }}', "}}{{"),
        ("a}}b{c", "a}}b{c"),
    ],
)
def test_results(template: str, result: str):
    assert rendered(template) == result


def test_the_guide_shows_actions_that_are_known():
    guide = Path(__file__).parents[3] / "docs" / "broker.md"
    actions = re.findall(r"`(\{\{ .*? \}\})`", guide.read_text("utf-8"))
    assert len(actions) == 12
    for action in actions:
        check_template(action)


@pytest.mark.parametrize(
    "action",
    [
        *("{{}}", "{{ }}", "{{ .Name", "{{ . }}", "{{ Name }}", "{{ .Nope }}", "{{ .Name.Nope }}"),
        *("{{- .Name }}", "{{ .Name -}}", "{{{ .Name }}", "{{ .Name . }}", "{{ .Name .Name }}"),
        *(
            '{{ "x" }}',
            '{{ .Name "x" }}',
            "{{ .ValueOf }}",
            '{{ .ValueOf"x" }}',
            "{{ .ValueOf 3 }}",
        ),
        *(
            '{{ .ValueOf "x" "y" }}',
            '{{ .ValueOf "x',
            '{{ .ValueOf "\\n" }}',
            '{{ .ValueOf "\n" }}',
        ),
        *("{{ .ValueOf `x }}", "{{/* note */}}", "{{ $x := 1 }}", "{{ .Begin }}", "{{ .Spool }}"),
        *(
            '{{ printf "%x" .Spool.Begin }}',
            "{{ if .Name }}",
            "{{ with .Name }}",
            "{{ .Name | len }}",
        ),
    ],
)
def test_an_action_that_is_not_known_is_named(action: str):
    with pytest.raises(pb.ValidationError, match=re.escape(f"unsupported {action!r}; ")):
        check_template(f"{{{{ .Name }}}}/{action}")


def test_a_long_action_is_not_repeated():
    with pytest.raises(pb.ValidationError) as raised:
        check_template("{{" + " .Name" * 100_000)
    assert len(str(raised.value)) < 1000


@extent.examples(100)
@given(
    st.lists(
        st.sampled_from(
            ["{{", "}}", "{", "}", " ", "\n", ".", ".Name", ".Spool.Begin", ".ValueOf", '"a"', "`"]
        )
        | st.text(max_size=3),
        max_size=20,
    ).map("".join)
)
def test_any_template_is_known_or_refused(template: str):
    try:
        check_template(template)
    except pb.ValidationError:
        return
    assert rendered(template) == rendered(template + "/{{ .Name }}").removesuffix("/a/journal")


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("2006-01-02T15:04:05Z07:00", "2023-11-14T22:13:20Z"),
        ("Mon, 02 Jan 2006 15:04:05 MST", "Tue, 14 Nov 2023 22:13:20 UTC"),
        ("Monday January _2 3:4:5PM pm 06", "Tuesday November 14 10:13:20PM pm 23"),
        ("03 002 __2 1 2", "10 318 318 11 14"),
        (".000 ,000000 .999 .999999999 .9999", ".123 ,123450 .123 .12345 .1234"),
        ("-0700 -07:00 -07 Z0700 Z07 -07:00:00 -070000", "+0000 +00:00 +00 Z Z +00:00:00 +000000"),
        ("year=2006/_2006", "year=2023/_2023"),
        ("Month Janet Money", "Month Janet Money"),
        (".0001 .0x", ".0011 .1x"),
        ("日 é", "日 é"),
    ],
)
def test_layouts(layout: str, text: str):
    assert format_time(datetime(2023, 11, 14, 22, 13, 20, 123450, tzinfo=UTC), layout) == text


def test_fractions_which_are_zero():
    assert format_time(datetime(1970, 1, 1, tzinfo=UTC), "05.999|05.000|05,9") == "00|00.000|00"


@given(st.datetimes(timezones=st.just(UTC)))
def test_dates_are_those_of_the_library(time: datetime):
    names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert format_time(time, "2006-01-02 15:04:05.000000 002 Mon") == (
        f"{time.year:04}-{time.month:02}-{time.day:02} {time:%H:%M:%S.%f} "
        f"{time.timetuple().tm_yday:03} {names[time.weekday()]}"
    )
