"""`gazette-aio token`: signs, shows and verifies the tokens that authorize requests."""

from __future__ import annotations

import datetime as dt
import functools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.groups import CommandGroup
from gazette_aio.cli.shell.keys import given_keys, keyed_auth
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_table
from gazette_aio.cli.shell.quantities import duration
from gazette_aio.cli.specs.selection import parse_selector
from gazette_aio.protocol.auth.jwt import unverified_claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CAPABILITY: Final = click.Choice(list(pb.Capability.__members__), case_sensitive=False)
_TOKEN: Final = click.argument("token", envvar="BROKER_AUTH_TOKEN", default="-")
_JSON: Final = json_option("Print the claims as JSON.")


@click.group(cls=CommandGroup)
def token() -> None:
    """Sign, show and verify the tokens that authorize requests."""


def _with_keys(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of keys to `command`, and pass the keys as `auth`."""

    @click.option(
        "--auth-keys",
        envvar="BROKER_AUTH_KEYS",
        show_envvar=True,
        metavar="KEYS",
        help="Base64 keys of the brokers or members. Other processes can see options.",
    )
    @click.option(
        "--auth-keys-file",
        envvar="BROKER_AUTH_KEYS_FILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of the keys, which other processes can't see; a pipe such as /dev/stdin, too.",
    )
    @functools.wraps(command)
    def with_keys(auth_keys: str | None, auth_keys_file: Path | None, **given: Any) -> None:
        if not (keys := given_keys(auth_keys, auth_keys_file)):
            raise InputError("give the keys by --auth-keys-file")
        command(auth=keyed_auth(keys), **given)

    return with_keys


@token.command()
@click.option(
    "-c",
    "--capability",
    "capabilities",
    type=_CAPABILITY,
    multiple=True,
    required=True,
    help="What the token permits; repeatable.",
)
@click.option(
    "-l",
    "--selector",
    default="",
    help="Label selector of the journals or shards, such as name:prefix=shop/. [default: all]",
)
@click.option(
    "--lifetime",
    callback=duration,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Time for which the token is valid.",
)
@click.option("--subject", default="", help="Who gets the token.")
@_with_keys
@log_options
def sign(
    auth: pb.KeyedAuth, capabilities: Iterable[str], selector: str, lifetime: float, subject: str
) -> None:
    """Print a token, signed by the first key."""
    if lifetime < 1:
        raise InputError("--lifetime: a token is valid for a second at least")
    claims = pb.Claims(_all_of(capabilities), parse_selector(selector), subject=subject)
    print_line(auth.sign(claims, dt.timedelta(seconds=lifetime), time.time()))


@token.command()
@_TOKEN
@_JSON
@log_options
def show(token: str, *, as_json: bool) -> None:
    """Print what TOKEN claims. Neither its signature nor its times are checked.

    TOKEN is by default $BROKER_AUTH_TOKEN, else the line on stdin.
    """
    _print(unverified_claims(_given(token)), as_json=as_json)


@token.command()
@click.option(
    "-c",
    "--capability",
    "capabilities",
    type=_CAPABILITY,
    multiple=True,
    help="What the token has to permit; repeatable.",
)
@_TOKEN
@_JSON
@_with_keys
@log_options
def verify(auth: pb.KeyedAuth, token: str, capabilities: Iterable[str], *, as_json: bool) -> None:
    """Check TOKEN as brokers and members do, and print what it claims.

    TOKEN is by default $BROKER_AUTH_TOKEN, else the line on stdin. The exit code is 1 if the token
    isn't valid.
    """
    header = f"Bearer {_given(token)}"
    _print(auth.verify(header, _all_of(capabilities), time.time()), as_json=as_json)


def _all_of(names: Iterable[str]) -> pb.Capability:
    capability = pb.Capability(0)
    for name in names:
        capability |= pb.Capability[name]
    return capability


def _given(text: str) -> str:
    if text == "-":
        # A token is ASCII, and what else there is needs no exact text.
        text = sys.stdin.buffer.readline().decode(errors="replace")
    return text.strip().removeprefix("Bearer ")


def _print(claims: pb.Claims, *, as_json: bool) -> None:
    shown = {
        "capability": claims.capability.name or "none",
        "selector": pb.format_label_selector(claims.selector) or "all",
        "expires_at": _time(claims.expires_at),
        "issued_at": _time(claims.issued_at),
        "not_before": _time(claims.not_before),
        "issuer": claims.issuer,
        "subject": claims.subject,
        "audience": ", ".join(claims.audience),
        "token_id": claims.token_id,
    }
    present = {name: text for name, text in shown.items() if text}
    if as_json:
        print_json(present)
    else:
        print_table(("CLAIM", "VALUE"), list(present.items()))


def _time(seconds: int | None) -> str:
    if seconds is None:
        return ""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
    except (OverflowError, OSError, ValueError):  # A time of no calendar.
        return f"{seconds} s"
