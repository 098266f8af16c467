"""The gateway's pure parts: targets, queries, headers, JSON forms, texts."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.gateway import answers, json_form, target
from gazette_aio.broker.gateway.metrics_text import metrics_text

_ROUTE = pb.Route(
    members=[pb.ProcessSpec.ID(zone="a", suffix="one"), pb.ProcessSpec.ID(zone="b", suffix="two")],
    primary=1,
    endpoints=["http://one:80", "http://two:81/base/"],
)
_FRAGMENT = pb.Fragment(
    journal="a/journal",
    begin=5,
    end=9,
    sum=pb.sha1_sum(b"abcd"),
    compression_codec=pb.CompressionCodec.NONE,
)


@pytest.mark.parametrize(
    ("text", "path", "text_query"),
    [
        ("/a/b?x=1?y", "/a/b", "x=1?y"),
        ("/a%20b/%e2%82%ac", "/a b/€", ""),
        ("/a+b;meta", "/a+b;meta", ""),
        ("http://host:80/a?b", "/a", "b"),
        ("http://host?b", "/", "b"),
        ("*", "*", ""),
        ("/%ff", "/\ufffd", ""),
        ("/\udcff", "/\ufffd", ""),
        ("/%zz/a%2", "/%zz/a%2", ""),
    ],
)
def test_targets_are_split_and_unescaped(text: str, path: str, text_query: str) -> None:
    assert target.parse_target(text) == (path, text_query)


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/", None),
        ("/a/b", None),
        ("/a/b/", None),
        ("*", None),
        ("//", "/"),
        ("//evil.example/a", "/evil.example/a"),
        ("/a//b?x=%41&y", "/a/b?x=%41&y"),
        ("/a/../../b/./c/", "/b/c/"),
        ("/a/%2e%2e/b%20c", "/b%20c"),
        ("/a//\\\r\n", "/a/%5C%0D%0A"),
        ("/a//b?\r\n\xe9", "/a/b?%0D%0A%C3%A9"),
    ],
)
def test_unclean_paths_are_redirected(text: str, location: str | None) -> None:
    moved = target.redirect(target.parse_target(text))
    assert (moved and moved[0]) == location


def test_the_page_of_a_redirect_is_escaped() -> None:
    _, page = target.redirect(target.parse_target("//a?\"'<&>")) or ("", "")
    assert page == ('<a href="/a?&quot;&#x27;&lt;&amp;&gt;">Temporary Redirect</a>.\n\n')


@given(st.binary(max_size=60))
@example(b"/%5cevil.example/..//a")
def test_any_target_has_a_safe_location(received: bytes) -> None:
    moved = target.redirect(target.parse_target("/" + received.decode("utf-8", "surrogateescape")))
    if moved is not None:
        location, _ = moved
        assert location.isascii()
        assert location.isprintable()
        assert location[0] == "/"
        assert location[:2] != "//"
        assert target.redirect(target.parse_target(location)) is None


@pytest.mark.parametrize(
    ("text", "offset", "block"),
    [
        ("", 0, False),
        ("offset=123&block=true", 123, True),
        ("offset=-1&Block=on&", -1, True),
        ("OFFSET=%2B5&block=0", 5, False),
        ("offset=1&offset=2", 2, False),
        ("offset=&block=", 0, False),
        ("block=T", 0, True),
        ("offset=9223372036854775807", (1 << 63) - 1, False),
    ],
)
def test_queries_of_reads(text: str, offset: int, block: bool) -> None:
    assert target.parse_read_query(text) == (offset, block)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("extra=1", "extra"),
        ("extra", "extra"),
        ("offset=foobar", "offset"),
        ("Offset=1_0", "Offset"),
        ("offset=9223372036854775808", "offset"),
        ("block=maybe", "block"),
        ("offset=%zz", "offset"),
        ("offset=1;block=1", "offset"),
        ("extra" * 99, "extra"),
    ],
)
def test_invalid_queries_of_reads(text: str, named: str) -> None:
    with pytest.raises(target.QueryError, match=named) as raised:
        target.parse_read_query(text)
    assert len(str(raised.value)) < 120


@given(st.text(max_size=60))
def test_any_query_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(target.QueryError):
        offset, _ = target.parse_read_query(text)
        assert -(1 << 63) <= offset < 1 << 63


def test_routes_have_a_compact_text() -> None:
    assert answers.compact_route(_ROUTE) == (
        'members:<zone:"a" suffix:"one" > members:<zone:"b" suffix:"two" > primary:1 '
        'endpoints:"http://one:80" endpoints:"http://two:81/base/"'
    )
    odd = pb.Route(members=[pb.ProcessSpec.ID(suffix='q"\\\n\x01é')], primary=-1)
    assert answers.compact_route(odd) == (r'members:<suffix:"q\"\\\n\001\303\251" > primary:-1')


def test_headers_of_a_read() -> None:
    response = pb.ReadResponse(
        header=pb.Header(route=_ROUTE),
        offset=7,
        write_head=9,
        fragment=_FRAGMENT,
        fragment_url="http://store/x",
    )
    response.fragment.mod_time = 12345678
    assert dict(answers.read_headers(response, "/a/journal;meta x")) == {
        "X-Route-Token": answers.compact_route(_ROUTE),
        "Location": "http://two:81/base/a/journal;meta%20x",
        "X-Fragment-Name": pb.content_name(_FRAGMENT),
        "X-Fragment-Last-Modified": "Sat, 23 May 1970 21:21:18 GMT",
        "X-Fragment-Location": "http://store/x",
        "Content-Range": "bytes 7-9223372036854775807/9223372036854775807",
        "X-Write-Head": "9",
    }
    assert answers.read_headers(pb.ReadResponse(), "/a") == []
    response.header.route.primary = -1
    assert "Location" not in dict(answers.read_headers(response, "/a"))


def test_refused_appends_name_their_status() -> None:
    response = pb.AppendResponse(status=pb.Status.FRAGMENT_STORE_UNHEALTHY)
    assert answers.append_error(response) == "FRAGMENT_STORE_UNHEALTHY"
    response.store_health_error = "no bucket"
    assert answers.append_error(response) == "no bucket: FRAGMENT_STORE_UNHEALTHY"


def test_bodies_are_text_or_bytes() -> None:
    assert answers.content_type(b"<html>\xff\r\n\t\x1b[0m") == "text/plain; charset=utf-8"
    assert answers.content_type(b"") == "text/plain; charset=utf-8"
    assert answers.content_type(b"a\0b") == "application/octet-stream"


def test_values_of_headers_stay_on_one_line() -> None:
    assert answers.header_value("a\r\nSet-Cookie: b\x00é") == "a  Set-Cookie: b  "


def test_json_is_no_markup_to_a_browser() -> None:
    response = pb.ListResponse(header=pb.Header(etcd=pb.Header.Etcd(cluster_id=1 << 63)))
    spec = response.journals.add().spec
    spec.labels.labels.add(name="a", value="<&>\u2028é", prefix=True)
    spec.fragment.refresh_interval.FromMilliseconds(1500)
    spec.suspend.level = pb.JournalSpec.Suspend.Level.PARTIAL
    line = json_form.result_line(response)
    assert line.endswith(b"\n")
    assert b'"value":"\\u003c\\u0026\\u003e\\u2028\xc3\xa9"' in line
    result = json.loads(line)["result"]
    assert result["header"]["etcd"]["clusterId"] == "9223372036854775808"
    shown = result["journals"][0]["spec"]
    assert shown["labels"]["labels"] == [{"name": "a", "value": "<&>\u2028é", "prefix": True}]
    assert shown["fragment"]["refreshInterval"] == "1.500s"
    assert shown["suspend"] == {"level": "PARTIAL", "offset": "0"}


@pytest.mark.parametrize(
    "document",
    [
        b'{"journal":"a/b","offset":"-1","endOffset":7,"metadataOnly":true}',
        b' {"journal":"a/b","offset":-1,"end_offset":"7","metadata_only":true} trailing',
    ],
)
def test_requests_take_names_of_either_case(document: bytes) -> None:
    expected = pb.ReadRequest(journal="a/b", offset=-1, end_offset=7, metadata_only=True)
    assert json_form.parse_message(pb.ReadRequest, document) == expected


@pytest.mark.parametrize("document", [b" \n", b"null", b'{"a_field_of_the_future":[1]}'])
def test_a_document_without_known_fields_is_a_request_of_defaults(document: bytes) -> None:
    assert json_form.parse_message(pb.ListRequest, document) == pb.ListRequest()


@pytest.mark.parametrize(
    "document",
    ["{nope", "nope", '{"a"1', '{"a":"\n"', "{", "[1]", "[" * 100_000, '{"offset": "x"}', '"x"'],
)
def test_what_is_no_request_is_told(document: str) -> None:
    with pytest.raises(json_form.JsonError, match=r"^invalid protocol\.ReadRequest: .") as raised:
        json_form.parse_message(pb.ReadRequest, document.encode())
    assert len(str(raised.value)) < 600


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["journal", "offset", "header", "etcd", "revision", "block", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(_JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20))
def test_any_document_is_parsed_or_refused(document: bytes) -> None:
    try:
        json_form.parse_message(pb.ReadRequest, document)
    except json_form.JsonError as error:
        json.loads(json_form.request_error(str(error), "INVALID_ARGUMENT"))


def test_counters_as_text() -> None:
    text = metrics_text(
        {
            "gazette_journal_server_completed_totals": {"Append,<error>": 2},
            "gazette_spool_commits_total": 3,
            "gazette_failing_stores": {"s3://a/": "no such bucket", "s3://b/": "no answer"},
            "gazette_write_head": {'a/b"\\,\n': 7},
        }
    )
    assert text.splitlines() == [
        "# HELP gazette_journal_server_completed_totals RPCs ended.",
        "# TYPE gazette_journal_server_completed_totals counter",
        'gazette_journal_server_completed_totals{operation="Append",status="<error>"} 2',
        "# HELP gazette_spool_commits_total Committed appends.",
        "# TYPE gazette_spool_commits_total counter",
        "gazette_spool_commits_total 3",
        "# HELP gazette_failing_stores Stores, or the data directory, that fail.",
        "# TYPE gazette_failing_stores gauge",
        "gazette_failing_stores 2",
        "# HELP gazette_write_head Offset at which a journal ends.",
        "# TYPE gazette_write_head gauge",
        r'gazette_write_head{journal="a/b\"\\,\n"} 7',
    ]
