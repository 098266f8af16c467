"""Which journals or shards a command is about: names, or a label selector."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, InputError
from gazette_aio.cli.shell.input import checked_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.client import JournalClient

Kind: TypeAlias = 'Literal["journal", "shard"]'

_NAME_LABELS = {"journal": "name", "shard": "id"}


@dataclasses.dataclass(frozen=True)
class Selection:
    """Names, or a selector that somebody has written."""

    kind: Kind
    selector: pb.LabelSelector
    names: frozenset[str] = frozenset()
    text: str = ""

    def require(self, found: Iterable[str], *, some: bool = False) -> None:
        """Raise unless all names are found or, if there must be `some`, the selector matches.

        Raises:
            CommandError: Something is missing.
        """
        present = set(found)
        if missing := sorted(self.names - present):
            raise CommandError(f"no {self.kind} {missing[0]!r}")
        if some and not present:
            raise CommandError(f"no {self.kind} matches {self.text!r}")

    async def journals(
        self, client: JournalClient, *, some: bool = False
    ) -> list[pb.ListResponse.Journal]:
        """Return the selected journals. Errors are those of `require()` and of `list()`.

        Cancellation: safe.
        """
        found = list((await client.list(self.selector)).journals)
        self.require((each.spec.name for each in found), some=some)
        return found


def selector_of_names(kind: Kind, names: Iterable[str]) -> pb.LabelSelector:
    """Return a selector of journals or shards by their names."""
    labels = [pb.Label(name=_NAME_LABELS[kind], value=name) for name in sorted({*names})]
    return pb.LabelSelector(include=pb.LabelSet(labels=labels))


def parse_selector(text: str) -> pb.LabelSelector:
    """Return the label selector of a command line.

    Raises:
        InputError: The text isn't a selector.
    """
    try:
        return pb.parse_label_selector(text)
    except pb.ValidationError as error:
        raise InputError(f"selector {text!r}: {error}") from None


def select(kind: Kind, names: Iterable[str], selector: str | None) -> Selection:
    """Return the selection of either names or a selector.

    Raises:
        UsageError: Both are given, or neither.
        InputError: A name, or the selector, is invalid.
    """
    names = frozenset(names)
    if bool(names) == (selector is not None):
        raise click.UsageError(f"give {kind.upper()} or --selector")
    if selector is not None:
        return Selection(kind, parse_selector(selector), text=selector)
    if kind == "journal":
        for name in names:
            checked_journal(name)
    return Selection(kind, selector_of_names(kind, names), names)


def select_for_file(
    journal: str | None, file: str | None, selector: str | None
) -> tuple[Selection, str | None]:
    """Return the selection and the file of the arguments `[JOURNAL] [FILE]`.

    With a selector, the only argument is the file. Errors are those of `select()`.
    """
    if selector is not None and file is None:
        journal, file = None, journal
    return select("journal", () if journal is None else (journal,), selector), file


def selection_options(kind: Kind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take names or `--selector`, as the Selection `selection`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("names", nargs=-1, metavar=f"[{kind.upper()}]...")
        @click.option("-l", "--selector", help=f"Label selector of the {kind}s.")
        @functools.wraps(command)
        def with_selection(
            *args: Any, names: tuple[str, ...], selector: str | None, **kwargs: Any
        ) -> Any:
            return command(*args, selection=select(kind, names, selector), **kwargs)

        return with_selection

    return decorate
