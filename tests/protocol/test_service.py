"""Methods of the service."""

from __future__ import annotations

import gazette_aio.protocol as pb


def test_methods_are_those_of_the_descriptor():
    descriptor = pb.ReadRequest.DESCRIPTOR.file.services_by_name["Journal"]
    assert descriptor.full_name == pb.SERVICE_NAME
    assert {method.name for method in pb.METHODS.values()} == set(descriptor.methods_by_name)
    for path, method in pb.METHODS.items():
        described = descriptor.methods_by_name[method.name]
        assert method.path == path == f"/{pb.SERVICE_NAME}/{method.name}"
        assert method.request.DESCRIPTOR is described.input_type
        assert method.response.DESCRIPTOR is described.output_type
        assert method.client_streaming == described.client_streaming
        assert method.server_streaming == described.server_streaming


def test_paths():
    paths = [pb.LIST, pb.APPLY, pb.READ, pb.APPEND, pb.REPLICATE]
    paths += [pb.LIST_FRAGMENTS, pb.FRAGMENT_STORE_HEALTH]
    assert list(pb.METHODS) == paths
    assert set(pb.REQUIRED_CAPABILITIES) == set(paths)


def test_encoding_on_the_wire():
    request = pb.ReadRequest(journal="a/journal", offset=-1, block=True)
    assert request.SerializeToString().hex() == "1209612f6a6f75726e616c18ffffffffffffffffff012001"
    request = pb.FragmentsRequest(journal="a/journal", signatureTTL=pb.duration_proto(60 * 10**9))
    assert request.SerializeToString().hex() == "1209612f6a6f75726e616c3a02083c"
    assert pb.AppendRequest().SerializeToString() == b""
    assert pb.Route(primary=-1).SerializeToString().hex() == "10ffffffffffffffffff01"
