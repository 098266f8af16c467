"""Keys of a group of consumers, as Gazette lays them out in Etcd.

Members, items and assignments are below `root`: `{root}/members/{zone}#{suffix}`,
`{root}/items/{id}` and `{root}/assign/{id}#{zone}#{suffix}#{slot}`. The separator `#` sorts before
all characters that parts may have, so that keys order as the tuples of their parts.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from gazette_aio.protocol.errors import ValidationError

_SEPARATOR = "#"
_REFUSED: Final = re.compile(r'[\x00-"\ud800-\udfff]')
"""Characters that sort before the separator, and bytes that aren't UTF-8."""


class GroupKeys:
    """Builds and splits the keys below `root`, a clean absolute path.

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

    def split(self, key: str) -> list[str]:
        """Return the kind of a key (`members`, `items` or `assign`) and its parts.

        Raises:
            ValidationError: The key is of no kind, or no key that is built has its characters.
        """
        for prefix in (self._assignments, self._items, self._members):
            if key.startswith(prefix) and _REFUSED.search(key, len(prefix)) is None:
                kind = prefix[len(self.prefix) : -1]
                return [kind, *key[len(prefix) :].split(_SEPARATOR)]
        raise ValidationError("unexpected key prefix, or an invalid character")


def _join(*parts: str) -> str:
    for part in parts:
        for index, character in enumerate(part):
            if character <= _SEPARATOR:
                raise ValidationError(f"invalid char <= '#' (ind {index} of {part!r})")
    return _SEPARATOR.join(parts)
