"""`gazette-aio journals publish`: messages of JSON, each with a UUID, mapped to journals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import click
import msgspec

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.append import appending, writing_options
from gazette_aio.cli.shell.failures import CommandError, InputError
from gazette_aio.cli.shell.input import input_chunks, uuid_path_option
from gazette_aio.cli.shell.output import print_result, progress
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.specs.selection import select_for_file
from gazette_aio.message.framing import NDJSONFraming, find_framing
from gazette_aio.message.mapping import modulo_mapping, random_mapping, rendezvous_mapping
from gazette_aio.message.uuid import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from gazette_aio.cli.journals.append import Appending
    from gazette_aio.cli.shell.connection import ClientSettings
    from gazette_aio.message import Publisher
    from gazette_aio.message.mapping import Mapping, Target

Members: TypeAlias = "dict[str, Any]"

_KEYED: Final = {"modulo": modulo_mapping, "rendezvous": rendezvous_mapping}
_OBJECTS: Final = msgspec.json.Decoder(dict[str, Any])


@click.command()
@click.option(
    "-m",
    "--message",
    "messages",
    multiple=True,
    metavar="JSON",
    help="Message to publish, in place of FILE; repeatable.",
)
@click.option(
    "-k",
    "--key",
    "keys",
    multiple=True,
    metavar="MEMBER",
    help="Member by whose value a message is mapped to a journal of the selector, such as `user` "
    "or `user.id`; repeatable. [default: a random journal]",
)
@click.option(
    "--mapping",
    type=click.Choice(list(_KEYED)),
    default="modulo",
    show_default=True,
    help="How keys are mapped to journals.",
)
@uuid_path_option
@writing_options
def publish(
    connection: ClientSettings,
    journal: str | None,
    file: str | None,
    selector: str | None,
    *,
    messages: Sequence[str],
    keys: Sequence[str],
    mapping: str,
    uuid_path: str,
    as_json: bool,
) -> None:
    """Publish the lines of FILE (default: stdin), which are objects of JSON, to JOURNAL.

    With a selector, each message is mapped to one of its journals. Each message gets a UUID, and
    commits by itself: readers of committed messages deliver it once. Messages are published as
    they're read, and those of a journal keep their order. A second run publishes them again.
    """
    selection, file = select_for_file(journal, file, selector)
    if messages and file is not None:
        raise click.UsageError("give FILE or --message, but not both")
    if keys and selection.names:
        raise InputError("--key needs --selector")
    # Other commands need no publisher.
    from gazette_aio.message import Publisher, raw_adapter  # noqa: PLC0415

    adapter = raw_adapter(uuid_path)

    # Nothing is sent if one of these is invalid.
    given: list[bytes] = []
    for number, message in enumerate(messages, 1):
        with _numbered(number):
            given.append(msgspec.json.format(message.encode(errors="surrogateescape"), indent=-1))
            _key_of(keys, _OBJECTS.decode(given[-1]))
            adapter.encode(given[-1], ZERO_UUID)

    async def publish_all() -> _Published:
        async with appending(connection, selection, "published", "message") as ongoing:
            mapped: Callable[[Members], Target] = random_mapping(ongoing.partitions)
            if keys:
                mapped = _KEYED[mapping](lambda members: _key_of(keys, members), ongoing.partitions)
            source = _given(given) if given else _lines(file or "-")
            return await _publish(Publisher(ongoing.appends, adapter), source, mapped, ongoing)

    published = asyncio.run(publish_all())
    text = (
        f"published {counted(published.messages, 'message')} "
        f"to {counted(published.journals, 'journal')}"
    )
    print_result(dataclasses.asdict(published), text, as_json=as_json)


@dataclasses.dataclass(frozen=True, slots=True)
class _Published:
    messages: int
    journals: int


async def _publish(
    publisher: Publisher[bytes],
    messages: AsyncGenerator[bytes],
    mapped: Callable[[Members], Target],
    ongoing: Appending,
) -> _Published:
    with progress("publishing", in_bytes=True) as bar:
        async for message in messages:
            with _numbered(ongoing.count + 1):
                target = mapped(_OBJECTS.decode(message))
                if target[0] not in ongoing.latest:
                    _require_lines(*target)
                call = publisher.start_publish_committed(_mapping_to(target), message)
                ongoing.add(await call)
            bar.advance(len(message))
    return _Published(ongoing.count, len(ongoing.latest))


@contextlib.contextmanager
def _numbered(number: int) -> Generator[None]:
    """Let errors of a message name it by its number."""
    try:
        yield
    except (InputError, pb.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"message {number}: {error}") from None


def _mapping_to(target: Target) -> Mapping[bytes]:
    return lambda _message: target


async def _given(messages: Sequence[bytes]) -> AsyncGenerator[bytes]:
    for message in messages:
        yield message


async def _lines(path: str) -> AsyncGenerator[bytes]:
    """Yield the lines of a file that aren't blank, as they arrive."""
    decoder = NDJSONFraming().decoder()
    is_over = False
    chunks = input_chunks(path)
    while not is_over:
        chunk = await anext(chunks, b"")
        is_over = not chunk
        # The last line needs no end.
        decoder.feed(chunk or b"\n")
        while (frame := decoder.next_frame()) is not None:
            if line := frame.payload.strip():
                yield line


def _key_of(paths: Sequence[str], members: Members) -> list[bytes]:
    """Return the values of members: texts as they are, numbers and booleans as in JSON."""
    key: list[bytes] = []
    for path in paths:
        value: Any = members
        for name in path.split("."):
            value = cast("Members", value).get(name) if isinstance(value, dict) else None
        if value is None or isinstance(value, dict | list):
            raise InputError(f"--key {path}: no text, number or boolean is there")
        key.append(value.encode() if isinstance(value, str) else msgspec.json.encode(value))
    return key


def _require_lines(journal: str, content_type: str) -> None:
    if not isinstance(find_framing(content_type), NDJSONFraming):
        raise CommandError(
            f"{journal} has content type {content_type or 'none'}, and isn't of lines of JSON: "
            "expected application/x-ndjson"
        )
