"""From messages of a List stream to whole listings.

A snapshot begins with a message whose header has a revision, and goes on with messages which are
just more journals. A message without journals ends a snapshot of a watch, whereas a unary listing
ends with its stream.
"""

from __future__ import annotations

import gazette_aio.protocol as pb


class ListFold:
    """Gathers the messages of a List stream.

    Args:
        request: The request of the stream.
        strict: Whether to check messages for all rules.
    """

    __slots__ = ("_after_revision", "_snapshot", "_strict", "_watch")

    def __init__(self, request: pb.ListRequest, *, strict: bool = False) -> None:
        self._strict = strict
        self._watch = request.watch
        self._after_revision = (
            request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
        )
        self._snapshot: pb.ListResponse | None = None

    def receive(self, response: pb.ListResponse) -> pb.ListResponse | None:
        """Take the next message, and return a snapshot which it completes.

        Raises:
            ValidationError: The message is invalid, or isn't one which may come next.
            BrokerStatusError: The broker refused the listing.
        """
        snapshot = self._snapshot
        if snapshot is None:
            pb.validate(response, strict=self._strict)
            self._begin(response)
            return None
        # Wire: the header of further messages is there or not, and says nothing in either case.
        response.header.CopyFrom(snapshot.header)
        pb.validate(response, strict=self._strict)
        if not response.journals:
            if not self._watch:
                raise pb.ValidationError("unexpected empty ListResponse.Journals in unary listing")
            self._snapshot = None
            return snapshot
        snapshot.journals.extend(response.journals)
        return None

    def end(self) -> pb.ListResponse | None:
        """Note the end of the stream, and return the unary listing which it completes.

        Returns:
            The listing; None if a watch ends between two snapshots.

        Raises:
            UnexpectedEOFError: It ended within a snapshot of a watch, or there was no message.
        """
        if self._watch:
            if self._snapshot is not None:
                raise pb.UnexpectedEOFError("unexpected EOF")
            return None
        if self._snapshot is None:
            raise pb.UnexpectedEOFError("unexpected EOF")
        return self._snapshot

    def _begin(self, response: pb.ListResponse) -> None:
        if response.status != pb.Status.OK:
            raise pb.status_error(response.status, header=response.header, response=response)
        revision = response.header.etcd.revision
        if revision <= self._after_revision and self._after_revision:
            raise pb.ValidationError(
                "server sent unexpected ListResponse revision "
                f"({revision}; expected > {self._after_revision})"
            )
        self._after_revision = revision if self._watch else 0
        self._snapshot = pb.ListResponse()
        self._snapshot.CopyFrom(response)
