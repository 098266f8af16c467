"""Sum the delays of flights by carrier, and serve the sums by HTTP: a consumer with a web service.

Each shard reads one partition of the flights, and keeps the sums of its carriers in a file that its
recovery log records. Any member answers `GET /carriers`: it asks the member that serves each shard,
which answers once it has read what's in the partition at the time of the request.

    python -m examples.delays serve --etcd.address=… --broker.address=… --consumer.port=9000

HTTP is served on the port above that of gRPC. `make demo` runs three such members.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import fastapi
import grpc
import grpc.aio
import msgspec
import uvicorn

import gazette_aio.protocol as pb
from gazette_aio import ACK_TXN, json_adapter
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer import Application, JSONFileStore, main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio import Envelope, Publisher
    from gazette_aio.consumer import Service, Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

SERVICE, METHOD = "examples.Delays", "Carriers"


class Flight(msgspec.Struct):
    """The part of a flight that this consumer needs."""

    carrier: str
    arr_delay: int | None


class Delays(msgspec.Struct):
    """Flights of a carrier, and minutes of their delays as far as they're known."""

    flights: int = 0
    known: int = 0
    minutes: int = 0


Carriers = dict[str, Delays]


class Question(msgspec.Struct):
    """A request to the member that serves a shard."""

    shard: str
    journal: str
    offset: int
    header: bytes = b""


class FlightDelays(Application[Flight, JSONFileStore[Carriers]]):
    """Sums delays by carrier."""

    def adapter(self, spec: JournalSpec) -> Adapter[Flight]:
        """Flights are JSON; other members of them are passed over."""
        return json_adapter(Flight)

    def new_store(self, shard: Shard, recorder: Any) -> JSONFileStore[Carriers]:
        """Sums are in one file, which the shard's recovery log restores."""
        return JSONFileStore(recorder, Carriers(), loads=msgspec.json.Decoder(Carriers).decode)

    def consume_message(
        self,
        shard: Shard,
        store: JSONFileStore[Carriers],
        envelope: Envelope[Flight],
        publisher: Publisher[Any],
    ) -> None:
        """Add a flight to its carrier."""
        if envelope.flags == ACK_TXN:
            return
        flight = envelope.message
        delays = store.state.setdefault(flight.carrier, Delays())
        delays.flights += 1
        if flight.arr_delay is not None:
            delays.known += 1
            delays.minutes += flight.arr_delay

    async def init_application(self, service: Service) -> None:
        """Serve questions of other members, and HTTP."""

        async def answer(request: bytes, _context: Any) -> bytes:
            return await ask(service, msgspec.json.decode(request, type=Question))

        handler = grpc.unary_unary_rpc_method_handler(answer)
        service.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})]
        )
        service.spawn(serve_http(service))


class _Server(uvicorn.Server):
    """A server that leaves signals to the member."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(service: Service) -> None:
    """Serve HTTP until cancelled."""
    port = int(service.endpoint.rpartition(":")[2]) + 1
    host = service.options.bind or "0.0.0.0"
    server = _Server(uvicorn.Config(web_app(service), host=host, port=port, log_config=None))
    serving = asyncio.create_task(server.serve())
    try:
        await asyncio.wait((serving,))
    finally:
        server.should_exit = True
        await asyncio.wait((serving,))


def web_app(service: Service) -> fastapi.FastAPI:
    """Return the web service of a member."""
    app = fastapi.FastAPI()

    @app.get("/carriers")
    async def carriers() -> dict[str, dict[str, int]]:
        """Return the delays of all carriers, with everything that was published before."""
        total: Carriers = {}
        for item in service.session.group.items.values():
            journal = item.spec.sources[0].journal
            question = Question(item.id, journal, await head_of(service.client, journal))
            try:
                answer = await ask(service, question)
            except (pb.ShardStatusError, grpc.aio.AioRpcError) as error:
                # A member has gone, and its shards aren't assigned anew yet: ask again.
                raise fastapi.HTTPException(503, f"{item.id}: {error}") from error
            total |= msgspec.json.decode(answer, type=Carriers)
        return {name: msgspec.structs.asdict(delays) for name, delays in sorted(total.items())}

    return app


async def ask(service: Service, question: Question) -> bytes:
    """Return the sums of a shard as JSON, from the member that serves it."""
    is_proxied = bool(question.header)
    async with service.resolve(
        question.shard,
        may_proxy=not is_proxied,
        proxy_header=pb.Header.FromString(question.header) if is_proxied else None,
        read_through={question.journal: question.offset},
    ) as resolution:
        resolution.raise_for_status()
        if isinstance(resolution.store, JSONFileStore):
            return msgspec.json.encode(resolution.store.state)
        question.header = resolution.header.SerializeToString()
        call: Any = service.peer_channel(resolution).unary_unary(f"/{SERVICE}/{METHOD}")
        reply: bytes = await call(msgspec.json.encode(question))
        return reply


if __name__ == "__main__":
    main(FlightDelays())
