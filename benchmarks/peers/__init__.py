"""Measures beside clients of Kafka and a Go client; `python -m benchmarks --suite peers`.

A real Kafka runs on this machine: one node, without ZooKeeper. Its jars and the Python clients are
downloaded to `.bench/peers` by the first run. Without Java or Maven, the measures are left out.

A Go client takes part if `GAZETTE_GO_BENCH` names a program. It's called by

    PROGRAM publish ENDPOINT JOURNAL FILE TRANSACTION
    PROGRAM read    ENDPOINT JOURNAL HEAD

and prints the number of messages and the seconds that they took, as `150000 0.71`, without the time
to connect. `publish` sends each line of FILE, a JSON object without a UUID, in transactions of that
many messages, and ends after the last commit. `read` decodes the committed messages of the journal
from offset 0 to HEAD. ENDPOINT is a URL such as `http://127.0.0.1:8080`.
"""

from __future__ import annotations

import importlib
import os

from benchmarks.peers import kafka


def load() -> None:
    """Register the measures whose peers are there."""
    if missing := kafka.missing():
        print(f"no {missing}: measures beside Kafka are left out")
    else:
        kafka.download()
        importlib.import_module(f"{__name__}.beside_kafka")
    if os.environ.get("GAZETTE_GO_BENCH"):
        importlib.import_module(f"{__name__}.beside_go")
    else:
        print("GAZETTE_GO_BENCH isn't set: measures beside a Go client are left out")
