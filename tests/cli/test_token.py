"""`gazette-aio token`: tokens that brokers take, and what they claim."""

from __future__ import annotations

from typing import Any

import pytest

KEY, OTHER = "c2VjcmV0", "b3RoZXI="
ENV = {"BROKER_AUTH_KEYS": KEY}
SIGN = ("token", "sign", "-c", "list", "-c", "read")


@pytest.fixture
def signed(inline: Any) -> str:
    """Token of one journal, and of readers."""
    options = ("--lifetime", "10m", "--subject", "reports", "-l", "name=test/journal")
    done = inline(*SIGN, *options, env=ENV)
    assert done.code == 0, done.err
    return done.text.strip()


@pytest.mark.gazette_broker(auth_keys=KEY)
async def test_a_broker_takes_a_token_within_its_claims(
    broker_cli: Any, journal: str, signed: str
) -> None:
    env = {"BROKER_AUTH_TOKEN": signed}
    listed = await broker_cli("journals", "list", "--json", env=env)
    read = await broker_cli("journals", "read", journal, env=env)
    appended = await broker_cli("journals", "append", journal, stdin=b"x\n", env=env)

    assert [listed.json["journals"][0]["spec"]["name"], read.code, appended.code] == [journal, 0, 1]
    assert "APPEND" in appended.err


@pytest.mark.parametrize("command", [("show",), ("verify", "-c", "READ")])
def test_claims(inline: Any, signed: str, command: tuple[str, ...]) -> None:
    by_argument = inline("token", *command, signed, "--json", env=ENV)
    by_variable = inline("token", *command, "--json", env={**ENV, "BROKER_AUTH_TOKEN": signed})

    assert by_argument.code == 0, by_argument.err
    claims = by_argument.json
    assert (claims["capability"], claims["selector"]) == ("LIST|READ", "name=test/journal")
    assert claims["subject"] == "reports"
    assert claims["issued_at"] < claims["expires_at"]
    assert by_variable.json == claims


def test_a_header_on_stdin(inline: Any, signed: str) -> None:
    done = inline("token", "show", stdin=f"Bearer {signed}\n".encode())

    assert done.code == 0, done.err
    assert [line.split() for line in done.text.splitlines()][:2] == [
        ["CLAIM", "VALUE"],
        ["capability", "LIST|READ"],
    ]


@pytest.mark.parametrize(
    ("keys", "capability", "reason"),
    [
        (OTHER, "READ", "signature is invalid"),
        (KEY, "APPEND", "missing required APPEND capability"),
    ],
)
def test_a_refused_token(inline: Any, signed: str, keys: str, capability: str, reason: str) -> None:
    env = {"BROKER_AUTH_KEYS": keys}
    done = inline("token", "verify", "-c", capability, signed, env=env)

    assert done.code == 1
    assert reason in done.err
    assert signed not in done.err


def test_an_expired_token_is_shown_and_refused(
    inline: Any, monkeypatch: pytest.MonkeyPatch, signed: str
) -> None:
    expires = inline("token", "show", signed, "--json").json["expires_at"]
    monkeypatch.setattr("time.time", lambda: 2e9)
    done = inline("token", "verify", signed, env=ENV)

    assert (done.code, "token is expired" in done.err) == (1, True)
    assert inline("token", "show", signed, "--json").json["expires_at"] == expires


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--auth-keys-file", "/missing"), "File '/missing' does not exist"),
        (("--auth-keys", ""), "give the keys by --auth-keys-file"),
        (("--auth-keys", "AA=="), "at least one key"),
        (("--auth-keys", KEY, "--lifetime", "0s"), "valid for a second at least"),
        (("--auth-keys", KEY, "-l", "a in ("), "selector 'a in ('"),
    ],
)
def test_what_cannot_be_signed(inline: Any, options: tuple[str, ...], reason: str) -> None:
    done = inline(*SIGN, *options)

    assert (done.code, done.out) == (2, b"")
    assert reason in done.err


@pytest.mark.parametrize("text", [b"", b"a.b", b"a.b.c", b"Bearer", b"\xff.a.b"])
def test_text_that_is_no_token(inline: Any, text: bytes) -> None:
    done = inline("token", "show", stdin=text)

    assert done.code == 1
    assert "token is malformed" in done.err
