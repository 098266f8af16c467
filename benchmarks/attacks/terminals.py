"""Names, labels and errors of others, with what terminals execute, printed by the command line.

Invariants: no control character and none that reorders text is printed, but ends of lines and tabs
of the layout; a record of the log is one line, and other lines are indented; and documents mean the
same as before.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import text_format

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import require
from gazette_aio.cli.shell.failures import explain
from gazette_aio.cli.shell.messages import prototext, tree_of
from gazette_aio.cli.shell.output import print_json, print_line, print_table, print_text
from gazette_aio.consumer.shardspace import Set, dump_shard_space, load_shard_space
from gazette_aio.logs import LogFormatter
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from collections.abc import Callable

_CLASSES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_REORDERING: Final = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_MARKS: Final = frozenset("\u200e\u200f\u061c")
_PIECES: Final = (
    *("\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\n", "\t", "\x00", "\x7f", "\x85", "\u2028"),
    *("\u202e", "\u2066", "\u2069", "\u200f", "\u200b", "\ufeff", "\U000e0041", "\x0b", "\x1c"),
    *("2026-01-01T00:00:00.000+00:00 error forged: line", '"', "'", "\\", "\\u202e", "\\n", "#"),
    *("- ", ": ", "a", "é", "日", " ", "%s", "{}", "[bold]", "\U0001f600", "\u0627"),
)


def hidden_in(text: str) -> set[str]:
    """Return the characters of a printed text that a terminal would execute, reorder or end at."""
    return {
        character
        for character in set(text) - {"\n", "\t"}
        if unicodedata.category(character) in _CLASSES
        or unicodedata.bidirectional(character) in _REORDERING
        or character in _MARKS
    }


def hostile_text(rng: random.Random) -> str:
    """Return a text of characters that UTF-8 has, most of which a terminal wouldn't just show."""
    pieces = rng.choices(_PIECES, k=rng.randrange(1, 9))
    pieces += (chr(rng.choice((0x80, 0x100, 0x3000))) for _ in range(rng.randrange(2)))
    pieces += (chr(rng.randrange(0xD800)) for _ in range(rng.randrange(3)))
    pieces += (chr(rng.randrange(0xE000, 0x110000)) for _ in range(rng.randrange(2)))
    rng.shuffle(pieces)
    return "".join(pieces)


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    end, count = time.monotonic() + duration, 0
    while time.monotonic() < end:
        for way in _WAYS:
            text = hostile_text(rng)
            printed = way(text)
            if found := hidden_in(printed):
                require(False, f"{way.__name__} of {text!a} prints {sorted(found)!a}")
            count += 1
    print(f"terminals: {count} texts, all harmless", flush=True)


def _printed(show: Callable[..., None], *args: Any, **named: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        show(*args, **named)
    return out.getvalue()


def _line(text: str) -> str:
    printed = _printed(print_line, text)
    require(printed.count("\n") == 1, f"{text!a} is printed as {printed!a}")
    return printed


def _table(text: str) -> str:
    printed = _printed(print_table, ("NAME", text), [(text, 1), ("b", text)])
    require(len(printed.split("\n")) == 4, f"{text!a} is printed as {printed!a}")
    return printed


def _json(text: str) -> str:
    half = text + "\ud800"
    printed = _printed(print_json, {text: [half]})
    require(printed.count("\n") == 1, f"{text!a} is printed as {printed!a}")
    require(json.loads(printed) == {text: [half]}, f"{text!a} becomes {printed!a}")
    return printed


def _shard_of(text: str) -> pc.ShardSpec:
    labels = pb.LabelSet(labels=[pb.Label(name=text, value=text)])
    return pc.ShardSpec(id=text, labels=labels, hint_prefix=text)


def _message_json(text: str) -> str:
    printed = _printed(print_json, tree_of(_shard_of(text)), compact=True)
    require(json.loads(printed)["id"] == text, f"{text!a} becomes {printed!a}")
    return printed


def _prototext(text: str) -> str:
    shard = _shard_of(text)
    printed = _printed(print_text, prototext(shard))
    require(text_format.Parse(printed, pc.ShardSpec()) == shard, f"{text!a} becomes {printed!a}")
    return printed


def _yaml(text: str) -> str:
    shard = _shard_of(text)
    listing = pc.ListResponse(shards=[pc.ListResponse.Shard(spec=shard, mod_revision=1)])
    printed = _printed(print_text, dump_shard_space(Set.from_list_response(listing)))
    (change,) = load_shard_space(printed).to_apply_request().changes
    require(change.upsert == shard, f"{text!a} becomes {printed!a}")
    return printed


def _failure(text: str) -> str:
    return _line(explain(pb.TransportError("UNKNOWN", text)))


def _record(form: Any) -> Callable[[str], str]:
    formatter = LogFormatter(form)

    def formatted(text: str) -> str:
        try:
            raise ValueError(text)
        except ValueError:
            error = sys.exc_info()
        record = logging.LogRecord("a", logging.ERROR, "", 0, "it said %s", (text,), error)
        record.shard = text
        printed = formatter.format(record)
        lines = printed.split("\n")
        require(all(line.startswith("  ") for line in lines[1:]), f"{text!a} is {printed!a}")
        if form == "json":
            require(json.loads(printed)["shard"] == text, f"{text!a} becomes {printed!a}")
        return printed.replace("\x1b[31merror\x1b[0m", "", 1) if form == "color" else printed

    formatted.__name__ = f"log of {form}"
    return formatted


_WAYS: Final[tuple[Callable[[str], str], ...]] = (
    *(_line, _table, _json, _message_json, _prototext, _yaml, _failure),
    *map(_record, ("text", "color", "json")),
)
