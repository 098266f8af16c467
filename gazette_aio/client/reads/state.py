"""What the responses of one Read RPC mean.

    begin ──► metadata ──► content… ──► metadata ──► …
                  │            │
                  ├────────────┴──► end of stream, or a status other than OK and then the end
                  └──► end of stream: content is in the file of the fragment

Metadata tells the offset at which content continues, the fragment which it's of, and the write
head. A metadata offset beyond the expected one is a jump over a hole of the journal. Metadata which
nothing follows refers to the file of its fragment, if it tells its URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.client.reads.position import ReadPosition
from gazette_aio.client.rpc.read_message import ReadContent
from gazette_aio.protocol.errors import status_error

if TYPE_CHECKING:
    from gazette_aio.client.rpc.read_message import ReadMessage

_NOTHING = memoryview(b"")


class ReadState:
    """Follows the responses of one Read RPC.

    Args:
        request: The request.
        strict: Whether to check responses for all rules of the protocol.
    """

    __slots__ = (
        "_content",
        "_journal",
        "_metadata",
        "_strict",
        "_takes_referrals",
        "_unread",
        "failure",
        "position",
    )

    def __init__(self, request: pb.ReadRequest, *, strict: bool = False) -> None:
        self.position = ReadPosition(request.offset, request.end_offset)
        """Offset of the next byte to be returned."""
        self._journal = request.journal
        self._takes_referrals = request.do_not_proxy and not request.metadata_only
        self._strict = strict
        self.failure: pb.BrokerStatusError | None = None
        """The status other than OK which the broker ended with."""
        self._metadata = pb.ReadResponse()
        self._content: ReadMessage | None = None
        self._unread = _NOTHING

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response; one of content also has the fragment and head known before it."""
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
        """Write head of the journal, as the latest metadata has it, or None if there is none."""
        return self._metadata.write_head if self._metadata.ByteSize() else None

    @property
    def referral(self) -> pb.ReadResponse | None:
        """The latest response, if its fragment's file has the content that the RPC ended ahead of.

        It means so only once the RPC has ended well.
        """
        # Race: a broker which stops may end an RPC just ahead of content which it was to proxy.
        if (
            self._content is None
            and self._metadata.fragment_url
            and self._takes_referrals
            and not self.position.is_at_end
        ):
            return self._metadata
        return None

    def receive(self, response: ReadMessage) -> None:
        """Take the next response, once all content of the last one was taken.

        Raises:
            ValidationError: The response is invalid. The stream must be given up.
            OffsetJumpError: The offset skipped over a hole. The stream may be read on.
        """
        assert not self._unread
        # Hot: other rules of content are without consequence.
        content = response.content
        if not isinstance(response, ReadContent) and (
            response.status != pb.Status.OK or not content
        ):
            self._receive_metadata(response)
            return
        self._content = response
        # Invariant: what comes with a jump is kept, to be taken when reading goes on.
        self._unread = memoryview(content)
        if response.offset != self.position.offset:
            self._skip_to(response.offset)

    def take(self, limit: int = -1) -> bytes:
        """Return up to `limit` bytes of content which was received, or all of it."""
        unread = self._unread
        if not unread:
            return b""
        position = self.position
        if 0 <= (limit := position.bounded(limit)) < len(unread):
            self._unread = unread[limit:]
            unread = unread[:limit]
        else:
            self._unread = _NOTHING
        position.move_to(position.offset + len(unread))
        whole = unread.obj
        return whole if type(whole) is bytes and len(whole) == len(unread) else bytes(unread)

    def _receive_metadata(self, response: pb.ReadResponse) -> None:
        position = self.position
        try:
            pb.validate(response, strict=self._strict)
        except pb.ValidationError as error:
            raise error.extend("ReadResponse") from None

        self._content = None
        self._metadata = response
        if response.status != pb.Status.OK:
            if response.status == pb.Status.OFFSET_NOT_YET_AVAILABLE:
                position.move_to(max(position.offset, response.offset))
            self.failure = status_error(
                response.status,
                journal=self._journal,
                header=response.header if response.HasField("header") else None,
                response=response,
            )
        elif response.offset != position.offset:
            self._skip_to(response.offset)

    def _skip_to(self, offset: int) -> None:
        """Continue at `offset`, which isn't the expected one."""
        requested = self.position.offset
        if offset < requested:
            raise pb.ValidationError(
                f"invalid ReadResponse offset ({offset}; expected >= {requested})"
            )
        self.position.move_to(offset)
        if self.position.is_at_end:
            return  # All that was asked for lies in the hole.
        raise pb.OffsetJumpError(journal=self._journal, offset=offset, requested=requested)
