"""The failure of an RPC which isn't a response."""

from __future__ import annotations


class RpcError(Exception):
    """An RPC ends with a gRPC code and text.

    Args:
        text: What the client is told.
        code: Name of the gRPC code.
    """

    def __init__(self, text: str, code: str = "UNKNOWN") -> None:
        self.text = text
        self.code = code
        super().__init__(text)
