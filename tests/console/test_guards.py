"""Requests that the console answers."""

from __future__ import annotations

import pytest

from gazette_aio.console.guards import HEADERS, LOOPBACK_HOSTS, bearer_token, refusal

_HOST = "localhost:8082"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{_HOST}"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": f"https://{_HOST}"},
    ],
)
@pytest.mark.parametrize("is_page", [False, True])
def test_requests_of_the_page_itself(headers, is_page):
    assert refusal("GET", {"Host": _HOST, **headers}, LOOPBACK_HOSTS, is_page=is_page) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": f"http://{_HOST}.evil.example"},
    ],
)
def test_requests_of_other_sites(headers):
    assert refusal("GET", {"Host": _HOST, **headers}, LOOPBACK_HOSTS, is_page=False)


def test_links_lead_to_the_page():
    headers = {"Host": _HOST, "Sec-Fetch-Site": "cross-site"}
    assert refusal("GET", headers, LOOPBACK_HOSTS, is_page=True) is None


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example:8082", "[", "a@b"])
@pytest.mark.parametrize("is_page", [False, True])
def test_names_that_somebody_else_gives_this_machine(host, is_page):
    assert refusal("GET", {"Host": host}, LOOPBACK_HOSTS, is_page=is_page)


@pytest.mark.parametrize("host", ["LOCALHOST", "127.0.0.1:1", "[::1]:8082", "[::1]"])
def test_names_of_this_machine(host):
    assert refusal("GET", {"Host": host}, LOOPBACK_HOSTS, is_page=False) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "text/plain; application/json"},
    ],
)
def test_forms_of_other_sites(headers):
    assert refusal("POST", {"Host": _HOST, **headers}, LOOPBACK_HOSTS, is_page=False)
    json = {"Host": _HOST, "Content-Type": "application/json"}
    assert refusal("POST", json, LOOPBACK_HOSTS, is_page=False) is None


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
