"""Files of specs and results of `apply`, for journals and shards alike."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.output import print_result
from gazette_aio.protocol.journal_space.differences import spec_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.protocol import consumer as pc

    Request = TypeVar("Request", pb.ApplyRequest, pc.ApplyRequest)
    Change = pb.ApplyRequest.Change | pc.ApplyRequest.Change

_REMEDIES: Final = {
    "not absolute": ": write a URL, such as file:/// or s3://bucket/prefix/",
    "ExpectModRevision": (
        ": the key is `revision`, as `list -o yaml` prints it; -1 is any revision"
    ),
}
"""Remedies of invalid specs, by parts of texts that speak of the protocol's fields."""


def read_text(file: str) -> tuple[str, str]:
    """Return the text of a file and the file's name in messages; `-` is stdin.

    Raises:
        InputError: The file isn't UTF-8.
        OSError: The file can't be read.
    """
    source = "<stdin>" if file == "-" else file
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        return data.decode("utf-8"), source
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 at byte {error.start}") from None


def load_request(load: Callable[[], Request], source: str, items: str) -> Request:
    """Return the request of a space, after checking that it has changes and is valid.

    Args:
        load: Reads the space.
        source: Name of the file in messages.
        items: `journals` or `shards`.

    Raises:
        InputError: The space or a spec is invalid, or the space is empty.
    """
    try:
        request = load()
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    if not request.changes:
        raise InputError(f"{source}: no {items} in this file")
    checked_request(request, source)
    return request


def checked_request(request: pb.ApplyRequest | pc.ApplyRequest, source: str) -> None:
    """Check the specs of a request.

    Raises:
        InputError: A spec is invalid.
    """
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        index = error.context[0].removeprefix("Changes[").removesuffix("]") if error.context else ""
        named = f"; {name_of(request.changes[int(index)])}" if index.isdecimal() else ""
        remedy = next((text for part, text in _REMEDIES.items() if part in error.text), "")
        raise InputError(f"{source}: {error}{named}{remedy}") from None


def name_of(change: Change) -> str:
    """Return the journal or shard of a change."""
    return spec_name(change.upsert) if change.HasField("upsert") else change.delete


def print_applied(changes: Iterable[Change], revision: int | None, *, as_json: bool) -> None:
    """Print changes and their revision. Changes that weren't sent have none."""
    upserts: list[str] = []
    deletes: list[str] = []
    for change in changes:
        (upserts if change.HasField("upsert") else deletes).append(name_of(change))
    revised = {} if revision is None else {"revision": revision}
    result = {**revised, "upserts": upserts, "deletes": deletes, "dry_run": False}
    parts = [f"{len(upserts)} upserted"] if upserts else []
    parts += [f"{len(deletes)} deleted"] if deletes else []
    print_result(result, f"revision {revision}: {', '.join(parts)}", as_json=as_json)
