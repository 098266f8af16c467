"""What several kinds of requests do alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from google.protobuf.message import Message


def validated(request: Message) -> None:
    """Validate a request.

    Raises:
        RpcError: If it's invalid, with the text of the violation.
    """
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        raise RpcError(str(error)) from None
