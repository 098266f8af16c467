"""A scripted Etcd, for what a real one does only at bad times."""

from __future__ import annotations

from typing import Any, Self

import grpc
import grpc.aio

from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb

HEADER = pb.ResponseHeader(cluster_id=1, member_id=2, revision=3, raft_term=4)


class StubEtcd:
    """Answers calls by scripted functions, in an async context manager.

    A script is a list of answers of one method: messages, pairs of a status code and its text, or
    functions that return one of both for the call's token. The last one repeats.
    """

    def __init__(self, **scripts: list[Any]) -> None:
        status = pb.StatusResponse(header=HEADER, version="3.5.1")
        self.scripts = {"Status": [status], **scripts}
        self.calls: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(None)

    async def answer(self, name: str, context: Any) -> bytes:
        self.calls.append(name)
        self.metadata.append(dict(context.invocation_metadata()))
        script = self.scripts[name]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if callable(answer):
            answer = answer(self.metadata[-1].get("token"))
        if isinstance(answer, tuple):
            await context.abort(*answer)
        encoded: bytes = answer.SerializeToString()
        return encoded


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, stub: StubEtcd) -> None:
        self._stub = stub

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]

        async def serve(request: bytes, context: Any) -> bytes:
            return await self._stub.answer(name, context)

        return grpc.unary_unary_rpc_method_handler(serve)
