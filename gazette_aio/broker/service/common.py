"""Steps shared by several kinds of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    from gazette_aio.broker.core import BrokerCore

T = TypeVar("T")

_INLINE_BYTES = 8 << 10
"""Longest message that is processed without a worker thread, in bytes."""

URL_SECONDS = 60.0
"""Seconds in which clients can fetch a fragment by the URL of a read."""


def is_long(message: Message) -> bool:
    """Return whether to process a message in a worker thread."""
    return message.ByteSize() > _INLINE_BYTES


async def process(core: BrokerCore, function: Callable[..., T], *messages: Message) -> T:
    """Call a function of messages, in a worker thread if one of them is long.

    Cancellation: safe — takes effect after the call.
    """
    if any(map(is_long, messages)):
        return await core.bulk.run(function, *messages)
    return function(*messages)


async def validate(core: BrokerCore, request: Message) -> None:
    """Validate a request.

    Raises:
        RpcError: The request is invalid. The text names the violation.

    Cancellation: safe — takes effect after the validation.
    """
    try:
        await process(core, pb.validate, request)
    except pb.ValidationError as error:
        raise RpcError(str(error)) from None


async def signed_urls(
    core: BrokerCore, fragments: Sequence[pb.Fragment], seconds: float = URL_SECONDS
) -> list[str]:
    """Return URLs for clients to fetch persisted fragments; empty without a URL.

    Raises:
        RpcError: A URL can't be signed.

    Cancellation: safe.
    """
    urls = [""] * len(fragments)
    by_store: dict[str, list[int]] = {}
    for position, fragment in enumerate(fragments):
        by_store.setdefault(fragment.backing_store, []).append(position)
    for store, positions in by_store.items():
        stored = [fragments[position] for position in positions]
        try:
            signed = await core.stores.get(store).sign_gets(stored, seconds)
        except pb.StoreError as error:
            raise RpcError(str(error)) from None
        for position, url in zip(positions, signed, strict=True):
            urls[position] = url
    return urls
