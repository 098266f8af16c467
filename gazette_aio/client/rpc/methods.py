"""Methods of the broker's service on a channel. Their responses are left encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.protocol import service

if TYPE_CHECKING:
    import grpc.aio
    from google.protobuf.message import Message

    import gazette_aio.protocol as pb


class Methods:
    """Begins RPCs on one channel.

    Args:
        channel: The channel.
    """

    # Wire: grpcio returns None for a response that its deserializer fails on, so it has none.
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.list: Any = channel.unary_stream(service.LIST, _encode, _undecoded)
        self.apply: Any = channel.unary_unary(service.APPLY, _encode, _undecoded)
        self.read: Any = channel.unary_stream(service.READ, _encode, _undecoded)
        self.append: Any = channel.stream_unary(service.APPEND, _encode_append, _undecoded)
        self.list_fragments: Any = channel.unary_unary(service.LIST_FRAGMENTS, _encode, _undecoded)
        self.fragment_store_health: Any = channel.unary_unary(
            service.FRAGMENT_STORE_HEALTH, _encode, _undecoded
        )


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _encode_append(message: pb.AppendRequest | bytes) -> bytes:
    # Hot: content chunks are encoded already, which saves copies.
    return message if isinstance(message, bytes) else message.SerializeToString()


def _undecoded(data: bytes) -> bytes:
    return data
