"""Transactions of a key-value store, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

MAX_OPERATIONS = 128
"""Most comparisons, and most operations, of one transaction: Etcd's default limit."""


class Target(Enum):
    """Number of a key that a transaction compares. Each is 0 for a key that doesn't exist."""

    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Compare:
    """Condition of a transaction: the `target` number of `key` equals `value`."""

    key: str
    target: Target
    value: int

    @classmethod
    def unchanged(cls, entry: KeyValue) -> Compare:
        """Expect that a key is as it was read."""
        return cls.mod_revision(entry.key, entry.mod_revision)

    @classmethod
    def mod_revision(cls, key: str, revision: int) -> Compare:
        """Expect that `key` is as of `revision`, 0 for none."""
        return cls(key, Target.MOD_REVISION, revision)

    @classmethod
    def create_revision(cls, key: str, revision: int) -> Compare:
        """Expect that `key` was created at `revision`, 0 for a key that doesn't exist."""
        return cls(key, Target.CREATE_REVISION, revision)

    @classmethod
    def absent(cls, key: str) -> Compare:
        """Expect that `key` doesn't exist."""
        return cls(key, Target.VERSION, 0)


@dataclass(frozen=True, slots=True)
class Get:
    """Read `key`."""

    key: str


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value` to `key`, which lives as long as `lease` does; 0 is for ever.

    With `ignore_lease`, the key must exist and keeps its lease.
    """

    key: str
    value: bytes
    lease: int = 0
    ignore_lease: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete `key`, if it exists."""

    key: str


Operation: TypeAlias = Get | Put | Delete


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key of the store. Revisions count all transactions of the store that wrote something."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0
