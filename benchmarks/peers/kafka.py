"""A Kafka of one node, which runs until the exit, and its Python clients."""

from __future__ import annotations

import atexit
import base64
import functools
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
DOWNLOADS: Final = HERE.parents[1] / ".bench" / "peers"
JARS: Final = DOWNLOADS / "jars"
CLIENTS: Final = DOWNLOADS / "python"
CONNECTOR: Final = DOWNLOADS / "connector"
"""Jars of Spark's source of Kafka."""
START_SECONDS: Final = 300

CONFIG: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
auto.create.topics.enable=false
"""


def missing() -> str | None:
    """Return the first program that Kafka needs and this machine doesn't have."""
    return next((name for name in ("java", "mvn") if shutil.which(name) is None), None)


def download() -> None:
    """Download what isn't there yet, and make the clients importable."""
    pinned = HERE / "requirements.txt"
    _once(
        CLIENTS,
        pinned,
        [sys.executable, "-m", "pip", "install", "-q", "-t", str(CLIENTS), "-r", str(pinned)],
    )
    _copy_jars(JARS, HERE / "pom.xml")
    # At the end: what both need is ours.
    sys.path.append(str(CLIENTS))


def download_connector() -> None:
    """Download Spark's source of Kafka, unless it's there."""
    _copy_jars(CONNECTOR, HERE / "connector.xml")


def _copy_jars(directory: Path, pom: Path) -> None:
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    _once(directory, pom, ["mvn", "-q", "-B", "-f", str(pom), *goal])


def _once(directory: Path, source: Path, command: list[str]) -> None:
    done = directory.with_suffix(".done")
    wanted = source.read_text()
    if done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    subprocess.run(command, check=True)
    done.write_text(wanted)


@functools.cache
def bootstrap() -> str:
    """Start Kafka at the first call, and return its address."""
    exits = ExitStack()
    atexit.register(exits.close)
    root = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="gazette-kafka-")))
    port, controller = _free_ports(2)
    config = root / "server.properties"
    config.write_text(CONFIG.format(port=port, controller=controller, data=root / "data"))
    java = ["java", "-Xmx1g", "-cp", f"{JARS}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
        check=True,
        capture_output=True,
    )
    log = exits.enter_context((root / "log").open("wb"))
    server = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    exits.callback(_end, server)
    deadline = time.monotonic() + START_SECONDS
    while not _listens(port):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("Kafka didn't start: " + (root / "log").read_text()[-2000:])
        time.sleep(0.1)
    return f"127.0.0.1:{port}"


def create_topic(name: str, partitions: int = 1) -> None:
    """Create a topic."""
    from confluent_kafka import admin  # noqa: PLC0415 - downloaded before

    client: Any = admin.AdminClient({"bootstrap.servers": bootstrap()})
    client.create_topics([admin.NewTopic(name, partitions, 1)])[name].result()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
