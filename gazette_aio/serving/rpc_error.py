"""Failure of an RPC: the gRPC code and text for its client."""

from __future__ import annotations

from typing import Final

import grpc

CODES: Final[dict[str, int]] = {code.name: code.value[0] for code in grpc.StatusCode}
"""Numbers of gRPC codes by their names."""


def failure_text(error: Exception) -> str:
    """Return the text of an unexpected failure for clients, who see no paths of the server."""
    text = str(error)
    if isinstance(error, OSError):
        text = error.strerror or ""
    return f"{type(error).__name__}: {text}"


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
