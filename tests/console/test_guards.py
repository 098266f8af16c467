"""Requests that the console answers."""

from __future__ import annotations

import pytest

from gazette_aio.console.guards import HEADERS, LOOPBACK_HOSTS, bearer_token, refusal

_HOST = "localhost:8082"


def refused(method: str = "GET", *, is_page: bool = False, **headers: str) -> str | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal(method, {"Host": _HOST, **named}, LOOPBACK_HOSTS, is_page=is_page)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "same-origin", "Origin": f"http://{_HOST}"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": f"https://{_HOST}"},
        *({"Host": host} for host in ("LOCALHOST", "127.0.0.1:1", "[::1]:8082", "[::1]")),
    ],
)
@pytest.mark.parametrize("is_page", [False, True])
def test_requests_of_the_page_itself(headers, is_page):
    assert refused(is_page=is_page, **headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": f"http://{_HOST}.evil.example"},
    ],
)
def test_requests_of_other_sites(headers):
    assert refused(**headers)


def test_links_lead_to_the_page():
    assert refused(is_page=True, Sec_Fetch_Site="cross-site") is None


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example:8082", "[", "a@b"])
@pytest.mark.parametrize("is_page", [False, True])
def test_names_that_somebody_else_gives_this_machine(host, is_page):
    assert refused(is_page=is_page, Host=host)


def test_forms_of_other_sites():
    assert refused("POST", Content_Type="application/json") is None
    form = "application/x-www-form-urlencoded"
    for content_type in ("", "text/plain", form, "text/plain; application/json"):
        assert refused("POST", Content_Type=content_type)


def test_tokens():
    assert bearer_token(None) is None
    assert bearer_token("bearer a.b.c") == "a.b.c"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a b", "Bearer é"]
)
def test_what_is_no_token_is_not_taken_for_none(header):
    with pytest.raises(ValueError, match="Bearer"):
        bearer_token(header)


def test_the_policy_permits_nothing_inline():
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
