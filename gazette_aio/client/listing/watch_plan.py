"""Plan of the requests of a watch."""

from __future__ import annotations

from typing import Final

import gazette_aio.protocol as pb
from gazette_aio.client.listing.compat import unmatched

MAX_DOUBTS: Final = 7
"""Successive failures, over a second or more, after which a watch begins anew."""


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
        assert self._resume is not None, "only a watch that resumes is probed"
        if header.etcd.cluster_id != self._resume.etcd.cluster_id:
            self._resume = None
        elif header.etcd.revision < self._resume.etcd.revision:
            raise unexpected_revision(header.etcd.revision, f">= {self._resume.etcd.revision}")

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


def unexpected_revision(revision: int, expected: str) -> pb.ValidationError:
    """Return the error of a listing whose revision isn't the expected one."""
    return pb.ValidationError(
        f"server sent unexpected ListResponse revision ({revision}; expected {expected})"
    )
