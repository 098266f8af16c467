from __future__ import annotations

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client.fragments.request import Answer, check_answer, request_headers
from gazette_aio.protocol.url import redacted
from tests.client.fragments.fragment_support import CODECS, URL, FakeBody, fragment_of

CODEC = pb.CompressionCodec
DATA = b"content of a fragment"


def check(
    codec: int = CODEC.NONE,
    *,
    offset: int = 100,
    status: int = 200,
    stored: bool = False,
    **headers: str,
) -> Answer:
    fragment = fragment_of(DATA, codec)
    body = FakeBody((), status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})
    requested = request_headers(fragment, offset, verify=False)
    return check_answer(fragment, requested, body, url=URL, as_stored=stored)


def test_urls_are_redacted() -> None:
    assert redacted("https://u:pw@host/a%20b?sig=1#x") == "https://host/a%20b?…"
    assert redacted("https://host/a@b") == "https://host/a@b"
    assert redacted("file:///a/b") == "file:///a/b"
    assert redacted("http:u:pw@host/a@b") == "http:host/a@b"
    assert redacted("//u:pw@host/a@b") == "//host/a@b"
    assert redacted("u:pw@host/a@b") == "u:host/a@b"
    assert "secret" not in redacted("http://host/#secret")


def test_what_is_asked_for() -> None:
    for codec in CODECS:
        headers = request_headers(fragment_of(DATA, codec), 105, verify=False)
        assert headers["Accept-Encoding"] == ("gzip" if codec == CODEC.GZIP else "identity")
        assert headers.get("Range") == ("bytes=5-" if codec == CODEC.NONE else None)
    plain = fragment_of(DATA)
    assert "Range" not in request_headers(plain, 100, verify=False), "all of it"
    last = request_headers(plain, plain.end, verify=False)["Range"]
    assert last == f"bytes={len(DATA) - 1}-", "there's no empty range"
    empty = fragment_of(b"", CODEC.NONE)
    assert "Range" not in request_headers(empty, empty.end, verify=False)
    assert "Range" not in request_headers(plain, 105, verify=True), "its sum is of all of it"


def test_answers() -> None:
    assert check() == Answer(100, CODEC.NONE, None)
    assert check(content_LENGTH="21") == Answer(100, CODEC.NONE, 21)
    assert check(Content_Length="²") == check(Content_Length="-1") == Answer(100, CODEC.NONE, None)
    assert check(offset=105) == Answer(100, CODEC.NONE, None), "a store without ranges"
    for content_range in ("bytes 5-20/21", "Bytes 5-20/*"):
        assert check(offset=105, status=206, Content_Range=content_range).begin == 105


@pytest.mark.parametrize(
    "content_range",
    ["", "bytes 4-20/21", "bytes 6-20/21", "bytes */21", "5-20/21", "bytes \u0665-20/21"],
)
def test_other_ranges_are_refused(content_range: str) -> None:
    with pytest.raises(pb.TransportError, match="Content-Range") as caught:
        check(offset=105, status=206, Content_Range=content_range)
    assert not caught.value.retryable
    assert "secret" not in str(caught.value)


def test_encodings() -> None:
    for codec in CODECS:
        assert check(codec, Content_Encoding="identity").codec == codec
        for encoding in ("br", "zstd", "gzip, gzip"):
            with pytest.raises(pb.TransportError, match="Content-Encoding"):
                check(codec, Content_Encoding=encoding)
    for codec in (CODEC.NONE, CODEC.GZIP, CODEC.GZIP_OFFLOAD_DECOMPRESSION):
        for encoding in ("gzip", "x-gzip", " GZIP "):
            assert check(codec, Content_Encoding=encoding).codec == CODEC.GZIP
    for codec in (CODEC.ZSTANDARD, CODEC.SNAPPY):
        with pytest.raises(pb.TransportError, match="Content-Encoding 'gzip'"):
            check(codec, Content_Encoding="gzip")
    with pytest.raises(pb.TransportError, match="Content-Encoding 'gzip'"):
        # Part of the compressed bytes, which is good for nothing.
        check(offset=105, status=206, Content_Range="bytes 5-20/21", Content_Encoding="gzip")
    assert check(CODEC.GZIP_OFFLOAD_DECOMPRESSION, stored=True).codec == CODEC.GZIP


def test_refusals() -> None:
    for status, retryable in (
        (403, True), (404, True), (429, True), (500, True), (503, True), (999, True),
        (204, False), (206, False), (304, False), (405, False), (416, False),
    ):  # fmt: skip
        with pytest.raises(pb.TransportError) as caught:
            check(status=status)
        assert caught.value.retryable is retryable, status
        assert caught.value.http_status == status
        assert caught.value.journal == "a/journal"
    with pytest.raises(pb.TransportError) as caught:
        check(status=404)
    assert '!OK fetching (404 Not Found, "http://store/f?…")' in str(caught.value)
    with pytest.raises(pb.UnexpectedEOFError) as end:
        check(offset=105, status=416)
    assert end.value.offset == 105
