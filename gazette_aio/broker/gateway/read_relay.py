"""Relay of a read: the responses of the broker as one HTTP response.

    OPENING --metadata, OK--> STREAMING --content--> STREAMING
       |                          |
       +--another status--> ENDED <--another status, or a jump of the offset

The first response may have another offset than requested, which the headers show. A later jump
can't be shown in headers, so the body ends.
"""

from __future__ import annotations

import enum

import gazette_aio.protocol as pb

BROKER_TERMINATED = "broker terminated RPC"
OFFSET_JUMP = "offset jump"


class RelayState(enum.Enum):
    """State of a relayed read."""

    OPENING = enum.auto()
    STREAMING = enum.auto()
    ENDED = enum.auto()


class ReadRelay:
    """Decides on the responses of one read, in order."""

    __slots__ = ("offset", "reason", "state")

    def __init__(self) -> None:
        self.state: RelayState = RelayState.OPENING
        self.offset: int = 0
        """Offset of the next byte."""
        self.reason: str = BROKER_TERMINATED
        """Why the body ends, if it ended now."""

    def metadata(self, response: pb.ReadResponse) -> bool:
        """Take a response without content; return whether the read continues."""
        opening = self.state is RelayState.OPENING
        if response.status != pb.Status.OK:
            self._end(pb.Status.Name(response.status))
        elif not opening and response.offset != self.offset:
            self._end(OFFSET_JUMP)
        else:
            self.state = RelayState.STREAMING
            self.offset = response.offset
        return self.state is RelayState.STREAMING

    def content(self, length: int) -> None:
        """Take `length` bytes of content."""
        assert self.state is RelayState.STREAMING
        self.offset += length

    def fail(self, text: str) -> None:
        """Take the failure of the read."""
        self._end(text)

    def _end(self, reason: str) -> None:
        self.state = RelayState.ENDED
        self.reason = reason
