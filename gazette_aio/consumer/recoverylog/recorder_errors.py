"""Exceptions of recorders."""

from __future__ import annotations

from gazette_aio.protocol.errors import FencedError, StoreError


class RecorderError(StoreError):
    """A recorder was misused or has failed. It records nothing further."""


class RecorderFencedError(RecorderError, FencedError):
    """Another process has taken over the recovery log. Nothing of this recorder is committed."""
