"""URLs of stores and endpoints, and derived specifications."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.journal_spec import desired_replication
from gazette_aio.protocol.url import parse_url, redacted
from tests.protocol.support import error_of


def test_parts():
    store = pb.parse_fragment_store("S3://bucket/a%20b/?Profile=x&find=%2F&FIND=y&replace=a+b")
    assert store == ("s3", "bucket", "/a b/", "Profile=x&find=%2F&FIND=y&replace=a+b")
    assert store.arguments == {"profile": "x", "find": "/", "replace": "a b"}
    store.validate_arguments()


@pytest.mark.parametrize(
    ("url", "name"),
    [("file:///x/?profile=x", "profile"), ("s3://b/?nope=", "nope"), ("gs://b/?acl", "acl")],
)
def test_unknown_arguments(url: str, name: str):
    store = pb.parse_fragment_store(url)
    expected = f'parsing store URL arguments: schema: invalid path "{name}"'
    assert error_of(store.validate_arguments) == expected


def test_object_keys():
    path = "a/journal/date=1/0-1-ff.gz"
    plain = pb.parse_fragment_store("s3://bucket/prefix/")
    assert plain.object_key(path) == f"prefix/{path}"
    rewriting = pb.parse_fragment_store("s3://bucket/?find=a/journal&replace=elsewhere")
    assert rewriting.object_key("a/journal/a/journal/x") == "elsewhere/a/journal/x"
    uneven = pb.parse_fragment_store("s3://bucket/a//b/./c/")
    assert uneven.object_key(path) == f"a//b/./c/{path}"
    climbing = pb.parse_fragment_store("file:///root/?find=a/&replace=../../")
    with pytest.raises(pb.ValidationError, match="leads out of its root"):
        climbing.object_key("a/journal/x")
    with pytest.raises(pb.ValidationError, match="leads out of its root"):
        plain.object_key("../other/x")


@pytest.mark.parametrize("url", ["file:///../etc/", "file:///a/%2e%2e/%2E./etc/", "file:///a%00/"])
def test_a_store_stays_below_the_file_root(url: str):
    # It's valid on the wire.
    store = pb.parse_fragment_store(url)
    with pytest.raises(pb.ValidationError, match="leads out of its root"):
        store.object_key("a/journal/x")


def test_parts_of_endpoints():
    endpoint = parse_endpoint("HTTPS://Host:8443")
    assert endpoint.is_secure
    assert (endpoint.scheme, endpoint.host, endpoint.port) == ("https", "Host:8443", "8443")
    assert not parse_endpoint("http://[::1]:80").is_secure


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://a b/", "host"),
        ("http://[::1", "host"),
        ("http://[::1]x/", "host"),
        ("http://host:port/", "port"),
        ("http://us er@host/", "user"),
        ("http://host/%z", "escape"),
        ("http://host/%", "escape"),
        ("http://%zz/", "escape"),
        ("http://%41/", "host"),
        ("http://host/#%zz", "escape"),
        ("http://host/\x7f", "control character"),
        (" http://host/", "scheme"),
        (":x", "scheme"),
        ("1a:b", "scheme"),
        ("a b:c", "scheme"),
    ],
)
def test_invalid_urls(url: str, named: str):
    error = error_of(parse_url, url) or ""
    assert error.startswith("parse ")
    assert named in error


def test_queries_are_left_out_of_texts():
    assert redacted("http://host/path?sig=secret") == "http://host/path?…"
    assert redacted("http://host/path") == "http://host/path"
    assert redacted("http://user:secret@host/path#at") == "http://host/path"
    with pytest.raises(pb.ValidationError) as raised:
        parse_url("http://user:secret@ho st/?sig=secret")
    assert "secret" not in str(raised.value)
    error = error_of(parse_url, "http://bad host/?sig=secret")
    assert (error or "").startswith('parse "http://bad host/?…": ')


@given(st.text(max_size=40) | st.text("s3gfileh:/@[]%?#.0az ", max_size=40))
def test_any_text_is_a_url_or_a_validation_error(text):
    for parse in (parse_url, parse_endpoint, pb.parse_fragment_store):
        error = error_of(parse, text)
        assert error is None or error
    if error_of(parse_endpoint, text) is None:
        assert parse_endpoint(text).grpc_target
    if error_of(pb.parse_fragment_store, text) is None:
        store = pb.parse_fragment_store(text)
        assert error_of(store.object_key, "../x") is not None
        assert isinstance(store.arguments, dict)


def test_fewer_brokers_than_replicas():
    assert desired_replication(pb.JournalSpec(replication=3), 1) == 1
