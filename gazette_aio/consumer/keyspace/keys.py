"""Keys of a group of consumers, as Gazette lays them out in Etcd.

Members, items and assignments are below `root`: `{root}/members/{zone}#{suffix}`,
`{root}/items/{id}` and `{root}/assign/{id}#{zone}#{suffix}#{slot}`. The separator `#` sorts before
all characters that parts may have, so that keys order as the tuples of their parts.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from gazette_aio.protocol.errors import ValidationError

_SEPARATOR = "#"
_REFUSED: Final = re.compile(r'[\x00-"\ud800-\udfff]')
"""Characters that sort before the separator, and bytes that aren't UTF-8."""
_SLOT_DIGITS: Final = 9
MAX_SLOT: Final = 10**_SLOT_DIGITS - 1
"""Greatest slot of an assignment. Keys of greater ones mean nothing."""


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Parts of a member's key."""

    zone: str
    suffix: str


@dataclass(frozen=True, slots=True)
class ItemKey:
    """Parts of an item's key."""

    id: str


@dataclass(frozen=True, slots=True)
class AssignmentKey:
    """Parts of an assignment's key."""

    item: str
    zone: str
    suffix: str
    slot: int


GroupKey: TypeAlias = MemberKey | ItemKey | AssignmentKey


class GroupKeys:
    """Builds and parses the keys below `root`, a clean absolute path.

    Raises:
        ValidationError: `root` isn't clean, or a part of a key has a character up to `#`.
    """

    def __init__(self, root: str) -> None:
        # A second slash in front survives `normpath`.
        if root[:1] != "/" or root[:2] in {"/", "//"} or posixpath.normpath(root) != root:
            raise ValidationError(f"prefix of keys isn't an absolute, clean path ({root})")
        self.root = root
        self.prefix: str = f"{root}/"
        """Keys of the group begin so. `root` alone is also the begin of its siblings' keys."""
        self._members = f"{root}/members/"
        self._items = f"{root}/items/"
        self._assignments = f"{root}/assign/"

    def __repr__(self) -> str:
        return f"GroupKeys({self.root!r})"

    def member(self, zone: str, suffix: str) -> str:
        """Return the key of a member."""
        return self._members + _join(zone, suffix)

    def item(self, item_id: str) -> str:
        """Return the key of an item, such as a shard: its fully qualified name."""
        return self._items + _join(item_id)

    def assignment(self, item: str, zone: str, suffix: str, slot: int) -> str:
        """Return the key of an assignment."""
        return self._assignments + _join(item, zone, suffix, str(slot))

    def is_kept(self, key: str) -> bool:
        """Return whether a key is where members, items and assignments are, and nothing else."""
        return key.startswith((self._members, self._items, self._assignments))

    def parse(self, key: str) -> GroupKey:
        """Return the parts of a key.

        Raises:
            ValidationError: It isn't one of the group.
        """
        match self._split(key):
            case self._members, [zone, suffix]:
                return MemberKey(zone, suffix)
            case self._members, _:
                raise ValidationError("expected (zone, suffix) in member key")
            case self._items, [id]:
                return ItemKey(id)
            case self._items, _:
                raise ValidationError("expected (id) in item key")
            case self._assignments, [item, zone, suffix, slot] if (
                slot.isdecimal() and slot.isascii() and len(slot) <= _SLOT_DIGITS
            ):
                return AssignmentKey(item, zone, suffix, int(slot))
            case self._assignments, _:
                raise ValidationError(
                    "expected (item-id, member-zone, member-suffix, slot) in assignment key"
                )
            case _:
                raise ValidationError("unexpected key prefix, or an invalid character")

    def _split(self, key: str) -> tuple[str, list[str]]:
        for prefix in (self._assignments, self._items, self._members):
            if key.startswith(prefix):
                if _REFUSED.search(key, len(prefix)) is not None:
                    break  # Such parts are in no key that is built, and in no message.
                return prefix, key[len(prefix) :].split(_SEPARATOR)
        return "", []


def _join(*parts: str) -> str:
    for part in parts:
        for index, character in enumerate(part):
            if character <= _SEPARATOR:
                raise ValidationError(f"invalid char <= '#' (ind {index} of {part!r})")
    return _SEPARATOR.join(parts)
