"""A web service which answers once an event is durable in a journal.

    gazette-aio serve --data-dir ./data &
    gazette-aio journals apply examples/events.yaml
    uvicorn examples.fastapi_app:app
    curl -X POST localhost:8000/events -d '{"kind": "click"}' -H 'content-type: application/json'

The broker is that of $BROKER_ADDRESS, else http://localhost:8080.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException

from gazette_aio import BrokerStatusError, JournalClient, OperationTimeoutError
from gazette_aio.contrib.asgi import client_lifespan, journal_client
from gazette_aio.contrib.health import problems

JOURNAL = "examples/events"
TIMEOUT = 5.0
"""Seconds within which a request is answered, and pending events are written at the end."""

Client = Annotated[JournalClient, Depends(journal_client)]

app = FastAPI(lifespan=client_lifespan(timeout=TIMEOUT, drain_timeout=TIMEOUT))


@app.post("/events", status_code=201)
async def post_event(event: dict[str, Any], client: Client) -> dict[str, Any]:
    """Append an event as one line of JSON, and tell where it is."""
    # Appends of concurrent requests share batches, and so RPCs, of the client's append service.
    async with client.appends.append(JOURNAL) as pending:
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


@app.get("/ready")
async def ready(client: Client) -> dict[str, bool]:
    """Tell whether events can be taken: a readiness probe."""
    if found := problems(client):
        raise HTTPException(status_code=503, detail=found)
    return {"ready": True}
