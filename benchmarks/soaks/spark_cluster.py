"""A standalone cluster of Spark on loopback: a master and workers, on free ports.

PySpark's wheel has all that these processes need. They end with the context, by their own handles,
and their executors with them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

_ROOT: Final = Path(__file__).parents[2]
_START_SECONDS: Final = 240.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+:\d+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master (\S+)")


def spark_home() -> Path:
    """Return the directory of PySpark, which has Spark's jars and commands."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class SparkCluster:
    """A cluster which is up within its context.

    Args:
        directory: Directory for logs, and for the content of executors.
        workers: Number of workers, of two cores each.
    """

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""
        """URL of the master: `spark://127.0.0.1:PORT`."""

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self.master = self._start("master.Master", _MASTER)
            for number in range(self._workers):
                directory = self._directory / f"worker-{number}"
                given = ("--cores", "2", "--memory", "4g", "--work-dir", str(directory))
                self._start("worker.Worker", _REGISTERED, *given, self.master)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def logs(self) -> str:
        """Return what the processes logged."""
        return "\n".join(log.read_text("utf-8") for log in sorted(self._directory.glob("*.log")))

    def _start(self, name: str, ready: re.Pattern[str], *given: str) -> str:
        """Start a process, and return what `ready` finds in its log."""
        home = spark_home()
        log = self._directory / f"{len(self._processes)}.log"
        own = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(_ROOT),
        }
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *ports, *given],
                env={**os.environ, **own},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        deadline = time.monotonic() + _START_SECONDS
        while (found := ready.search(log.read_text("utf-8"))) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} of Spark didn't start:\n{self.logs()[-4000:]}")
            time.sleep(_POLL_SECONDS)
        return found[1]

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            # Executors are of the group of their worker, which may end before them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
