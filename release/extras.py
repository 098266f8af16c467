"""`python release/extras.py [EXTRA]`: use what an extra is for, where it alone is installed.

Without an argument, nothing of any extra can be imported, and each use has to name its extra.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = frozenset(
    {
        *(
            "aiosqlite",
            "apsw",
            "fastapi",
            "google_crc32c",
            "grpc_health",
            "grpc_reflection",
            "numpy",
            "obstore",
            "opentelemetry",
            "polars",
        ),
        *("prometheus_client", "psycopg", "pyarrow", "pydantic", "pyspark", "pytest"),
        *("pytest_asyncio", "rocksdict", "sqlalchemy", "starlette", "uvloop"),
    }
)


class Absent:
    """Finder of the packages of extras, which finds none."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse a package of an extra."""
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def modules(*names: str) -> Callable[[], object]:
    """Return a function that imports modules of the package."""
    return lambda: [importlib.import_module(f"gazette_aio.{name}") for name in names]


def read_columns() -> None:
    """Begin to read messages as columns."""
    from gazette_aio import ReadUncommittedIter, connect, json_adapter

    async def read() -> None:
        async with connect("http://127.0.0.1:1") as client:
            messages = ReadUncommittedIter("a/journal", json_adapter(), client=client)
            async with messages:
                messages.arrow()

    asyncio.run(read())
    modules("message.ranges.committed", "message.columns.outputs")()


def allocate() -> None:
    """Solve an allocation, and import what recovery logs need."""
    from gazette_aio.consumer.allocator.model import Allocation
    from gazette_aio.consumer.allocator.solver import solve

    solve(Allocation.of([], []))
    modules("consumer.recoverylog", "consumer.service.service", "consumer.stores.sqlite.store")()


def adapt_a_model() -> None:
    """Make an adapter of messages that are models of pydantic."""
    from pydantic import BaseModel

    from gazette_aio import json_adapter

    json_adapter(type("Model", (BaseModel,), {}))


def serve() -> None:
    """Look for the services for tools, and for the client of stores in a cloud."""
    modules("serving.extras")()
    from gazette_aio.broker.stores.object_config import check_installed

    check_installed("s3")
    importlib.import_module("gazette_aio.broker.stores.object_store")


def make_a_source() -> None:
    """Take the data source of Spark."""
    from gazette_aio import spark

    _ = spark.GazetteDataSource


def run_by_uvloop() -> None:
    """Append by its event loop."""
    import uvloop

    from gazette_aio import EmbeddedBroker, connect
    from gazette_aio.testing import create_journals, journal_spec

    async def append() -> None:
        async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
            await create_journals(client, journal_spec("a/journal"))
            await client.append("a/journal", b"content")

    uvloop.run(append())


USES: dict[str, Callable[[], Any]] = {
    "arrow": read_columns,
    "asgi": modules("contrib.asgi"),
    "consumer": allocate,
    "metrics": modules("contrib.prometheus", "consumer.service.metrics"),
    "otel": modules("contrib.otel"),
    "postgres": modules("contrib.postgres", "consumer.stores.sql"),
    "pydantic": adapt_a_model,
    "pytest": modules("testing.plugin"),
    "rocksdb": modules("consumer.stores.rocksdb.store"),
    "server": serve,
    "spark": make_a_source,
    "sql": modules("consumer.stores.sql"),
    "uvloop": run_by_uvloop,
}
"""What each extra is for."""

WITHOUT_A_MESSAGE = frozenset({"pydantic", "pytest", "uvloop"})
"""Extras whose packages programs import themselves."""


def main(extra: str) -> int:
    """Use one extra, or require that each use without them names its extra."""
    if extra:
        USES[extra]()
        return 0
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]
    unnamed = []
    for name, use in USES.items():
        if name in WITHOUT_A_MESSAGE:
            continue
        try:
            use()
        except (ImportError, pb.GazetteError) as error:
            if f"gazette-aio[{name}]" not in str(error):
                unnamed.append(f"{name}: {error!r}")
        else:
            unnamed.append(f"{name}: no error")
    print("\n".join(unnamed), end="")
    return len(unnamed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
