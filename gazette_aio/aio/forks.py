"""Descriptors that children of a fork close.

A lock by `flock`, a listening socket and a connection last until the last process that has their
descriptor ends. After `kill -9` of their owner, a worker that was forked from it would keep them
from the owner's successor. So each child closes its copies at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

no_fork: threading.RLock = threading.RLock()
"""Held while a descriptor is opened or closed: meanwhile the process doesn't fork."""

_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def close_in_children(owner: T, close: Callable[[T], object]) -> None:
    """Have each child that is forked while `owner` exists call `close(owner)`.

    Children that are made otherwise than by `os.fork()`, such as by C code, don't.

    Args:
        owner: Owner of descriptors.
        close: Closes the child's copies. It doesn't refer to the owner, and must not change what
            the parent sees, as a shutdown of a socket or the release of a lock would.
    """
    with no_fork:
        _register()
        _owners[owner] = close


@functools.cache
def _register() -> None:
    os.register_at_fork(
        before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_in_child
    )


def _in_child() -> None:
    owners = tuple(_owners.items())
    _owners.clear()
    no_fork.release()
    for owner, close in owners:
        with contextlib.suppress(OSError):  # Such as no free descriptor: others close without.
            close(owner)
