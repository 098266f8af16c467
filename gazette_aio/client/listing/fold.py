"""Fold of the messages of a List stream into listings, and the plan of resumed watches.

A snapshot begins with a message whose header has a revision, and continues with messages of further
journals. A message without journals ends a snapshot of a watch; a unary listing ends with its
stream.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

import gazette_aio.protocol as pb
from gazette_aio.client.listing.prefixes import unmatched
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.status_errors import status_error

# Wire: `next_page_token` of early versions of the protocol, which v0.89 doesn't have.
_NEXT_PAGE_TOKEN: Final = 4

_SLICE_JOURNALS: Final = 32
"""Journals that one step checks, in about a millisecond."""

MAX_DOUBTS: Final = 7
"""Successive failures, over a second or more, after which a watch begins anew."""


class ListFold:
    """Fold of the messages of a List stream.

    `receive()` takes a whole message at once. In an event loop, call `feed()`, then `step()` until
    it returns False, and then `take()`.

    Args:
        request: The request of the stream.
        strict: Whether to check messages for all rules of the protocol.
    """

    def __init__(self, request: pb.ListRequest, *, strict: bool = False) -> None:
        self._strict = strict
        self._watch = request.watch
        self._after_revision = (
            request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
        )
        self._snapshot: pb.ListResponse | None = None
        self._complete: pb.ListResponse | None = None
        self._message: pb.ListResponse | None = None
        """The message whose journals are checked next, from `_position` on."""
        self._position = 0
        self._messages = 0
        self._is_marked = False

    def receive(self, response: pb.ListResponse) -> pb.ListResponse | None:
        """Take the next message, and return the snapshot that it completes, if any.

        Raises:
            ValidationError: The message is invalid, or out of its order.
            BrokerStatusError: The broker refused the listing.
        """
        self.feed(response)
        while self.step():
            pass
        return self.take()

    def feed(self, response: pb.ListResponse) -> None:
        """Take the next message, which the fold owns, and check everything but its journals.

        Raises:
            ValidationError: The message is invalid, out of its order, or one of several pages.
            BrokerStatusError: The broker refused the listing.
        """
        assert self._message is None, "the message before isn't done"
        unknown = UnknownFieldSet(response)
        if any(unknown[at].field_number == _NEXT_PAGE_TOKEN for at in range(len(unknown))):
            raise pb.ValidationError(
                "the broker lists journals in pages: brokers from v0.89 on are supported"
            )
        self._messages += 1
        snapshot = self._snapshot
        # Wire: further messages may have a header, which is meaningless.
        if snapshot is None or response.status != pb.Status.OK:
            self._check_head(response, (snapshot or response).header)
        if snapshot is None:
            self._begin(response)
        elif not response.journals:
            if not self._watch:
                raise pb.ValidationError("unexpected empty ListResponse.Journals in unary listing")
            self._snapshot, self._complete = None, snapshot
            self._is_marked = True
            return
        if response.journals:
            self._message, self._position = response, 0

    def step(self) -> bool:
        """Check a bounded number of journals of the last message.

        Returns:
            Whether there were any left.

        Raises:
            ValidationError: A journal is invalid.
        """
        message, snapshot, begin = self._message, self._snapshot, self._position
        if message is None or snapshot is None:
            return False
        journals = message.journals[begin : begin + _SLICE_JOURNALS]
        for index, journal in enumerate(journals, begin):
            within(f"Journals[{index}]", pb.validate, journal, strict=self._strict)
        # The first message becomes the snapshot itself; further ones are copied into it.
        if message is not snapshot:
            snapshot.journals.extend(journals)
        self._position += len(journals)
        if self._position >= len(message.journals):
            self._message = None
        return True

    def take(self) -> pb.ListResponse | None:
        """Return the complete snapshot, if there is one, and forget it."""
        complete, self._complete = self._complete, None
        return complete

    def drain(self) -> pb.ListResponse | None:
        """Return the part of a unary listing that wasn't drained yet, and forget it.

        Parts of a listing need less memory than the whole listing.
        """
        part = self._snapshot
        if part is None or not part.journals or self._message is not None:
            return None
        self._snapshot = pb.ListResponse(header=part.header)
        return part

    def end(self) -> pb.ListResponse | None:
        """Note the end of the stream, and return the unary listing that it completes.

        Returns:
            The listing; None if a watch ends between two snapshots.

        Raises:
            UnexpectedEOFError: The stream ended within a snapshot of a watch, or had no message.
        """
        if self._watch and self._snapshot is None:
            return None
        if self._watch or self._snapshot is None:
            raise pb.UnexpectedEOFError("unexpected EOF")
        return self._snapshot

    def unmarked(self) -> pb.ListResponse | None:
        """Return the only message of a watch that ended without the end of its snapshot.

        Brokers up to v0.99 have no watches, and answer with a unary listing.
        """
        return None if self._is_marked or self._messages != 1 else self._snapshot

    def _check_head(self, response: pb.ListResponse, header: pb.Header) -> None:
        head = pb.ListResponse(status=response.status, header=header)
        pb.validate(head, strict=self._strict)
        if head.status != pb.Status.OK:
            raise status_error(head.status, header=head.header, response=response)

    def _begin(self, response: pb.ListResponse) -> None:
        revision = response.header.etcd.revision
        if revision <= self._after_revision and self._after_revision:
            raise _unexpected(revision, f"> {self._after_revision}")
        self._after_revision = revision if self._watch else 0
        self._snapshot = response


class WatchPlan:
    """Plan of the requests of a watch, each of which resumes after the last snapshot.

    A resumed watch waits for revisions after that of the last snapshot. It would wait for ever if
    the broker's key space was created anew, or restored to an earlier revision. So a probe precedes
    it: a listing that matches no journal, whose header has the cluster and its revision.

    Args:
        selector: Selector of the journals to watch.
    """

    def __init__(self, selector: pb.LabelSelector) -> None:
        self._selector = selector
        self._resume: pb.Header | None = None
        self._doubts = 0

    def request(self) -> pb.ListRequest:
        """Return the request of the next watch."""
        return pb.ListRequest(selector=self._selector, watch=True, watch_resume=self._resume)

    def probe(self) -> pb.ListRequest | None:
        """Return the request of a probe before the next watch, if it needs one."""
        if self._resume is None:
            return None
        return pb.ListRequest(selector=unmatched())

    def probed(self, header: pb.Header) -> None:
        """Take the header of the response to `probe()`.

        Raises:
            ValidationError: The broker lags behind the last snapshot, and may catch up.
        """
        if self._resume is None:
            return
        if header.etcd.cluster_id != self._resume.etcd.cluster_id:
            self._resume = None
        elif header.etcd.revision < self._resume.etcd.revision:
            raise _unexpected(header.etcd.revision, f">= {self._resume.etcd.revision}")

    def received(self, header: pb.Header) -> None:
        """Have further watches resume after the snapshot with this header."""
        # A copy: the header of a snapshot would keep the whole snapshot in memory.
        self._resume = pb.Header()
        self._resume.CopyFrom(header)
        self._doubts = 0

    def doubt(self) -> None:
        """Note a failure that resuming may have caused. After several, the watch begins anew."""
        self._doubts += 1
        if self._doubts >= MAX_DOUBTS:
            self._resume = None
            self._doubts = 0


def _unexpected(revision: int, expected: str) -> pb.ValidationError:
    return pb.ValidationError(
        f"server sent unexpected ListResponse revision ({revision}; expected {expected})"
    )
