"""State of one Read RPC, as its responses define it.

    begin ──► metadata ──► content… ──► metadata ──► …
                  │            │
                  ├────────────┴──► end of stream, or a status other than OK and then the end
                  └──► end of stream: content is in the file of the fragment

Metadata has the offset at which content continues, the fragment of the content, and the write head.
An offset beyond the expected one is a jump over a hole of the journal. Metadata at the end of the
stream refers to the file of its fragment, if it has a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.rpc.read_message import ReadContent
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.status_errors import status_error

if TYPE_CHECKING:
    from gazette_aio.client.rpc.read_message import ReadMessage

_NOTHING = memoryview(b"")


class ReadState:
    """State of one Read RPC. It alone has the position of the read.

    Args:
        request: The request.
        strict: Whether to check responses for all rules of the protocol.
    """

    def __init__(self, request: pb.ReadRequest, *, strict: bool = False) -> None:
        self.offset: int = request.offset
        """Offset of the next byte to be returned; -1 for the write head, until it's known."""
        self._end = request.end_offset
        self._journal = request.journal
        self._takes_referrals = request.do_not_proxy and not request.metadata_only
        self._strict = strict
        self.failure: pb.BrokerStatusError | None = None
        """Error of the broker's last response, if its status wasn't OK."""
        self._metadata = pb.ReadResponse()
        self._content: ReadMessage | None = None
        self._unread = _NOTHING

    @property
    def is_at_end(self) -> bool:
        """Whether the end was reached, or lies in a hole that was skipped."""
        return 0 < self._end <= self.offset

    def bounded(self, limit: int) -> int:
        """Return how many bytes may be taken up to the end, or -1 for any number.

        Args:
            limit: Most bytes wanted, or -1.
        """
        if not self._end:
            return limit
        remaining = max(self._end - self.offset, 0)
        return min(limit, remaining) if limit >= 0 else remaining

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response. A response with content also has the last fragment and head."""
        content = self._content
        if content is None:
            return self._metadata
        merged = pb.ReadResponse()
        merged.CopyFrom(content.message() if isinstance(content, ReadContent) else content)
        if self._metadata.HasField("fragment"):
            merged.fragment.CopyFrom(self._metadata.fragment)
        merged.write_head = self._metadata.write_head
        return merged

    @property
    def write_head(self) -> int | None:
        """Write head of the journal in the latest metadata, or None before the first."""
        return self._metadata.write_head if self._metadata.ByteSize() else None

    @property
    def referral(self) -> pb.ReadResponse | None:
        """The latest response, if it refers to a fragment file with the content that follows.

        Only valid after the regular end of the RPC.
        """
        # Race: a broker that stops may end an RPC just before content that it had to proxy.
        if (
            self._content is None
            and self._metadata.fragment_url
            and self._takes_referrals
            and not self.is_at_end
        ):
            return self._metadata
        return None

    def failed(self, error: pb.TransportError) -> pb.GazetteError:
        """Return the exception of an RPC that ended with an error."""
        # The broker's status counts, however the RPC ended afterwards.
        if self.failure is not None:
            return self.failure
        if error.code != "DATA_LOSS":
            return error
        # The broker reads the file of the fragment that it described last.
        is_stored = bool(self._metadata.fragment.backing_store)
        loss = pb.FragmentError if is_stored else pb.DataLossError
        return loss(error.details, journal=self._journal, offset=self.offset)

    def receive(self, response: ReadMessage) -> None:
        """Take the next response, after all content of the last one was taken.

        Raises:
            ValidationError: The response is invalid, and the RPC must be ended.
            OffsetJumpError: The offset skipped a hole. Reading may continue.
        """
        assert not self._unread
        # Hot: further rules of content have no consequence.
        content = response.content
        if not isinstance(response, ReadContent) and (
            response.status != pb.Status.OK or not content
        ):
            self._receive_metadata(response)
            return
        self._content = response
        # Invariant: content of a jump is kept, to be taken when reading continues.
        self._unread = memoryview(content)
        if response.offset != self.offset:
            self._skip_to(response.offset)

    def take(self, limit: int = -1) -> bytes:
        """Return up to `limit` bytes of received content, or all of it."""
        unread = self._unread
        if not unread:
            return b""
        if 0 <= (limit := self.bounded(limit)) < len(unread):
            self._unread = unread[limit:]
            unread = unread[:limit]
        else:
            self._unread = _NOTHING
        self.offset += len(unread)
        whole = unread.obj
        return whole if type(whole) is bytes and len(whole) == len(unread) else bytes(unread)

    def _receive_metadata(self, response: pb.ReadResponse) -> None:
        within("ReadResponse", pb.validate, response, strict=self._strict)
        self._content = None
        self._metadata = response
        if response.status != pb.Status.OK:
            if response.status == pb.Status.OFFSET_NOT_YET_AVAILABLE:
                self.offset = max(self.offset, response.offset)
            offset, head = response.offset, response.write_head
            is_beyond = response.status == pb.Status.OFFSET_NOT_YET_AVAILABLE and offset > head
            self.failure = status_error(
                response.status,
                f"offset {offset} is beyond the write head {head}" if is_beyond else "",
                journal=self._journal,
                header=response.header if response.HasField("header") else None,
                response=response,
            )
        elif response.offset != self.offset:
            self._skip_to(response.offset)

    def _skip_to(self, offset: int) -> None:
        """Continue at `offset`, which differs from the expected one."""
        requested = self.offset
        if offset < requested:
            self._unread = _NOTHING
            raise pb.ValidationError(
                f"invalid ReadResponse offset ({offset}; expected >= {requested})"
            )
        self.offset = offset
        if self.is_at_end:
            return  # All of the requested range lies in the hole.
        raise pb.OffsetJumpError(journal=self._journal, offset=offset, requested=requested)
