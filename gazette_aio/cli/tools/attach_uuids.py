"""`gazette-aio attach-uuids`: attaches UUIDs of messages to the lines of files."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import progress
from gazette_aio.message.framing import NDJSONFraming
from gazette_aio.message.uuid import OUTSIDE_TXN, Clock, build_uuid, new_producer_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import BufferedReader

_CHUNK_BYTES: Final = 1 << 16
_ACTION: Final = re.compile(rb"\{\{[ \t]*\.(Line|UUID)[ \t]*\}\}")


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--template",
    default="{{.UUID}},{{.Line}}\n",
    help="Output of each line: text with {{.UUID}} and {{.Line}}. [default: UUID,LINE]",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    default=4 << 20,
    show_default=True,
    help="Bytes of a line that is too long.",
)
@click.option("--skip-header", is_flag=True, help="Leave out the first line of each file.")
@log_options
def attach_uuids(
    paths: Sequence[Path], template: str, max_length: int, *, skip_header: bool
) -> None:
    r"""Attach a UUID to each line of the files PATHS (default: stdin), and print the lines.

    UUIDs are those of committed messages, which readers deliver exactly once. Write the output to a
    file, and append the file: if it's appended twice, readers drop the second copy. Each run is a
    new producer, and readers keep some state of each producer: prefer few large files to many small
    ones.
    """
    producer, clock = new_producer_id(), Clock.now()
    try:
        render = renderer(template)
    except pb.ValidationError as error:
        raise InputError(str(error)) from None

    def stamped(line: bytes) -> bytes:
        uuid = build_uuid(producer, clock.tick(), OUTSIDE_TXN)
        return render(line, str(uuid).encode())

    with contextlib.ExitStack() as files, progress("attaching", in_bytes=True) as bar:
        # All files are opened first, so that nothing is printed if one is missing.
        inputs: list[BufferedReader] = [files.enter_context(path.open("rb")) for path in paths]
        for source in inputs or [cast("BufferedReader", sys.stdin.buffer)]:
            skips_line = skip_header
            for lines in lines_of(_chunks_of(source), max_length):
                clock.update()
                output = b"".join(map(stamped, lines[skips_line:]))
                skips_line = skips_line and not lines
                sys.stdout.buffer.write(output)
                sys.stdout.buffer.flush()
                bar.advance(sum(map(len, lines)))


def _chunks_of(source: BufferedReader) -> Iterator[bytes]:
    # Not read(), which would wait until a pipe has filled the chunk.
    while chunk := source.read1(_CHUNK_BYTES):
        yield chunk


def lines_of(chunks: Iterable[bytes], max_length: int) -> Iterator[list[bytes]]:
    """Yield the lines that each chunk completes, without their ends. The last line needs none.

    Args:
        chunks: Content.
        max_length: Bytes from which a line is too long.

    Raises:
        FrameTooLargeError: A line is too long.
    """
    # A decoder counts the newline.
    decoder = NDJSONFraming().decoder(max_frame_bytes=max_length)
    for chunk in itertools.chain(chunks, [b""]):
        decoder.feed(chunk or (b"\n" if decoder.buffered else b""))
        frames = iter(decoder.next_frame, None)
        yield [frame.payload.removesuffix(b"\r") for frame in frames]
        if decoder.buffered >= max_length:
            text = f"line is longer than {max_length} bytes"
            raise pb.FrameTooLargeError(text, begin=0, end=max_length)


def renderer(template: str) -> Callable[[bytes, bytes], bytes]:
    """Return a function of a line and a UUID, which returns their output.

    Raises:
        ValidationError: The template has another action than `{{.Line}}` and `{{.UUID}}`.
    """
    parts = _ACTION.split(template.encode("utf-8", "surrogateescape"))
    texts, names = parts[::2], parts[1::2]
    for text in texts:
        _, opening, action = text.decode("utf-8", "replace").partition("{{")
        if opening:
            raise pb.ValidationError(
                f"unsupported {opening + action!r}: a template has {{{{.UUID}}}} and {{{{.Line}}}}"
            )

    def render(line: bytes, uuid: bytes) -> bytes:
        values = {b"Line": line, b"UUID": uuid}
        filled = [texts[0]]
        for name, text in zip(names, texts[1:], strict=True):
            filled += (values[name], text)
        return b"".join(filled)

    return render
