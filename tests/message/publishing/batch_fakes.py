"""An AppendService of in-memory journals which batches may be published through."""

from __future__ import annotations

import asyncio

from gazette_aio.client.appends.journal_errors import ClearedError
from tests.message.fakes import FakeAppend, FakeAppends


class BatchAppend(FakeAppend):
    """An append which is written to in pieces."""

    def __init__(self, service, journal):
        super().__init__(service, journal)
        self.pieces = []

    def write(self, data):
        self.pieces.append(data)
        return len(data)

    async def drain(self):
        self._service.drained += 1
        await asyncio.sleep(0)

    def roll_back(self, error):
        self._service.rolled_back.append((self._journal, error))
        self._service.locks[self._journal].release()

    def release(self):
        self._data = b"".join(self.pieces)
        self._service.released.append(self._journal)
        super().release()


class BatchAppends(FakeAppends):
    """Journals in memory, of which one append after the other is held."""

    def __init__(self, client=None, *, fast=True, cutoff_bytes=64 << 20):
        super().__init__(client, fast=fast)
        self.cutoff_bytes = cutoff_bytes
        self.drained = 0
        self.released = []
        self.rolled_back = []
        self.cleared = {}

    def clear_error(self, journal, error):
        self.cleared[journal] = ClearedError(error, 1)

    def cleared_error(self, journal):
        return self.cleared.get(journal)

    async def start_append(self, journal, dependencies=()):
        await super().start_append(journal, dependencies)
        return BatchAppend(self, journal)
