"""HTTP routes of journal specs and their edits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import apply_journals, get_journal
from gazette_aio.console.exchange import CALL_SECONDS, answer, body, credentials, failure
from gazette_aio.console.specs import SpecApplied, SpecEdit, edit_request, review, spec_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from gazette_aio.console.exchange import OpenClient


class SpecDoors:
    """Answers requests for specs and their edits.

    An edit expects the revision of the spec that was edited, and its token must permit `APPLY`. The
    brokers check both.

    Args:
        open_client: Opens a client of the brokers.
        applied: Called after each edit that was applied.
        read_only: Whether edits are refused.
    """

    def __init__(
        self, open_client: OpenClient, *, applied: Callable[[], None], read_only: bool
    ) -> None:
        self._open_client = open_client
        self._applied = applied
        self._read_only = read_only

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        application.router.add_get("/api/spec", self._spec)
        application.router.add_post("/api/review", self._review)
        application.router.add_post("/api/apply", self._apply)

    async def _spec(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        pb.validate_journal(name)
        async with self._open_client(credentials(request)) as client:
            journal = await get_journal(client, name, timeout=CALL_SECONDS)
        return answer(await in_thread(spec_text, journal))

    async def _review(self, request: web.Request) -> web.StreamResponse:
        change = await in_thread(edit_request, await body(request, SpecEdit))
        name = change.changes[0].upsert.name
        async with self._open_client(credentials(request)) as client:
            try:
                journal = await get_journal(client, name, timeout=CALL_SECONDS)
            except pb.JournalNotFoundError:
                present = {}
            else:
                present = {name: journal}
        return answer(await in_thread(review, change, present))

    async def _apply(self, request: web.Request) -> web.StreamResponse:
        if self._read_only:
            return failure(403, "the console is read-only")
        change = await in_thread(edit_request, await body(request, SpecEdit))
        async with self._open_client(credentials(request)) as client:
            try:
                applied = await apply_journals(client, change, timeout=CALL_SECONDS)
            except pb.EtcdTransactionFailedError:
                return failure(
                    409, "nothing was applied: the journal has changed since it was opened"
                )
        self._applied()
        revision = str(applied.header.etcd.revision)
        return answer(SpecApplied(name=change.changes[0].upsert.name, revision=revision))
