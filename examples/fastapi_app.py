"""A web service which answers once an event is durable in a journal.

    gazette-aio serve --data-dir ./data &
    gazette-aio journals apply examples/events.yaml
    uvicorn examples.fastapi_app:app
    curl -X POST localhost:8000/events -d '{"kind": "click"}' -H 'content-type: application/json'

The broker is that of $BROKER_ADDRESS, else http://localhost:8080.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, HTTPException, Request

from gazette_aio import BrokerStatusError, OperationTimeoutError, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

JOURNAL = "examples/events"
TIMEOUT = 5.0
"""Seconds within which a request is answered, and pending events are written at the end."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Keep one client for the life of the service."""
    async with connect(timeout=TIMEOUT, drain_timeout=TIMEOUT) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events", status_code=201)
async def post_event(event: dict[str, Any], request: Request) -> dict[str, Any]:
    """Append an event as one line of JSON, and tell where it is."""
    # Appends of concurrent requests share batches, and so RPCs, of the client's append service.
    async with request.app.state.client.appends.append(JOURNAL) as pending:
        pending.write(msgspec.json.encode(event) + b"\n")
    try:
        await pending
    except BrokerStatusError as error:
        raise HTTPException(status_code=503, detail=str(error)) from error
    except OperationTimeoutError as error:
        # The event stays pending, and is stored as soon as a broker takes it.
        raise HTTPException(status_code=504, detail=str(error)) from error
    begin, end = pending.commit_range
    return {"journal": JOURNAL, "begin": begin, "end": end}
