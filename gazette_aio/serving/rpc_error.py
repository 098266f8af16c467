"""Failure of an RPC: the gRPC code and text which its client gets."""

from __future__ import annotations


class RpcError(Exception):
    """An RPC ends with a gRPC code and a text.

    Args:
        text: Text for the client.
        code: Name of the gRPC code.
    """

    def __init__(self, text: str, code: str = "UNKNOWN") -> None:
        self.text = text
        self.code = code
        super().__init__(text)
