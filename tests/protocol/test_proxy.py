"""Choice of a proxy from the environment."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gazette_aio.protocol.proxy import choose_proxy

PROXY = {
    "http_proxy": "http://one:1",
    "https_proxy": "http://two:2",
    "grpc_proxy": "http://three:3",
}


def chosen(client: Any, address: str, **environment: str) -> str:
    proxy = choose_proxy(client, address, environment).proxy
    return proxy.url if proxy else ""


def test_each_client_has_its_variables() -> None:
    assert chosen("grpc", "broker:8080", **PROXY) == "http://three:3"
    assert chosen("https", "store", **PROXY) == "http://two:2"
    assert chosen("http", "store", **PROXY) == "http://one:1"
    assert chosen("https", "store", http_proxy="http://one:1") == ""
    for name in ("http_proxy", "HTTPS_PROXY", "GRPC_PROXY"):
        assert chosen("grpc", "broker:8080", **{name: "http://p:1"}) == "http://p:1"
    assert chosen("grpc", "broker:8080") == ""
    assert chosen("grpc", "broker:8080", grpc_proxy="", http_proxy="http://p:1") == "http://p:1"
    assert (
        chosen("http", "a", http_proxy="http://small:1", HTTP_PROXY="http://p") == "http://small:1"
    )
    # A CGI program gets this variable from its client's headers.
    assert chosen("http", "a", HTTP_PROXY="http://p:1", REQUEST_METHOD="GET") == ""
    assert chosen("http", "a", HTTP_PROXY="http://p:1") == "http://p:1"


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "a.localhost:1",
        "ip6-loopback",
        "127.0.0.1:8080",
        "127.9.9.9",
        "[::1]:8080",
        "::1",
        "[::ffff:127.0.0.1]:80",
        "0.0.0.0:8080",
        "[::]:1",
    ],
)
def test_loopback_is_direct(address: str) -> None:
    for client in ("grpc", "https", "http"):
        assert chosen(client, address, **PROXY) == ""


@pytest.mark.parametrize(
    "address",
    ["localhost.example.com", "128.0.0.1", "notlocalhost:1", "[::2]:1", f"a:{'1' * 5000}"],
)
def test_others_are_not(address: str) -> None:
    assert chosen("grpc", address, **PROXY) == "http://three:3"


@pytest.mark.parametrize(
    ("entries", "address", "is_direct"),
    [
        ("*", "anything:1", True),
        ("example.com", "example.com:8080", True),
        ("Example.COM.", "a.example.com", True),
        (".example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com.", True),
        ("example.com", "notexample.com", False),
        ("example.com", "example.com.org", False),
        ("a, 10.0.0.0/8 b", "10.20.30.40:8080", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.7/8", "10.9.9.9", True),
        ("10.0.0.0/8", "ten.example.com", False),
        ("fd00::/8", "[fd12::1]:8080", True),
        ("fd00::/8", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1:8080", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("fd00::1", "[FD00:0::1%eth0]:1", True),
        ("[fd00::1]:8080", "[fd00::1]:8080", True),
        ("[fd00::1]:8080", "[fd00::1]:8081", False),
        ("broker:8080", "broker:8080", True),
        ("broker:8080", "broker:9090", False),
        ("broker:443", "broker", False),
        ("", "broker", False),
    ],
)
def test_no_proxy(entries: str, address: str, is_direct: bool) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        found = choose_proxy("grpc", address, PROXY | {name: entries})
        assert (found.proxy is None) == is_direct
        assert found.ignored == ()
    assert chosen("grpc", "both", **PROXY, no_proxy="one", NO_PROXY="both") == ""
    assert chosen("https", "broker", **PROXY, no_proxy="broker:443") == ""


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("proxy:3128", "http://proxy:3128"),
        ("http://proxy/", "http://proxy:80"),
        ("http://us%40er:pass@[fd00::1]:3128", "http://us%40er:pass@[fd00::1]:3128"),
    ],
)
def test_urls_of_proxies(text: str, url: str) -> None:
    found = choose_proxy("grpc", "broker", {"grpc_proxy": text}).proxy
    assert found is not None
    assert found.url == url
    assert "pass" not in f"{found} {found!r}"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "socks5://user:secret@proxy:1",
        "https://secret",
        "http://",
        "http://secret:port",
        "http://secret:99999",
        "http://secret:0",
        "http://secret/path",
        "http://a secret:1",
        "http://[secret:1",
    ],
)
def test_an_invalid_proxy_is_ignored(text: str) -> None:
    found = choose_proxy("grpc", "broker", {"grpc_proxy": text, "HTTP_PROXY": "http://p:1"})
    assert found.proxy is not None
    assert found.proxy.variable == "HTTP_PROXY"
    assert found.ignored == ("$grpc_proxy isn't the URL of a proxy, such as http://proxy:3128",)


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "a/b", "a*b", "http://b", "b:port", "[::1"])
def test_an_invalid_entry_is_ignored(entry: str) -> None:
    found = choose_proxy("grpc", "broker", PROXY | {"NO_PROXY": f"{entry},broker"})
    assert found.proxy is None
    assert found.ignored == (f"$NO_PROXY: {entry!r} isn't a host, domain, address or network",)
