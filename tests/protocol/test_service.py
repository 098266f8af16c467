"""Methods of the service."""

from __future__ import annotations

from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol.auth.claims import REQUIRED_CAPABILITIES
from gazette_aio.protocol.service import (
    APPEND,
    APPLY,
    FRAGMENT_STORE_HEALTH,
    LIST,
    LIST_FRAGMENTS,
    METHODS,
    READ,
    REPLICATE,
    SERVICE_NAME,
    SHARD_APPLY,
    SHARD_GET_HINTS,
    SHARD_LIST,
    SHARD_METHODS,
    SHARD_SERVICE_NAME,
    SHARD_STAT,
    SHARD_UNASSIGN,
)


@pytest.mark.parametrize(
    ("message", "full_name", "methods"),
    [
        (pb.ReadRequest, SERVICE_NAME, METHODS),
        (pb.consumer.StatRequest, SHARD_SERVICE_NAME, SHARD_METHODS),
    ],
)
def test_methods_are_those_of_the_descriptor(message: Any, full_name: str, methods: Any):
    (descriptor,) = message.DESCRIPTOR.file.services_by_name.values()
    assert descriptor.full_name == full_name
    assert {method.name for method in methods.values()} == set(descriptor.methods_by_name)
    for path, method in methods.items():
        described = descriptor.methods_by_name[method.name]
        assert method.path == path == f"/{full_name}/{method.name}"
        assert method.request.DESCRIPTOR is described.input_type
        assert method.response.DESCRIPTOR is described.output_type
        assert method.client_streaming == described.client_streaming
        assert method.server_streaming == described.server_streaming


def test_paths():
    paths = [LIST, APPLY, READ, APPEND, REPLICATE]
    paths += [LIST_FRAGMENTS, FRAGMENT_STORE_HEALTH]
    assert list(METHODS) == paths
    shards = [SHARD_STAT, SHARD_LIST, SHARD_APPLY, SHARD_GET_HINTS, SHARD_UNASSIGN]
    assert list(SHARD_METHODS) == shards
    assert list(REQUIRED_CAPABILITIES) == paths + shards
