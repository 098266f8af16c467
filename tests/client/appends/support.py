from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.client import AppendService, AsyncAppend


async def write(
    service: AppendService,
    journal: str | pb.AppendRequest,
    data: bytes,
    dependencies: Iterable[asyncio.Future[Any]] = (),
) -> AsyncAppend:
    append = await service.start_append(journal, dependencies)
    append.write(data)
    append.release()
    return append
